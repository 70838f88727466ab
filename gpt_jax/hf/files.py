# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's folder: config.json and tensors in safetensors files."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gpt_jax.data import files
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
    """Opens the files and reads their headers.

    Raises:
      UsageError: there are none, or one is damaged.
    """
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
  """Reads a JSON object.

  Raises:
    UsageError: there is none.
  """
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
