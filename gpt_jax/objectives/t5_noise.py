# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens T5 corrupts, and what it makes of them (Raffel et al., 2019).

NumPy, on the host, all rows at once. Tokens are [B, L]; `real` says which are
no padding, which stands at the end. What is chosen is a bool array `noise`; the
functions of `released code` are those of its t5/data/preprocessors.py.
"""

from typing import Any, NamedTuple

import numpy as np


class Side(NamedTuple):
  """Tokens of one side, and which of them are kept.

  Attributes:
    tokens: int32 [B, L].
    kept: bool [B, L].
  """

  tokens: np.ndarray
  kept: np.ndarray

  def ended(
    self, width: int, *, eos_id: int, pad_id: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """The kept tokens side by side, then eos, then padding.

    A row without any has no eos either.

    Returns:
      Ids int32 [B, width], and bool [B, width], False for padding.
    """
    counts = self.kept.sum(axis=1)
    ids = np.full((len(counts), width), pad_id, np.int32)
    at = np.cumsum(self.kept, axis=1) - 1
    rows, columns = np.nonzero(self.kept)
    ids[rows, at[rows, columns]] = self.tokens[rows, columns]
    some = np.flatnonzero(counts)
    ids[some, counts[some]] = eos_id
    stops = np.where(counts > 0, counts + 1, 0)
    return ids, np.arange(width)[None] < stops[:, None]


def span_counts(length: Any, rate: float, mean: float) -> tuple[Any, Any]:
  """Tokens that are noise, and spans of them, in `length` tokens.

  As `random_spans_noise_mask`; of an int or an array of ints.
  """
  length = np.maximum(length, 2)
  noise = np.clip(np.round(length * rate), 1, length - 1)
  spans = np.maximum(np.round(noise / mean), 1)
  return noise.astype(np.int64), spans.astype(np.int64)


def random_spans(
  real: np.ndarray, draws: np.ndarray, *, rate: float, mean: float
) -> np.ndarray:
  """Spans of random lengths; bool [B, L].

  The noise is a random partition into as many parts as there are spans, and so
  are the kept tokens; the parts alternate, the first is kept, the last is noise
  (`random_spans_noise_mask`).

  Args:
    real: bool [B, L].
    draws: uniform numbers below 1, [B, L].
    rate: of the tokens that are noise.
    mean: of the lengths of spans.
  """
  num_real = real.sum(axis=1)
  noise, spans = span_counts(num_real, rate, mean)
  # Of a row of one token the second, which is noise, is cut off below.
  kept = np.maximum(num_real, 2) - noise
  # Of a whole row, so that a row's draws do not depend on the others.
  most = int(span_counts(real.shape[1], rate, mean)[0])
  kept_breaks = _breaks(draws[:, most:], kept, spans)
  noise_breaks = _breaks(draws[:, :most], noise, spans)
  return alternating(kept_breaks, noise_breaks, kept, noise) & real


def _breaks(
  draws: np.ndarray, count: np.ndarray, parts: np.ndarray
) -> np.ndarray:
  """After which of `count` items a new one of `parts` begins; bool [B, W]."""
  gaps = np.arange(draws.shape[1])[None] < count[:, None] - 1
  rank = np.argsort(np.argsort(np.where(gaps, draws, 2.0)))
  return gaps & (rank < parts[:, None] - 1)


def alternating(
  kept_breaks: np.ndarray,
  noise_breaks: np.ndarray,
  num_kept: np.ndarray,
  num_noise: np.ndarray,
) -> np.ndarray:
  """The noise of two partitions whose parts alternate; bool [B, L].

  Args:
    kept_breaks: bool [B, K], after which kept tokens a span ends.
    noise_breaks: bool [B, N], the same of noise.
    num_kept: int [B], of the K those that count.
    num_noise: int [B], of the N.
  """
  never = 2 * (kept_breaks.shape[1] + noise_breaks.shape[1])
  orders = []
  for breaks, count, is_noise in (
    (kept_breaks, num_kept, 0),
    (noise_breaks, num_noise, 1),
  ):
    span = np.cumsum(breaks, axis=1) - breaks
    inside = np.arange(breaks.shape[1])[None] < count[:, None]
    orders.append(np.where(inside, 2 * span + is_noise, never))
  order = np.sort(np.concatenate(orders, axis=1), axis=1)
  return order % 2 == 1


def independent(
  real: np.ndarray, draws: np.ndarray, *, rate: float
) -> np.ndarray:
  """`rate` of the tokens of each row, rounded, wherever they are; bool [B, L].

  The released code draws each token by itself, so that rows have more and less
  of them; here rows are of one length, and all have as many.
  """
  num_real = real.sum(axis=1)
  count = np.where(num_real, np.maximum(np.round(rate * num_real), 1), 0)
  rank = np.argsort(np.argsort(np.where(real, draws, 2.0)))
  return rank < count[:, None]


def prefix(real: np.ndarray, draw: np.ndarray) -> np.ndarray:
  """The first tokens of each row, from 1 to all but the last; bool [B, L].

  Uniform (`random_prefix_noise_mask`); of a row of one token that.

  Args:
    real: bool [B, L].
    draw: uniform below 1, [B].
  """
  most = np.maximum(real.sum(axis=1) - 1, 1)
  count = 1 + np.floor(draw * most).astype(np.int64)
  return real & (np.arange(real.shape[1])[None] < count[:, None])


def with_sentinels(
  tokens: np.ndarray,
  noise: np.ndarray,
  real: np.ndarray,
  sentinels: np.ndarray,
) -> Side:
  """Each span of noise becomes one sentinel, the next one each time.

  `noise_span_to_unique_sentinel`; of `real & ~noise` it is
  `nonnoise_span_to_unique_sentinel`.

  Args:
    tokens: int32 [B, L].
    noise: bool [B, L].
    real: bool [B, L].
    sentinels: int32 [S], at least as many as a row has spans.
  """
  noise = noise & real
  first = noise.copy()
  first[:, 1:] &= ~noise[:, :-1]
  number = np.maximum(np.cumsum(first, axis=1) - 1, 0)
  if first.any():
    tokens = np.where(first, sentinels[np.where(first, number, 0)], tokens)
  return Side(tokens, real & (~noise | first))


def masked(
  tokens: np.ndarray, noise: np.ndarray, real: np.ndarray, mask_id: int
) -> Side:
  """Each token of noise becomes the same one (`noise_token_to_sentinel`)."""
  return Side(np.where(noise, np.int32(mask_id), tokens), real)


def shuffled(tokens: np.ndarray, real: np.ndarray, draws: np.ndarray) -> Side:
  """The tokens of each row in the order of some draws, [B, L]."""
  order = np.argsort(np.where(real, draws, 2.0), axis=1, kind='stable')
  return Side(np.take_along_axis(tokens, order, axis=1), real)
