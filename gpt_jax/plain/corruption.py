# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a text with spans left out, and of the spans (Raffel et al., 2019, section 3.1.4)."""

import numpy as np

from gpt_jax.plain.order import one_corpus as place
from gpt_jax.plain.recipe import (
  NOISE_RATE,
  NUM_SENTINELS,
  SEED,
  SOURCE_LENGTH,
  SPAN_LENGTH,
  TARGET_LENGTH,
  TEXT_LENGTH,
)
from gpt_jax.plain.rows import corpora
from gpt_jax.plain.schedules import shape_of
from gpt_jax.plain.tokenizer import sentencepiece_pieces
from gpt_jax.plain.types import Batch, Store


def parted(draws: np.ndarray, count: int, parts: int) -> np.ndarray:
  """Sizes of a random division of `count` things into as many parts of one or more."""
  rank = np.argsort(np.argsort(draws[: count - 1]))
  ends = np.flatnonzero(np.append(rank < parts - 1, True)) + 1
  return np.diff(ends, prepend=0)


def noise_of(draws: np.ndarray) -> np.ndarray:
  """Which tokens of a text are left out: spans of random lengths, each after a kept part, bool."""
  noise = min(max(round(TEXT_LENGTH * NOISE_RATE), 1), TEXT_LENGTH - 1)
  spans = max(round(noise / SPAN_LENGTH), 1)
  kept = parted(draws[noise:], TEXT_LENGTH - noise, spans)
  left_out = parted(draws[:noise], noise, spans)
  return np.repeat(np.tile([False, True], spans), np.stack([kept, left_out], axis=1).reshape(-1))


def without(tokens: np.ndarray, noise: np.ndarray, sentinels: list[int], eos: int) -> np.ndarray:
  """A text in which each span of noise is one sentinel, and its end."""
  first = noise & ~np.append(False, noise[:-1])
  marked = tokens.copy()
  marked[first] = sentinels[: first.sum()]
  return np.append(marked[~noise | first], eos)


def span_batch(store: Store, step: int) -> Batch:
  """Texts without their spans for the encoder, the spans for the decoder."""
  rows, length, before, tokens = shape_of(step)
  first = -(-tokens // length)
  if 'sentinels' not in store:
    pieces = sentencepiece_pieces(store['folder'])
    store['pad_id'] = pieces.index(b'<pad>')
    names = (f'<extra_id_{i}>'.encode() for i in range(NUM_SENTINELS))
    store['sentinels'] = [pieces.index(name) for name in names]
  eos, pad = store['eos_id'], store['pad_id']
  bounds = corpora(store)
  sizes = {n: (stop - start - 1) // TEXT_LENGTH for n, (start, stop) in bounds.items()}
  # All texts are equally long, and so are both sides.
  sources = np.empty((rows, SOURCE_LENGTH), np.int32)
  targets = np.empty((rows, TARGET_LENGTH), np.int32)
  for i in range(rows):
    name, row = place(store, sizes, first + i)
    start = bounds[name][0] + row * TEXT_LENGTH + 1
    tokens = store['tokens'][start : start + TEXT_LENGTH].astype(np.int32)
    # The draws of a row follow from the seed and its number in the run.
    key = np.array([SEED, before + i], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, 2]))
    noise = noise_of(generator.random(TEXT_LENGTH))
    for side, left_out in ((sources, noise), (targets, ~noise)):
      side[i] = without(tokens, left_out, store['sentinels'], eos)
  # The decoder reads the token before each target.
  inputs = np.concatenate([np.full((rows, 1), pad, np.int32), targets[:, :-1]], axis=1)
  return {'sources': sources, 'inputs': inputs, 'targets': targets}
