# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in one .npz file."""

import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from gpt_jax.files import buckets, files


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
