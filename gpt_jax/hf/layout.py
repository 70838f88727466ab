# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's folder: config.json and tensors in safetensors files."""

import contextlib
import functools
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gpt_jax.files import files
from gpt_jax.hf import heads
from gpt_jax.hf.base import (
  DEFAULTS,
  Bounds,
  Family,
  Options,
  Tensor,
  choice,
  same,
)
from gpt_jax.hf.families import FAMILIES
from gpt_jax.nn.build import period, sharing
from gpt_jax.nn.stack import Sharing
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError

CONFIG = 'config.json'
_SINGLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
# Never read: they are pickles, or of another framework.
_OTHERS = (
  'pytorch_model.bin',
  'pytorch_model.bin.index.json',
  'tf_model.h5',
  'flax_model.msgpack',
)
# safetensors' names of the number formats that parameters may have.
DTYPES: dict[str, Any] = {
  'F32': jnp.float32,
  'F16': jnp.float16,
  'BF16': jnp.bfloat16,
}

# What `write` leaves, whole or not.
_EXPORTED = re.compile(
  r'(config\.json|model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)'
  r'(\.new)?'
)


class Reader:
  """The tensors of a folder, in one file or in several with an index.

  `names` are those of all tensors, `num_bytes` their sizes together.
  """

  def __init__(self, folder: str):
    """Opens the files and reads their headers."""
    self._folder = folder
    self._files: dict[str, Any] = {}
    if os.path.isfile(os.path.join(folder, _SINGLE)):
      file = self._open(_SINGLE)
      self._files = dict.fromkeys(file.keys(), file)
    elif os.path.isfile(os.path.join(folder, _INDEX)):
      index = read_json(folder, _INDEX).get('weight_map')
      path = os.path.join(folder, _INDEX)
      if not isinstance(index, dict):
        raise UsageError(f'{path}: has no weight_map; copy the file again')
      for name in index.values():
        files.inside(name, of=path)
      shards = {name: self._open(name) for name in sorted({*index.values()})}
      for name, shard in index.items():
        if name not in shards[shard].keys():  # noqa: SIM118
          raise UsageError(
            f'{folder}: {_INDEX} puts {name} into {shard}, which lacks it; '
            'copy the folder again'
          )
        self._files[name] = shards[shard]
    else:
      raise UsageError(f'{folder}: {_nothing(folder)}')
    self.names = frozenset(self._files)
    self.num_bytes = sum(map(self.size, self.names))

  def shape(self, name: str) -> tuple[int, ...]:
    """Without reading the tensor."""
    return tuple(self._files[name].get_slice(name).get_shape())

  def dtype(self, name: str) -> str:
    """In safetensors' words, e.g. `BF16`."""
    return self._files[name].get_slice(name).get_dtype()

  def size(self, name: str) -> int:
    """Bytes in the file, if it is of one of `DTYPES`; else 0."""
    dtype = DTYPES.get(self.dtype(name))
    size = np.dtype(dtype).itemsize if dtype else 0
    return math.prod(self.shape(name)) * size

  def read(self, name: str) -> np.ndarray:
    """The tensor in float32; nothing of it stays."""
    value = self._files[name].get_tensor(name)
    return value.astype(np.float32, copy=False)

  def _open(self, name: str) -> Any:
    path = os.path.join(self._folder, name)
    try:
      # A file that is mapped counts as memory, as far as it was read.
      return safe_open(path, framework='np', backend='pread')
    except (SafetensorError, OSError) as e:
      raise UsageError(f'{path}: {e}; copy the file again') from e


def _nothing(folder: str) -> str:
  if not os.path.isdir(folder):
    return 'no such folder'
  others = [n for n in _OTHERS if os.path.exists(os.path.join(folder, n))]
  if not others:
    return f'holds no {_SINGLE}'
  return (
    f'holds {", ".join(others)}, which is not read: only safetensors are. '
    'Convert it where you trust it, with Hugging Face transformers: '
    f'AutoModel.from_pretrained({folder!r}).save_pretrained(NEW_FOLDER), '
    'with the AutoModel class of its head, e.g. AutoModelForCausalLM'
  )


def read_json(folder: str, name: str) -> dict[str, Any]:
  """Reads a JSON object."""
  path = os.path.join(folder, name)
  try:
    with open(path, encoding='utf-8') as f:
      values = json.load(f)
  except OSError as e:
    raise UsageError(f'{path}: {e.strerror}') from e
  except ValueError as e:
    raise UsageError(f'{path}: is not JSON ({e})') from e
  if not isinstance(values, dict):
    raise UsageError(f'{path}: is not a JSON object')
  return values


def write(
  folder: str,
  config: dict[str, Any],
  shards: Sequence[Iterable[tuple[str, np.ndarray]]],
  besides: dict[str, bytes],
) -> None:
  """Writes the tensors and config.json; one shard at a time is in memory.

  A folder has no config.json until all is written, and what an earlier export
  left is removed.

  Args:
    folder: made if need be; files of other names stay.
    config: of config.json.
    shards: names and tensors of each file; several files get an index.
    besides: other files.
  """
  os.makedirs(folder, exist_ok=True)
  for name in os.listdir(folder):
    if _EXPORTED.fullmatch(name):
      os.unlink(os.path.join(folder, name))
  new = []

  def path(name: str) -> str:
    made = os.path.join(folder, f'{name}.new')
    with contextlib.suppress(FileNotFoundError):
      os.unlink(made)  # of an export that was killed, or a planted link
    files.create(made)
    new.append(made)
    return made

  try:
    index = _write_shards(shards, path)
    # config.json is the last that gets its name.
    texts = {_INDEX: index} if len(shards) > 1 else {}
    texts[CONFIG] = config
    contents = besides | {n: _json(values) for n, values in texts.items()}
    for name, data in contents.items():
      with open(path(name), 'wb') as f:
        f.write(data)
    for each in new:
      with open(each, 'rb') as f:
        os.fsync(f.fileno())
    for each in new:
      os.replace(each, each.removesuffix('.new'))
  finally:
    for each in new:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(each)


def _write_shards(
  shards: Sequence[Iterable[tuple[str, np.ndarray]]],
  path: Callable[[str], str],
) -> dict[str, Any]:
  """Writes them where `path` says; gives the index."""
  places, total = {}, 0
  for i, shard in enumerate(shards, 1):
    name = f'model-{i:05}-of-{len(shards):05}.safetensors'
    name = name if len(shards) > 1 else _SINGLE
    tensors = {n: np.ascontiguousarray(x) for n, x in shard}
    # HF refuses files that do not name their framework.
    save_file(tensors, path(name), metadata={'format': 'pt'})
    places |= dict.fromkeys(tensors, name)
    total += sum(x.nbytes for x in tensors.values())
    del tensors
  return {'metadata': {'total_size': total}, 'weight_map': places}


def _json(values: dict[str, Any]) -> bytes:
  return (json.dumps(values, indent=2) + '\n').encode()


# Which tensor of a checkpoint is which of our parameters.
#
# Parameters are addressed by flat paths such as `embed/embedding`.


# Options of any model that would change what it computes.
_ONLY = {
  'add_cross_attention': False,
  'pruned_heads': {},
  'quantization_config': None,
}

Flat = dict[str, Any]


class Origin(NamedTuple):
  """What an export needs to give back the files of an import.

  Attributes:
    config: config.json, verbatim.
    kind: of `heads.KINDS`.
    bare: whether names lack the family's prefix.
    names: that were in the file, of tensors with several names.
    dtype: of the tensors, in safetensors' words.
  """

  config: str
  kind: str = 'lm'
  bare: bool = False
  names: tuple[str, ...] = ()
  dtype: str = 'F32'


class Imported(Transformer):
  """A `Transformer` that knows the checkpoint it came from.

  The origin tells `forward` which heads there are and `save` what to write;
  nothing else depends on it. Heads are in `params['heads']`.
  """

  origin: Origin = Origin('{}')

  @property
  def options(self) -> Options:
    """The checkpoint's config.json."""
    return Options(json.loads(self.origin.config))

  @property
  def family(self) -> Family:
    """The checkpoint's family."""
    return FAMILIES[self.options.get('model_type')]


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
  bounds: Bounds | None = None,
) -> Flat:
  """All fields of `Transformer`.

  Args:
    family: of the config.
    kind: of its heads.
    config: config.json.
    bias: whether there is the bias that the family calls `output_bias`.
    bounds: of the files; None: there are none.
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
      raise UsageError(
        f'config.json: width {d_model} does not divide by {num_heads} heads'
      )
    fields['head_size'] = d_model // num_heads
  fields.setdefault('num_kv_heads', num_heads)
  if kind not in heads.SCORING:
    fields['output'] = 'tied'  # it scores no vocabulary
  elif bias and family.output_bias:
    fields['output'] = 'tied(bias=True)'
  return fields


def shapes(model: Imported) -> Flat:
  """Zeros that take no memory for each parameter, heads included."""
  # Without the origin, which imports of one model differ in.
  body = Transformer(**{f: getattr(model, f) for f in transformer_fields()})
  params = dict(parameter_shapes(body))
  params['heads'] = heads.shapes(
    model.origin.kind, model.options, model.d_model
  )
  flat = flatten(params)
  return {n: np.broadcast_to(np.float32(0), x.shape) for n, x in flat.items()}


class Slot(NamedTuple):
  """A tensor of the file, its names filled in.

  Its `index` is () or that of its layer, followed by its expert's if any.
  """

  tensor: Tensor
  index: tuple[int, ...] = ()


def slots(model: Imported) -> list[Slot]:
  """Every tensor of the file."""
  out = []
  family = model.family
  of_heads = heads.tensors(model.origin.kind, family)
  for tensor in [*family.tensors(model), *of_heads, *_output_bias(model)]:
    stack = _stack(model, tensor.paths[0]) if tensor.paths else None
    if stack is None:
      out.append(Slot(tensor))
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
        out.append(Slot(tensor._replace(names=tuple(names)), index))
  return out


def _output_bias(model: Imported) -> list[Tensor]:
  """The bias [1, V] of `Family.output_bias`; zeros are no parameter."""
  names = (model.family.output_bias,)
  if not names[0] or model.origin.kind not in heads.SCORING:
    return []
  if choice(model, 'output').kwargs['bias']:
    bias = same('head_bias', *names)
    return [bias._replace(split=lambda x: [x[0]], join=lambda x: x[0][None])]
  zeros = np.zeros((1, model.vocab_size), np.float32)
  return [Tensor(names, (), lambda x: [], lambda parts: zeros)]


def part(model: Imported, flat: Any, path: str, slot: Slot) -> Any:
  """The array of one of a slot's paths; of a stacked one, its part."""
  name, index = _place(model, path, slot)
  return flat[name][index] if index else flat[name]


def places(model: Imported, slot: Slot) -> list[tuple[str, tuple[int, ...]]]:
  """Which parts of which parameters a tensor of the file fills."""
  return [_place(model, path, slot) for path in slot.tensor.paths]


def _place(
  model: Imported, path: str, slot: Slot
) -> tuple[str, tuple[int, ...]]:
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
  """The layers that a path stands for."""

  alias: str
  name: str
  num_layers: int
  period: int
  sharing: Sharing

  def path(self, path: str, block: int) -> str:
    """Where the parameters of one block of the period are."""
    rest = path.removeprefix(self.alias)
    return f'{self.name}/periods/block_{block}/{rest}'

  def set_of(self, path: str, layer: int) -> int:
    """Which set of the parameters a layer takes, of those in its block."""
    part = path.removeprefix(self.alias).partition('/')[0]
    runs = self.num_layers // self.period
    return self.sharing.set_of(layer // self.period, part, runs)

  def repeats(self, path: str, layer: int) -> bool:
    """Whether a layer below it in the same place takes the same set."""
    below = layer - self.period
    return below >= 0 and self.set_of(path, below) == self.set_of(path, layer)


def _stack(model: Imported, path: str) -> _Layers | None:
  """The stack whose block a path is in; None where it is in none."""
  if path.startswith('layer/'):
    period = _period(model.attention, model.ffn, model.share)
    count, shared = model.num_layers, sharing(model.share)
    return _Layers('layer/', 'decoder', count, period, shared)
  if path.startswith('encoder_layer/'):
    ffn = model.encoder_ffn or model.ffn
    period = _period('bidirectional', ffn, model.share)
    count, shared = model.num_encoder_layers, sharing(model.share)
    return _Layers('encoder_layer/', 'encoder', count, period, shared)
  return None


@functools.cache
def _period(attention: str, ffn: str, share: str) -> int:
  """After how many layers a stack's parameters look the same again."""
  return len(period(attention, ffn, share))


def file_name(model: Imported, name: str) -> str:
  """How the file calls a tensor: with the prefix, or bare."""
  return name.removeprefix(model.family.prefix) if model.origin.bare else name


def transformer_fields() -> list[str]:
  """Names of the fields of `Transformer`: the keys of `config.model`."""
  flax = ('parent', 'name')
  return [n for n in Transformer.__dataclass_fields__ if n not in flax]


def flatten(tree: Any, prefix: str = '') -> Flat:
  """`{'embed/embedding': ...}`."""
  flat = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f'{prefix}{name}/')
    else:
      flat[prefix + name] = value
  return flat


def nest(flat: Flat) -> Any:
  """The tree that `flatten` took apart."""
  tree = {}
  for path, value in flat.items():
    *folders, name = path.split('/')
    node = tree
    for folder in folders:
      node = node.setdefault(folder, {})
    node[name] = value
  return tree


# A checkpoint of Hugging Face that is read one tensor at a time.


log = logging.getLogger('gpt_jax')

# Is told how many bytes more were read or written.
Told = Callable[[int], None]


class Source:
  """A checkpoint whose headers were read, and next to nothing else.

  Attributes:
    model: that it holds, with all that an export needs to know.
    shapes: of its parameters, by their flat paths: zeros without memory.
    axes: by path, how many leading axes the indices of its parts have.
    num_bytes: of all tensors in the files.
  """

  def __init__(self, folder: str):
    """Opens a folder."""
    self._folder = folder
    config = read_json(folder, CONFIG)
    try:
      family, kind = family_of(config)
      self._reader = Reader(folder)
      kind = heads.found(kind, family, self._reader.names)
      bias = _has_bias(family, self._reader)
      names = self._reader.names
      bounds = Bounds(
        len(names), sum(math.prod(self._reader.shape(n)) for n in names)
      )
      fields = fields_of(family, kind, config, bias=bias, bounds=bounds)
      model = Imported(**fields, origin=Origin(json.dumps(config), kind))
      self.model = model.clone(origin=_origin(model, self._reader))
    except UsageError as e:
      raise self._named(e) from e
    self.shapes = shapes(self.model)
    self.axes = {
      path: len(index)
      for slot in slots(self.model)
      for path, index in places(self.model, slot)
    }
    self.num_bytes = self._reader.num_bytes

  def fill(self, to: Any, told: Told = lambda count: None) -> None:
    """Reads all tensors and puts each into its parameters.

    Args:
      to: by path, arrays that take `array[index][...] = part`: NumPy's or
        TensorStore's, of float32.
      told: of what was read.
    """
    for slot in slots(self.model):
      try:
        self._fill(slot, to, told)
      except UsageError as e:
        raise self._named(e) from e

  def _fill(self, slot: Slot, to: Any, told: Told) -> None:
    """Puts one tensor of the file into its parameters."""
    tensor, model = slot.tensor, self.model
    names = _present(model, self._reader, tensor)
    if not names and not tensor.paths:
      return
    first, *others = [file_name(model, n) for n in names]
    value = self._reader.read(first)
    # NaN is the largest of numbers that hold it.
    if value.size and not np.isfinite([value.max(), value.min()]).all():
      raise UsageError(
        f'{first} holds NaN or infinite numbers; copy the file again, or ask '
        'who made it'
      )
    for other in others:
      if not np.array_equal(value, self._reader.read(other), equal_nan=True):
        tied = model.options.get('tie_word_embeddings', True)
        raise UsageError(
          f'{first} and {other} are tied in this model, but differ; '
          + (
            'set tie_word_embeddings to false in config.json if they should'
            if tied
            else 'tie_word_embeddings=False is supported for one input table '
            'only'
          )
        )
    for path, piece in zip(tensor.paths, tensor.split(value), strict=True):
      part(model, to, path, slot)[...] = piece
    told(sum(map(self._reader.size, (first, *others))))

  def _named(self, error: UsageError) -> UsageError:
    text = str(error)
    return (
      error if self._folder in text else UsageError(f'{self._folder}: {text}')
    )


def _has_bias(family: Family, reader: Reader) -> bool:
  """Whether a file has the bias of `Family.output_bias`, other than zeros."""
  name = family.output_bias
  return name in reader.names and bool(reader.read(name).any())


def _origin(model: Imported, reader: Reader) -> Origin:
  """The model's origin with what is known of the files."""
  prefix = model.family.prefix
  bare = not any(n.startswith(prefix) for n in reader.names)
  model = model.clone(origin=model.origin._replace(bare=bare))
  expected = shapes(model)
  assert covered(model) == {*expected}, covered(model) ^ {*expected}
  wrong, dtypes, known, rest = [], set(), [], {*reader.names}
  for slot in slots(model):
    tensor = slot.tensor
    names = _present(model, reader, tensor)
    if not names and tensor.paths:
      wrong.append(f'{file_name(model, tensor.names[0])} is missing')
    if len(tensor.names) > 1:
      known += names
    shape = joined_shape(model, expected, slot)
    for name in (file_name(model, n) for n in names):
      rest.discard(name)
      dtypes.add(reader.dtype(name))
      if reader.shape(name) != shape:
        wrong.append(f'{name} is {reader.shape(name)}, not {shape}')
      if reader.dtype(name) not in DTYPES:
        wrong.append(f'{name} is of type {reader.dtype(name)}')
  buffers = re.compile('|'.join(model.family.buffers) or '(?!)')
  unread = re.compile('|'.join(model.family.unread) or '(?!)')
  lost = [n for n in sorted(rest) if unread.fullmatch(prefix * bare + n)]
  for name in sorted(rest.difference(lost)):
    if not buffers.fullmatch(prefix * bare + name):
      wrong.append(f'{name} is not of this model')
  if wrong:
    raise UsageError(f'the tensors do not fit: {"; ".join(wrong)}')
  if lost:
    log.warning(
      '%s: the model does not use these tensors, so they are not imported, and '
      'an export does not hold them',
      ', '.join(lost),
    )
  dtype = dtypes.pop() if len(dtypes) == 1 else 'F32'
  return model.origin._replace(names=tuple(known), dtype=dtype)


def joined_shape(model: Imported, flat: Flat, slot: Slot) -> tuple[int, ...]:
  """The shape of a tensor of the file; `flat` is of `shapes`."""
  tensor = slot.tensor
  return tensor.join([part(model, flat, p, slot) for p in tensor.paths]).shape


def _present(model: Imported, reader: Reader, tensor: Tensor) -> list[str]:
  """Which of a tensor's names are in the file; with the prefix."""
  return [n for n in tensor.names if file_name(model, n) in reader.names]
