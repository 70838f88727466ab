# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's folder: config.json and tensors in safetensors files."""

import contextlib
import json
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

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
DTYPES = {'F32': jnp.float32, 'F16': jnp.float16, 'BF16': jnp.bfloat16}


class Reader:
  """The tensors of a folder, in one file or in several with an index.

  `names` are those of all tensors.
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
      index = read_json(folder, _INDEX).get('weight_map', {})
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

  def shape(self, name: str) -> tuple[int, ...]:
    """Without reading the tensor."""
    return tuple(self._files[name].get_slice(name).get_shape())

  def dtype(self, name: str) -> str:
    """In safetensors' words, e.g. `BF16`."""
    return self._files[name].get_slice(name).get_dtype()

  def read(self, name: str) -> np.ndarray:
    """The tensor in float32."""
    return np.asarray(self._files[name].get_tensor(name)).astype(np.float32)

  def _open(self, name: str) -> Any:
    path = os.path.join(self._folder, name)
    try:
      if os.path.basename(name) != name:
        raise OSError('is not in this folder')
      # NumPy alone has no bfloat16.
      return safe_open(path, framework='flax')
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
  folder: str, config: dict[str, Any], tensors: dict[str, np.ndarray]
) -> None:
  """Writes the folder's two files; each is whole or absent."""
  os.makedirs(folder, exist_ok=True)
  new = [os.path.join(folder, f'{name}.new') for name in (_SINGLE, CONFIG)]
  try:
    contiguous = {n: np.ascontiguousarray(x) for n, x in tensors.items()}
    # HF refuses files that do not name their framework.
    save_file(contiguous, new[0], metadata={'format': 'pt'})
    with open(new[1], 'w', encoding='utf-8') as f:
      f.write(json.dumps(config, indent=2) + '\n')
    for path in new:
      with open(path, 'rb') as f:
        os.fsync(f.fileno())
    for path in new:
      os.replace(path, path.removesuffix('.new'))
  finally:
    for path in new:
      with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
