# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the checkpoints of Hugging Face, to the last tensor."""

import functools
import json
import re
from typing import Any

import numpy as np

from gpt_jax.hf import files, rope, routers
from gpt_jax.hf.base import FOR_TRAINING, Family, Tensor, choices
from gpt_jax.hf.families import FAMILIES
from gpt_jax.hf.heads import SCORING
from gpt_jax.hf.layout import (
  Flat,
  Imported,
  Origin,
  Slot,
  covered,
  family_of,
  fields_of,
  file_name,
  flatten,
  nest,
  part,
  shapes,
  slots,
  transformer_fields,
)
from gpt_jax.nn.choices import CHOICES
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError

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

  Raises:
    UsageError: names the file, the options that are not supported, and the
      tensors that are missing, extra or of another shape.
  """
  config = files.read_json(folder, files.CONFIG)
  try:
    family, kind = family_of(config)
    fields = fields_of(family, kind, config)
    reader = files.Reader(folder)
    origin = Origin(json.dumps(config), kind)
    flat, origin = _read(Imported(**fields, origin=origin), reader)
  except UsageError as e:
    text = str(e)
    raise e if folder in text else UsageError(f'{folder}: {text}') from e
  return Imported(**fields, origin=origin), nest(flat)


def save(
  folder: str,
  model: Transformer,
  params: Any,
  *,
  options: dict[str, Any] | None = None,
) -> None:
  """Writes model.safetensors and config.json.

  An import is given back under its own names and number format, with its own
  config.json if that still means the same. Any other model goes to the first
  family that can express it.

  Args:
    folder: created if need be; other files in it stay.
    model: from `load`, or any `Transformer`.
    params: of `model`.
    options: for config.json besides, such as `eos_token_id`.

  Raises:
    UsageError: names the fields that no family can express, or the parameters
      that do not fit.
  """
  model, config = _describe(model)
  flat = flatten(params)
  _check_params(model, flat)
  dtype = files.DTYPES[model.origin.dtype]
  tensors = {}
  for slot in slots(model):
    tensor = slot.tensor
    parts = [np.asarray(part(model, flat, p, slot)) for p in tensor.paths]
    joined = tensor.join(parts).astype(dtype)
    known = [n for n in tensor.names if n in model.origin.names]
    for name in dict.fromkeys((*(known or tensor.names[:1]), *tensor.always)):
      tensors[file_name(model, name)] = joined
  files.write(folder, {**config, **(options or {})}, tensors)


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


def _read(model: Imported, reader: files.Reader) -> tuple[Flat, Origin]:
  """Fills every parameter from the file.

  Returns:
    The parameters, and the model's origin with what is known of the file.

  Raises:
    UsageError: lists all tensors that are wrong.
  """
  prefix = model.family.prefix
  bare = not any(n.startswith(prefix) for n in reader.names)
  model = model.clone(origin=model.origin._replace(bare=bare))
  expected = shapes(model)
  assert covered(model) == {*expected}, covered(model) ^ {*expected}

  wrong, dtypes, known, rest = [], set(), [], {*reader.names}
  for slot in slots(model):
    tensor = slot.tensor
    names = _present(model, reader, tensor)
    if not names:
      wrong.append(f'{file_name(model, tensor.names[0])} is missing')
    if len(tensor.names) > 1:
      known += names
    parts = [part(model, expected, p, slot) for p in tensor.paths]
    shape = tensor.join(parts).shape
    for name in (file_name(model, n) for n in names):
      rest.discard(name)
      dtypes.add(reader.dtype(name))
      if reader.shape(name) != shape:
        wrong.append(f'{name} is {reader.shape(name)}, not {shape}')
      if reader.dtype(name) not in files.DTYPES:
        wrong.append(f'{name} is of type {reader.dtype(name)}')
  buffers = re.compile('|'.join(model.family.buffers) or '(?!)')
  for name in sorted(rest):
    if not buffers.fullmatch(prefix * bare + name):
      wrong.append(f'{name} is not of this model')
  if wrong:
    raise UsageError(f'the tensors do not fit: {"; ".join(wrong)}')
  flat = {n: np.empty(x.shape, np.float32) for n, x in expected.items()}
  for slot in slots(model):
    _fill(model, reader, slot, flat)
  dtype = dtypes.pop() if len(dtypes) == 1 else 'F32'
  return flat, model.origin._replace(names=tuple(known), dtype=dtype)


def _present(
  model: Imported, reader: files.Reader, tensor: Tensor
) -> list[str]:
  """Which of a tensor's names are in the file; with the prefix."""
  return [n for n in tensor.names if file_name(model, n) in reader.names]


def _fill(
  model: Imported, reader: files.Reader, slot: Slot, flat: Flat
) -> None:
  """Puts one tensor of the file into its parameters."""
  tensor = slot.tensor
  first, *others = [
    file_name(model, n) for n in _present(model, reader, tensor)
  ]
  value = reader.read(first)
  for other in others:
    if not np.array_equal(value, reader.read(other), equal_nan=True):
      tied = model.options.get('tie_word_embeddings', True)
      raise UsageError(
        f'{first} and {other} are tied in this model, but differ; '
        + (
          'set tie_word_embeddings to false in config.json if they should'
          if tied
          else 'tie_word_embeddings=False is supported for one input table only'
        )
      )
  for path, piece in zip(tensor.paths, tensor.split(value), strict=True):
    part(model, flat, path, slot)[...] = piece


def _describe(model: Transformer) -> tuple[Imported, dict[str, Any]]:
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
    origin = model.origin._replace(config=json.dumps(config))
    return model.clone(origin=origin), config
  failures = []
  for family in FAMILIES.values():
    config = {
      'architectures': [next(iter(family.architectures))],
      'model_type': family.model_type,
      'torch_dtype': 'float32',
      **family.options(model),
    }
    wrong = _differences(model, family, 'lm', config)
    if not wrong:
      fields = {f: getattr(model, f) for f in transformer_fields()}
      origin = Origin(json.dumps(config), bare=family.bare)
      return Imported(**fields, origin=origin), config
    failures.append(f'{family.model_type} cannot: {"; ".join(wrong)}')
  raise UsageError(
    'no model of Hugging Face computes the same. ' + '. '.join(failures)
  )


def _differences(
  model: Transformer, family: Family, kind: str, config: dict[str, Any]
) -> list[str]:
  """Fields for which a config.json does not mean this model."""
  try:
    other = Transformer(**fields_of(family, kind, config))
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
