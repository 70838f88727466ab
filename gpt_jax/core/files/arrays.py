# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in one file: .npz, or .safetensors."""

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from gpt_jax.core.files import buckets, files

# How the library names an error of the system.
_OF_SYSTEM = re.compile(r'\(os error (\d+)\)')


def read(file: str | BinaryIO) -> dict[str, np.ndarray]:
  """The arrays of a file, by name.

  Raises:
    OSError: it cannot be read.
    ValueError: it is damaged.
  """
  if isinstance(file, str):
    with open(file, 'rb') as opened:  # which np.load leaves open if it fails
      return read(opened)
  try:
    with np.load(file) as arrays:
      return dict(arrays)
  except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as e:
    raise ValueError(str(e)) from e


def write(path: str, arrays: Mapping[str, Any]) -> None:
  """Replaces a file as a whole, and uploads it: see `buckets`."""
  with files.replacing(path) as temporary, open(temporary, 'wb') as file:
    np.savez(file, allow_pickle=False, **arrays)
  buckets.uploaded(path)


def write_tensors(path: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes a file for transformers over one that exists, with its mode.

  The library makes a temporary file that only its user may read.
  """
  mode = stat.S_IMODE(os.stat(path).st_mode)
  try:
    # transformers rejects files that do not name their framework.
    save_file({**tensors}, path, metadata={'format': 'pt'})
  except SafetensorError as e:
    if number := _OF_SYSTEM.search(str(e)):
      raise OSError(int(number[1]), os.strerror(int(number[1])), path) from e
    raise
  os.chmod(path, mode)
