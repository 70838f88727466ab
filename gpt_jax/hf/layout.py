# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a checkpoint is which of our parameters.

Parameters are addressed by flat paths such as `embed/embedding`.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.params import flatten
from gpt_jax.core.nn.stack import Sharing
from gpt_jax.core.nn.transformer import Transformer, make_model, parameter_shapes
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import heads
from gpt_jax.hf.base import DEFAULTS, Bounds, Family, Options, Tensor, choice, same
from gpt_jax.hf.families import FAMILIES

# Options of any model that would change what it computes.
_ONLY = {'add_cross_attention': False, 'pruned_heads': {}, 'quantization_config': None}

Flat = dict[str, Any]


# Of a model of our own, of which `forward` knows no more than its fields.
_NONE = Family('', {}, '', entries=(), tensors=lambda model: [], token_types=True, pair=('', ''))


# safetensors' names of the number formats that parameters may have.
DTYPES: dict[str, Any] = {'F32': jnp.float32, 'F16': jnp.float16, 'BF16': jnp.bfloat16}


class ExportOrigin(NamedTuple):
  """What an export needs to reproduce the imported files."""

  config: str  # config.json, verbatim
  kind: str = 'lm'  # of `heads.KINDS`
  bare: bool = False  # whether names lack the family's prefix
  names: tuple[str, ...] = ()  # in the file, of tensors with several names
  dtype: str = 'F32'  # of the tensors, in safetensors' terms


class Imported(Transformer):
  """A `Transformer` that knows the checkpoint it came from.

  Only `forward` (which heads there are) and `save` (what to write) depend on
  the origin. The heads' parameters are in `params['heads']`.
  """

  origin: ExportOrigin = ExportOrigin('{}')

  @property
  def options(self) -> Options:
    """The checkpoint's config.json."""
    return Options(json.loads(self.origin.config))

  @property
  def family(self) -> Family:
    """The checkpoint's family."""
    return FAMILIES.get(self.options.get('model_type'), _NONE)


def imported(fields: Mapping[str, Any], origin: ExportOrigin | None = None) -> Imported:
  """The `Imported` of the class that these fields of a model ask for."""
  return _imported(type(make_model(**fields)))(**fields, origin=origin or ExportOrigin('{}'))


@functools.cache
def _imported(kind: type[Transformer]) -> Any:
  if kind is Transformer:
    return Imported
  return type(f'Imported{kind.__name__}', (Imported, kind), {})


def family_of(config: dict[str, Any]) -> tuple[Family, str]:
  """The family, and the kind of heads, of a config.json."""
  options = Options(config)
  model_type = options.get('model_type', '')
  family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
  if family is None:
    known = ', '.join(FAMILIES)
    raise options.fail('model_type', f'is not supported; one of {known}')
  names = options.get('architectures') or [next(iter(family.architectures))]
  if (
    not isinstance(names, list)
    or len(names) != 1
    or not isinstance(names[0], str)
    or names[0] not in family.architectures
  ):
    known = ', '.join(family.architectures)
    raise options.fail('architectures', f'is not supported; one of {known}')
  return family, family.architectures[names[0]]


def fields_of(
  family: Family,
  kind: str,
  config: dict[str, Any],
  *,
  bias: bool = False,
  tied: bool = False,
  bounds: Bounds | None = None,
) -> Flat:
  """All fields of `Transformer` for a config.json.

  `bias` says whether the files have the bias called `Family.output_bias`, and
  `tied` whether they lack the table called `Family.output_table`.
  """
  options = Options(config, bounds)
  for name, value in _ONLY.items():
    options.only(name, value)
  heads.check(kind, options)
  fields = DEFAULTS | family.fields(options)
  options.only('is_encoder_decoder', fields['num_encoder_layers'] > 0)
  d_model, num_heads = fields['d_model'], fields['num_heads']
  if 'head_size' not in fields:
    if d_model % num_heads:
      raise UsageError(f'config.json: width {d_model} is not divisible by {num_heads} heads')
    fields['head_size'] = d_model // num_heads
  fields.setdefault('num_kv_heads', num_heads)
  if kind not in heads.SCORING:
    fields['output'] = 'tied'  # it has no language-model head
  elif bias and family.output_bias:
    fields['output'] = 'tied(bias=True)'
  elif (
    tied
    and family.output_table
    and fields['output'] == 'untied'
    and options.flag('tie_word_embeddings', True)
  ):
    fields['output'] = 'tied'
  return fields


def shapes(model: Imported) -> Flat:
  """Zeros that take no memory for each parameter, heads included."""
  # Without the origin: the cache of shapes is by model.
  body = make_model(**{f: getattr(model, f) for f in transformer_fields()})
  params = dict(parameter_shapes(body))
  params['heads'] = heads.shapes(model.origin.kind, model.options, model.d_model)
  flat = flatten(params)
  return {n: np.broadcast_to(np.float32(0), x.shape) for n, x in flat.items()}


class TensorSlot(NamedTuple):
  """A tensor of the file, with its names filled in."""

  tensor: Tensor
  index: tuple[int, ...] = ()  # (), (layer,) or (layer, expert)


def slots(model: Imported) -> list[TensorSlot]:
  """Every tensor of the file."""
  out = []
  family = model.family
  of_heads = heads.tensors(model.origin.kind, family)
  for tensor in [*family.tensors(model), *of_heads, *_output_bias(model)]:
    stack = _stack(model, tensor.paths[0]) if tensor.paths else None
    if stack is None:
      out.append(TensorSlot(tensor))
      continue
    layers = range(stack.num_layers)
    if tensor.layers is not None:
      layers = tensor.layers
    for layer in layers:
      if stack.repeats(tensor.paths[0], layer):
        continue
      places = {
        'layer': layer,
        'group': stack.set_of(tensor.paths[0], layer),
        'inner': layer % stack.period,
      }
      for expert in range(max(tensor.experts, 1)):
        names = (n.format(**places, expert=expert) for n in tensor.names)
        index = (layer, expert) if tensor.experts else (layer,)
        out.append(TensorSlot(tensor._replace(names=tuple(names)), index))
  return out


def _output_bias(model: Imported) -> list[Tensor]:
  """The bias [1, V] of `Family.output_bias`; zeros if the model has none."""
  names = (model.family.output_bias,)
  if not names[0] or model.origin.kind not in heads.SCORING:
    return []
  if choice(model, 'output').kwargs['bias']:
    bias = same('head_bias', *names)
    return [bias._replace(split=lambda x: [x[0]], join=lambda x: x[0][None])]
  zeros = np.zeros((1, model.vocab_size), np.float32)
  return [Tensor(names, (), lambda x: [], lambda parts: zeros)]


def part(model: Imported, flat: Any, path: str, slot: TensorSlot) -> Any:
  """The array of one of a slot's paths, or its part of a stacked array."""
  name, index = _place(model, path, slot)
  return flat[name][index] if index else flat[name]


def places(model: Imported, slot: TensorSlot) -> list[tuple[str, tuple[int, ...]]]:
  """The parameters that a tensor of the file fills, and the index in each."""
  return [_place(model, path, slot) for path in slot.tensor.paths]


def _place(model: Imported, path: str, slot: TensorSlot) -> tuple[str, tuple[int, ...]]:
  stack = _stack(model, path)
  if stack is None:
    return path, ()
  layer, *rest = slot.index
  block = stack.path(path, layer % stack.period)
  return block, (stack.set_of(path, layer), *rest)


def covered(model: Imported) -> set[str]:
  """Every path that a tensor of the file fills."""
  return {path for slot in slots(model) for path, _ in places(model, slot)}


class _Layers(NamedTuple):
  """The stack of layers that a path such as `layer/...` stands for."""

  alias: str
  name: str
  num_layers: int
  period: int
  sharing: Sharing

  def path(self, path: str, block: int) -> str:
    """Path of the parameters of one block of the period."""
    rest = path.removeprefix(self.alias)
    return f'{self.name}/periods/block_{block}/{rest}'

  def set_of(self, path: str, layer: int) -> int:
    """Which of the block's sets of parameters a layer uses."""
    part = path.removeprefix(self.alias).partition('/')[0]
    runs = self.num_layers // self.period
    return self.sharing.set_of(layer // self.period, part, runs)

  def repeats(self, path: str, layer: int) -> bool:
    """Whether the layer one period below uses the same set."""
    below = layer - self.period
    return below >= 0 and self.set_of(path, below) == self.set_of(path, layer)


def _stack(model: Imported, path: str) -> _Layers | None:
  """The stack whose block a path is in, if any."""
  choices = ModelChoices.of(model)
  if path.startswith('layer/'):
    count, period = model.num_layers, len(choices.decoder)
    return _Layers('layer/', 'decoder', count, period, choices.share)
  if path.startswith('encoder_layer/'):
    count, period = model.num_encoder_layers, len(choices.encoder)
    return _Layers('encoder_layer/', 'encoder', count, period, choices.share)
  return None


def joined_shape(model: Imported, flat: Flat, slot: TensorSlot) -> tuple[int, ...]:
  """The shape of a tensor in the file; `flat` is from `shapes`."""
  tensor = slot.tensor
  return tensor.join([part(model, flat, p, slot) for p in tensor.paths]).shape


def file_name(model: Imported, name: str) -> str:
  """A tensor's name in the file: with the family's prefix, or bare."""
  return name.removeprefix(model.family.prefix) if model.origin.bare else name


def transformer_fields() -> list[str]:
  """Names of the fields of `Transformer`: the keys of `config.model`."""
  flax = ('parent', 'name')
  return [n for n in Transformer.__dataclass_fields__ if n not in flax]
