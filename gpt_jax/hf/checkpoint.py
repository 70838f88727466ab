# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the checkpoints of Hugging Face, to the last tensor."""

import functools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt_jax.hf import layout, rope, routers
from gpt_jax.hf.base import FOR_TRAINING, Family, choice, choices
from gpt_jax.hf.families import FAMILIES
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import (
  Flat,
  Imported,
  Origin,
  Slot,
  Source,
  Told,
  fields_of,
  file_name,
  flatten,
  joined_shape,
  nest,
  part,
  shapes,
  slots,
  transformer_fields,
)
from gpt_jax.nn.build import CHOICES
from gpt_jax.nn.transformer import Transformer, parameter_shapes
from gpt_jax.spec import UsageError

# What `model.position` can say and no export writes.


# By name and argument ('': whatever they are): what exports write instead.
_OURS = {
  ('learned_by_layer', ''): 'position=learned',
  ('transformer_xl', 'segment'): 'segment=0',
  ('transformer_xl', 'biases'): "biases='own'",
}


def check(model: Transformer) -> None:
  """Refuses what is ours alone."""
  call = choice(model, 'position')
  for (name, argument), theirs in _OURS.items():
    said = f'{argument}={call.kwargs.get(argument)!r}' if argument else name
    if call.name == name and said != theirs:
      raise UsageError(
        f'model.position={model.position!r}: no export writes {said}; take a '
        f'run with {theirs}'
      )


# Files of an export are no larger, unless a tensor is.
SHARD_BYTES = 10**9

# Whether a field of two models means the same, where more than its text counts.
_SAME = {
  'position': rope.same,
  'ffn': functools.partial(routers.same, stack='decoder'),
  'encoder_ffn': functools.partial(routers.same, stack='encoder'),
}


def load(folder: str) -> tuple[Imported, Any]:
  """Reads a checkpoint.

  Returns:
    The model, a `Transformer`, and its parameters: float32 NumPy arrays.
  """
  source = Source(folder)
  flat = {n: np.empty(x.shape, np.float32) for n, x in source.shapes.items()}
  source.fill(flat)
  return source.model, nest(flat)


def save(
  folder: str,
  model: Transformer,
  params: Any,
  *,
  kind: str = 'lm',
  options: dict[str, Any] | None = None,
  besides: dict[str, bytes] | None = None,
  shard_bytes: int = SHARD_BYTES,
  told: Told = lambda count: None,
) -> None:
  """Writes config.json and the tensors: model.safetensors, or several files.

  An import is given back under its own names and number format, with its own
  config.json if that still means the same. Any other model goes to the first
  family that can express it.

  Args:
    folder: created if need be; files of other names in it stay.
    model: from `load`, or any `Transformer`.
    params: of `model`: arrays, or what gives parts of them as arrays do.
    kind: of `heads.KINDS`, for a model that is no import.
    options: for config.json besides, such as `eos_token_id`.
    besides: other files, such as a tokenizer's.
    shard_bytes: of a file, unless one tensor is larger; so much is in memory.
    told: of what was written.
  """
  flat = flatten(params)
  if not isinstance(model, Imported) and kind not in SCORING:
    # What scores the vocabulary has no place in such a class.
    model = model.clone(output='tied')
    body = flatten(parameter_shapes(model))
    kept = [n for n in flat if n in body or n.startswith('heads/')]
    flat = {n: flat[n] for n in kept}
  model, config = _describe(model, kind, options or {})
  _check_params(model, flat)

  def tensors(some: list[Slot]) -> Iterator[tuple[str, np.ndarray]]:
    for slot in some:
      parts = [part(model, flat, p, slot) for p in slot.tensor.paths]
      joined = slot.tensor.join([np.asarray(x) for x in parts])
      joined = joined.astype(layout.DTYPES[model.origin.dtype])
      for name in _names(model, slot):
        yield name, joined
        told(joined.nbytes)

  shards = [tensors(some) for some in _shards(model, shard_bytes)]
  named = {model.family.files.get(n, n): x for n, x in (besides or {}).items()}
  layout.write(folder, config, shards, named)


def num_bytes(model: Transformer, params: Any) -> int:
  """About what `save` will write: the parameters in the import's format."""
  dtype = model.origin.dtype if isinstance(model, Imported) else 'F32'
  size = np.dtype(layout.DTYPES[dtype]).itemsize
  return sum(math.prod(x.shape) for x in flatten(params).values()) * size


def _names(model: Imported, slot: Slot) -> list[str]:
  """What the file calls a tensor: tied copies may be repeated."""
  tensor = slot.tensor
  known = [n for n in tensor.names if n in model.origin.names]
  names = dict.fromkeys((*(known or tensor.names[:1]), *tensor.always))
  return [file_name(model, name) for name in names]


def _shards(model: Imported, shard_bytes: int) -> list[list[Slot]]:
  """Which tensors each file holds, in order."""
  out, room, zeros = [], -1, shapes(model)
  size = np.dtype(layout.DTYPES[model.origin.dtype]).itemsize
  for slot in slots(model):
    count = len(_names(model, slot))
    needed = math.prod(joined_shape(model, zeros, slot)) * size * count
    if needed > room:
      out.append([])
      room = shard_bytes
    out[-1].append(slot)
    room -= needed
  return out


def _check_params(model: Imported, flat: Flat) -> None:
  expected = shapes(model)
  wrong = [f'{n} is missing' for n in expected if n not in flat]
  wrong += [f'{n} is not of this model' for n in flat if n not in expected]
  wrong += [
    f'{n} is {flat[n].shape}, not {x.shape}'
    for n, x in expected.items()
    if n in flat and flat[n].shape != x.shape
  ]
  if wrong:
    raise UsageError(f'params do not fit the model: {"; ".join(wrong)}')


def _describe(
  model: Transformer, kind: str, options: dict[str, Any]
) -> tuple[Imported, dict[str, Any]]:
  """The model with an origin, and a config.json that comes back the same."""
  if isinstance(model, Imported):
    config, kind = json.loads(model.origin.config), model.origin.kind
    written = model.family.options(model)
    if kind in SCORING:
      config |= {n: written[n] for n in model.family.rewritten}
    if _differences(model, model.family, kind, config):
      config |= written
      wrong = _differences(model, model.family, kind, config)
      if wrong:
        name = model.family.model_type
        raise UsageError(f'{name} cannot express {"; ".join(wrong)}')
    config |= options
    origin = model.origin._replace(config=json.dumps(config))
    return model.clone(origin=origin), config
  check(model)
  failures, lacking = [], None
  for family in FAMILIES.values():
    classes = [n for n, k in family.architectures.items() if k == kind]
    config = {
      'architectures': classes[:1],
      'model_type': family.model_type,
      'torch_dtype': 'float32',
      **family.options(model),
      **options,
    }
    wrong = _differences(model, family, kind, config)
    if not wrong and classes:
      fields = {f: getattr(model, f) for f in transformer_fields()}
      origin = Origin(json.dumps(config), kind, bare=family.bare)
      return Imported(**fields, origin=origin), config
    if not wrong:
      # Another may have it, as ELECTRA's body may be BERT's.
      lacking = lacking or family
    failures.append(f'{family.model_type} cannot: {"; ".join(wrong)}')
  if lacking:
    raise UsageError(_no_class(lacking, kind))
  raise UsageError(
    'no model of Hugging Face computes the same. ' + '. '.join(failures)
  )


def _no_class(family: Family, kind: str) -> str:
  """Why a family that has the model's body cannot have its head."""
  others = [
    name
    for other in FAMILIES.values()
    for name, k in other.architectures.items()
    if k == kind
  ]
  return (
    f'the model is a {family.model_type}, which has no class in transformers '
    f'with the head {kind!r} ({", ".join(others)} have); export the language '
    'model that was fine-tuned, or predict here, with finetune --predict'
  )


def _differences(
  model: Transformer, family: Family, kind: str, config: dict[str, Any]
) -> list[str]:
  """Fields for which a config.json does not mean this model."""
  bias = choice(model, 'output').kwargs.get('bias', False)
  try:
    other = Transformer(**fields_of(family, kind, config, bias=bias))
  except UsageError as e:
    return [str(e)]
  wrong = []
  for field in transformer_fields():
    ours, theirs = getattr(model, field), getattr(other, field)
    if field in FOR_TRAINING or ours == theirs:
      continue
    if field in _SAME:
      same = _SAME[field](model, other)
    else:
      same = field in CHOICES and choices(model, field) == choices(other, field)
    if not same:
      wrong.append(f'model.{field}={ours!r} (only {theirs!r})')
  return wrong
