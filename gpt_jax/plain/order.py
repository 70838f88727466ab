# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of the rows: which row of the corpus is row i of the run, in closed form."""

import functools
import hashlib
from typing import Any

import numpy as np

from gpt_jax.plain.recipe import ORDER, SEED, SHARES_OF_TOKENS, WEIGHTS
from gpt_jax.plain.types import Store

BLOCK = 10_000  # rows in which each corpus has its share


@functools.cache
def round_keys(seed: int) -> list[int]:
  """Twelve numbers of 32 bits from a seed, as in gpt_jax: C++'s std::seed_seq."""
  low, n = 2**32 - 1, 12
  b = [0x8B8B8B8B] * n
  for k in range(2 * n):
    i, middle, far = k % n, (k + 4) % n, (k + 7) % n
    if k < n:
      x = b[i] ^ b[middle] ^ b[i - 1]
      x = 1664525 * (x ^ x >> 27)
      y = x + (seed + k if k == 1 else max(k, 1))
      b[middle], b[far], b[i] = (b[middle] + x) & low, (b[far] + y) & low, y & low
    else:
      x = (b[i] + b[middle] + b[i - 1]) & low
      x = 1566083941 * (x ^ x >> 27)
      y = x - i
      b[middle], b[far], b[i] = b[middle] ^ x & low, b[far] ^ y & low, y & low
  return b


def enciphered(x: Any, name: str, bits: int) -> Any:
  """Numbers of 2 `bits` bits, permuted by the block cipher Simon (Beaulieu et al., 2013)."""
  digest, low = hashlib.sha256(name.encode()).digest(), 2**bits - 1
  left, right = x >> bits, x & low
  for key in round_keys(int.from_bytes(digest[:4], 'little')):
    once, twice, eight = (right << r | right >> (bits - r) for r in (1, 2, 8))
    left, right = right, (left ^ once & eight ^ twice ^ key) & low
  return left << bits | right


@functools.lru_cache(maxsize=8)
def all_enciphered(name: str) -> list[int]:
  """What becomes of all numbers of 16 bits: a corpus of few rows takes most of them."""
  return enciphered(np.arange(2**16), name, 8).tolist()


def shuffled(index: int, size: int, name: str) -> int:
  """Entry `index` of an order of `size` rows that has no end: each epoch permutes them anew.

  No permutation is stored: a cipher is applied until its result is below the size.
  """
  epoch, index = divmod(index, size)
  name, bits = f'{name}/{epoch}', max((size - 1).bit_length() + 1, 16) // 2
  while True:
    index = all_enciphered(name)[index] if bits == 8 else enciphered(index, name, bits)
    if index < size:
      return index


def one_corpus(store: Store, sizes: dict[str, int], index: int) -> tuple[str, int]:
  """The corpus and the row that the run reads at place `index`; there is one corpus."""
  return '', shuffled(index, sizes[''], ORDER)


def mixture(store: Store, sizes: dict[str, int], index: int) -> tuple[str, int]:
  """Row `index` of the run: its corpus and row. Each corpus has an order of its own."""
  names, counts = sorted(sizes), rows_of_block(store, tuple(sorted(sizes.items())))
  block, slot = divmod(index, BLOCK)
  sources, ranks = block_order(block, counts)
  name = names[sources[slot]]
  draw = block * counts[sources[slot]] + int(ranks[slot])
  return name, shuffled(draw, sizes[name], f'{SEED}/{name}')


def rows_of_block(store: Store, sizes: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
  """Rows of each corpus in a block: the largest remainders are rounded up."""
  shares = dict(WEIGHTS)
  if SHARES_OF_TOKENS:
    # Rows are padded, and weights are shares of the tokens in them.
    shares = {n: w / store['row_tokens'][n] * dict(sizes)[n] for n, w in shares.items()}
    shares = {n: w / sum(shares.values()) for n, w in shares.items()}
  exact = np.array([shares.get(name, 0.0) for name, _ in sizes]) * BLOCK
  counts = np.floor(exact + 1e-6).astype(np.int64)
  counts[np.argsort(counts - exact, kind='stable')[: BLOCK - int(counts.sum())]] += 1
  return tuple(counts.tolist())


@functools.lru_cache(maxsize=8)
def block_order(block: int, counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """The corpus of each row of a block, and its rank among the rows of that corpus."""
  digest = hashlib.blake2b(f'{SEED}/0/{block}'.encode(), digest_size=16).digest()
  bits = np.random.Philox(key=int.from_bytes(digest, 'little')).random_raw(BLOCK)
  sources = np.repeat(np.arange(len(counts)), counts)
  ranks = np.concatenate([np.arange(count) for count in counts])
  # Each corpus is spread evenly, every row at a random place in its part of the block.
  order = np.argsort((ranks + bits / 2.0**64) / np.array(counts)[sources], kind='stable')
  return sources[order], ranks[order]
