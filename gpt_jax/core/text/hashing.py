# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hashes of 64 bits: of texts, and of numbers one after the other."""

import hashlib

import numpy as np

from gpt_jax.core.files.document import encoded

# Spreads numbers over 64 bits: odd, so that no two become one.
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def of_text(text: str) -> int:
  """A hash of a text."""
  digest = hashlib.blake2b(digest_size=8)
  for piece in encoded(text):
    digest.update(piece)
  return int.from_bytes(digest.digest(), 'little')


def of_runs(numbers: np.ndarray, n: int) -> np.ndarray:
  """A hash of each n consecutive numbers: uint64 [max(N - n + 1, 0)]."""
  numbers = numbers.astype(np.uint64)
  total = np.zeros(max(len(numbers) - n + 1, 0), np.uint64)
  for i in range(n):
    total = _folded(total * FACTOR + numbers[i : i + len(total)])
  return total


def of_columns(first: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """A hash of each row of a table: uint64 [N].

  Args:
    first: uint64 [N], comes before the columns.
    columns: of numbers, [C, N].
  """
  for column in columns:
    first = _folded((first ^ column) * FACTOR)
  return first


def _folded(numbers: np.ndarray) -> np.ndarray:
  return numbers ^ (numbers >> np.uint64(29))
