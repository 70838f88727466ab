# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of Hugging Face that is read one tensor at a time."""

import json
import logging
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt_jax.hf import files, heads
from gpt_jax.hf.base import Bounds, Family, Tensor
from gpt_jax.hf.layout import (
  Flat,
  Imported,
  Origin,
  Slot,
  covered,
  family_of,
  fields_of,
  file_name,
  part,
  places,
  shapes,
  slots,
)
from gpt_jax.spec import UsageError

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
    """Opens a folder.

    Raises:
      UsageError: names the file, the options that are not supported, and the
        tensors that are missing, extra or of another shape.
    """
    self._folder = folder
    config = files.read_json(folder, files.CONFIG)
    try:
      family, kind = family_of(config)
      self._reader = files.Reader(folder)
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

    Raises:
      UsageError: tensors that are tied differ.
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


def _has_bias(family: Family, reader: files.Reader) -> bool:
  """Whether a file has the bias of `Family.output_bias`, other than zeros."""
  name = family.output_bias
  return name in reader.names and bool(reader.read(name).any())


def _origin(model: Imported, reader: files.Reader) -> Origin:
  """The model's origin with what is known of the files.

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
      if reader.dtype(name) not in files.DTYPES:
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


def _present(
  model: Imported, reader: files.Reader, tensor: Tensor
) -> list[str]:
  """Which of a tensor's names are in the file; with the prefix."""
  return [n for n in tensor.names if file_name(model, n) in reader.names]
