# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's unsupervised objectives (Raffel et al., 2019, tables 3, 5 and 7).

  span            random spans, each replaced by a sentinel (3.3.4)
  replace_spans   as span, but tokens are chosen independently
  drop_tokens     such tokens are dropped; they are the target
  bert_style      such tokens are masked; the whole text is the target
  mass_style      as bert_style, without random tokens
  deshuffle       the text in random order
  continuation    the first part of a text; the rest is the target (prefix LM)

Rows are cut out of a stream, long enough to fill the encoder's context,
sentinels and eos included: 568 tokens of text become 512 and 114.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np

from gpt_jax.core.objectives.base import Needs
from gpt_jax.core.ranges import Inside, Probability, number
from gpt_jax.core.rows import sides
from gpt_jax.core.rows.rows import MASKING, Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.special import num_sentinels, sentinel
from gpt_jax.papers.transformer.seq2seq import EncoderDecoder

# Choosing and replacing noise; NumPy, on the host, all rows at once.
#
# Tokens are [B, L]; `real` is False for padding, which comes last; `noise` is
# True for chosen tokens. Functions in parentheses are those of the released
# code, in its t5/data/preprocessors.py.


class Side(NamedTuple):
  """The tokens of one side, and which of them are kept.

  Attributes:
    tokens: int32 [B, L].
    kept: bool [B, L].
  """

  tokens: np.ndarray
  kept: np.ndarray

  def ended(self, width: int, *, eos_id: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """The kept tokens without gaps, then eos, then padding.

    A row without kept tokens has no eos either.

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
  """Numbers of noise tokens and of noise spans in `length` tokens.

  As in `random_spans_noise_mask`; for an int or an array of ints.
  """
  length = np.maximum(length, 2)
  noise = np.clip(np.round(length * rate), 1, length - 1)
  spans = np.maximum(np.round(noise / mean), 1)
  return noise.astype(np.int64), spans.astype(np.int64)


def random_spans(real: np.ndarray, draws: np.ndarray, *, rate: float, mean: float) -> np.ndarray:
  """Noise in spans of random lengths; bool [B, L].

  Noise tokens and kept tokens are each divided at random into as many parts as
  there are spans; the parts alternate, from a kept one to a noise span
  (`random_spans_noise_mask`).

  Args:
    real: bool [B, L].
    draws: uniform numbers below 1, [B, L].
    rate: fraction of the tokens that are noise.
    mean: mean span length.
  """
  num_real = real.sum(axis=1)
  noise, spans = span_counts(num_real, rate, mean)
  # A row of one token counts as two; `& real` removes the second, its noise.
  kept = np.maximum(num_real, 2) - noise
  # Computed for a full row, so that a row's draws do not depend on others.
  most = int(span_counts(real.shape[1], rate, mean)[0])
  kept_breaks = _breaks(draws[:, most:], kept, spans)
  noise_breaks = _breaks(draws[:, :most], noise, spans)
  return alternating(kept_breaks, noise_breaks, kept, noise) & real


def _breaks(draws: np.ndarray, count: np.ndarray, parts: np.ndarray) -> np.ndarray:
  """After which of `count` items a new part begins; bool [B, W]."""
  gaps = np.arange(draws.shape[1])[None] < count[:, None] - 1
  rank = np.argsort(np.argsort(np.where(gaps, draws, 2.0)))
  return gaps & (rank < parts[:, None] - 1)


def alternating(
  kept_breaks: np.ndarray, noise_breaks: np.ndarray, num_kept: np.ndarray, num_noise: np.ndarray
) -> np.ndarray:
  """Noise made of two partitions whose parts alternate; bool [B, L].

  Args:
    kept_breaks: bool [B, K], after which kept tokens a span ends.
    noise_breaks: bool [B, N], after which noise tokens a span ends.
    num_kept: int [B], number of kept tokens, at most K.
    num_noise: int [B], number of noise tokens, at most N.
  """
  never = 2 * (kept_breaks.shape[1] + noise_breaks.shape[1])
  orders = []
  for breaks, count, is_noise in ((kept_breaks, num_kept, 0), (noise_breaks, num_noise, 1)):
    span = np.cumsum(breaks, axis=1) - breaks
    inside = np.arange(breaks.shape[1])[None] < count[:, None]
    orders.append(np.where(inside, 2 * span + is_noise, never))
  order = np.sort(np.concatenate(orders, axis=1), axis=1)
  return order % 2 == 1


def independent(real: np.ndarray, draws: np.ndarray, *, rate: float) -> np.ndarray:
  """Chooses `rate` of each row's tokens, at any positions; bool [B, L].

  The released code draws each token independently, so that the number varies;
  here it is the rounded mean, so that rows of one length have equally many.
  """
  num_real = real.sum(axis=1)
  count = np.where(num_real, np.maximum(np.round(rate * num_real), 1), 0)
  rank = np.argsort(np.argsort(np.where(real, draws, 2.0)))
  return rank < count[:, None]


def prefix(real: np.ndarray, draw: np.ndarray) -> np.ndarray:
  """The first tokens of each row, from 1 to all but the last; bool [B, L].

  Their number is uniform (`random_prefix_noise_mask`), and 1 in a row of one.

  Args:
    real: bool [B, L].
    draw: uniform below 1, [B].
  """
  most = np.maximum(real.sum(axis=1) - 1, 1)
  count = 1 + np.floor(draw * most).astype(np.int64)
  return real & (np.arange(real.shape[1])[None] < count[:, None])


def with_sentinels(
  tokens: np.ndarray, noise: np.ndarray, real: np.ndarray, sentinels: np.ndarray
) -> Side:
  """Replaces the spans of noise by sentinels 0, 1, 2, ...

  As `noise_span_to_unique_sentinel`; with `real & ~noise` as noise, as
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


def masked(tokens: np.ndarray, noise: np.ndarray, real: np.ndarray, mask_id: int) -> Side:
  """Replaces each noise token by `mask_id` (`noise_token_to_sentinel`)."""
  return Side(np.where(noise, np.int32(mask_id), tokens), real)


def shuffled(tokens: np.ndarray, real: np.ndarray, draws: np.ndarray) -> Side:
  """Sorts the tokens of each row by their draws, [B, L]."""
  order = np.argsort(np.where(real, draws, 2.0), axis=1, kind='stable')
  return Side(np.take_along_axis(tokens, order, axis=1), real)


# Sentinels, the tokens that replace spans: T5's <extra_id_0>, <extra_id_1>, ...
# In T5's vocabulary the first one has the highest id.


def sentinel_ids(names: Mapping[str, int]) -> list[int]:
  """The ids of the sentinels among a tokenizer's special tokens, in order."""
  return [names[sentinel(i)] for i in range(num_sentinels(names))]


Mean = Annotated[float, number(1)]


class Text(NamedTuple):
  """Rows of text, and the random draws for them.

  Attributes:
    tokens: int32 [B, L].
    real: bool [B, L], False for padding.
    draws: uniform below 1, [2, B, L].
    sentinels: int32 [S].
  """

  tokens: np.ndarray
  real: np.ndarray
  draws: np.ndarray
  sentinels: np.ndarray
  vocab_size: int

  def replaced(self, noise: np.ndarray) -> tuple[Side, Side]:
    """Source with sentinels for noise, target with sentinels for the rest."""

    def without(noise: np.ndarray) -> Side:
      return with_sentinels(self.tokens, noise, self.real, self.sentinels)

    return without(noise), without(self.real & ~noise)

  def chosen(self, rate: float) -> np.ndarray:
    """Tokens chosen independently of each other; bool [B, L]."""
    return independent(self.real, self.draws[0], rate=rate)

  @property
  def whole(self) -> Side:
    """The whole text."""
    return Side(self.tokens, self.real)


class T5(EncoderDecoder):
  """Corrupts texts for an encoder-decoder that restores them."""

  @property
  def even(self) -> bool:
    """Whether to drop a token of text if its target would be too long.

    As in the released code.
    """
    return False

  @abc.abstractmethod
  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Source and target of a text, without eos."""

  def sizes(self, length: int) -> tuple[int, int]:
    """Most tokens of source and target, eos included; non-decreasing.

    By default both are as long as the text.

    Args:
      length: tokens of text.
    """
    return length + 1, length + 1

  def num_sentinels(self, length: int) -> int:
    """The most sentinels that a text of `length` tokens needs."""
    del length
    return 0

  @property
  def needs(self) -> Needs:
    """An encoder-decoder, and enough text to fill the encoder's context."""
    return Needs(
      encoder=True,
      decoder_start=self.start,
      rows=('stream',),
      text_length=self.text_length,
      target_length=lambda n: self.sizes(self.text_length(n))[1],
      sentinels=lambda n: self.num_sentinels(self.text_length(n)),
    )

  def text_length(self, context: int) -> int:
    """The most tokens of text whose source fits the context; at least 2."""
    low, high = 2, 4
    while self.sizes(high)[0] <= context:
      low, high = high, 2 * high
    while high - low > 1:
      middle = (low + high) // 2
      fits = self.sizes(middle)[0] <= context
      low, high = (middle, high) if fits else (low, middle)
    return low - 1 if self.even and self.sizes(low)[1] > context else low

  def check(self) -> None:
    """Rejects a context that is too short for any text."""
    context = self.model.context_length
    if self.sizes(self.text_length(context))[0] > context:
      raise UsageError(
        f'model.context_length={context}: too short for a text, what stands '
        'for its noise and its end; give 3 or more'
      )
    super().check()

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Sources and targets; without a tokenizer, rows must be blank."""
    L, tokenizer = rows.tokens.shape[1], self.tokenizer
    if tokenizer is None:
      assert not rows.real.any(), 'rows of text need their tokenizer'
      ends, ids, vocab_size = {'eos_id': 0, 'pad_id': 0}, [0], 1
    else:
      special = tokenizer.special
      ends = {'eos_id': special.eos_id, 'pad_id': special.pad_id}
      ids, vocab_size = sentinel_ids(special.names), tokenizer.vocab_size
    draws = [g.random((2, L)) for g in keys.generators(MASKING)]
    text = Text(
      rows.tokens, rows.real, np.stack(draws, axis=1), np.array(ids, np.int32), vocab_size
    )
    both = zip(self.corrupt(text), self.sizes(L), strict=True)
    (sources, source_mask), (targets, real) = (side.ended(width, **ends) for side, width in both)
    return {
      'sources': sources,
      'source_mask': source_mask,
      'inputs': sides.decoder_inputs(targets, self.first_id),
      'targets': targets,
      'weights': real.astype(np.float32),
    }


@dataclass(frozen=True)
class Span(T5):
  """Sentinels replace random spans; the target lists what they replaced.

  Attributes:
    rate: fraction of the tokens that are noise.
    length: mean span length.
    start: see `EncoderDecoder`.
  """

  rate: Inside = 0.15
  length: Mean = 3.0
  start: sides.Start = 'pad'

  @property
  def even(self) -> bool:
    """Whether half of the tokens are noise."""
    return self.rate == 0.5

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Replaces random spans by sentinels."""
    noise = random_spans(text.real, text.draws[0], rate=self.rate, mean=self.length)
    return text.replaced(noise)

  def sizes(self, length: int) -> tuple[int, int]:
    """Either side has a sentinel for each span."""
    noise, spans = map(int, span_counts(length, self.rate, self.length))
    return max(length, 2) - noise + spans + 1, noise + spans + 1

  def num_sentinels(self, length: int) -> int:
    """One for each span."""
    return int(span_counts(length, self.rate, self.length)[1])


@dataclass(frozen=True)
class ReplaceSpans(T5):
  """As `span`, with tokens chosen independently of each other."""

  rate: Inside = 0.15
  start: sides.Start = 'pad'

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Replaces runs of chosen tokens by sentinels."""
    return text.replaced(text.chosen(self.rate))

  def _spans(self, length: int) -> tuple[int, int]:
    """The most runs of noise, and of kept tokens."""
    # Runs of either kind can be at both ends, if there are enough tokens.
    noise = _count(length, self.rate)
    kept = length - noise
    return min(noise, kept + 1), min(noise + 1, kept)

  def sizes(self, length: int) -> tuple[int, int]:
    """Either side has a sentinel for each run."""
    noise, (of_noise, of_kept) = _count(length, self.rate), self._spans(length)
    return length - noise + of_noise + 1, noise + of_kept + 1

  def num_sentinels(self, length: int) -> int:
    """The sentinels of the side that has more."""
    return max(self._spans(length))


@dataclass(frozen=True)
class DropTokens(T5):
  """Tokens chosen independently are dropped, and are the target."""

  rate: Inside = 0.15
  start: sides.Start = 'pad'

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Kept tokens, and dropped tokens."""
    noise = text.chosen(self.rate)
    return (Side(text.tokens, text.real & ~noise), Side(text.tokens, text.real & noise))

  def sizes(self, length: int) -> tuple[int, int]:
    """Source and target add up to the text."""
    noise = _count(length, self.rate)
    return length - noise + 1, noise + 1


@dataclass(frozen=True)
class BertStyle(T5):
  """The first sentinel or random tokens replace noise; the text is the target.

  Attributes:
    rate: fraction of the tokens that are noise.
    random: fraction of the noise that becomes a token of the vocabulary.
  """

  rate: Inside = 0.15
  random: Probability = 0.1
  start: sides.Start = 'pad'

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Masks the source; the target is the text."""
    noise, fate = text.chosen(self.rate), text.draws[1]
    source = masked(text.tokens, noise, text.real, text.sentinels[0])
    chosen = noise & (fate < self.random)
    # A uniform draw that is below a bound is uniform up to the bound.
    drawn = np.floor(fate[chosen] / self.random * text.vocab_size)
    source.tokens[chosen] = drawn.astype(np.int32)
    return source, text.whole

  def num_sentinels(self, length: int) -> int:
    """One: the first sentinel serves as [MASK]."""
    del length
    return 1


@dataclass(frozen=True)
class MassStyle(BertStyle):
  """As `bert_style`, without random tokens (3.3.2)."""

  random: Probability = field(default=0.0, init=False)


@dataclass(frozen=True)
class Deshuffle(T5):
  """The tokens of a text in a random order; the target is the text."""

  start: sides.Start = 'pad'

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """Shuffles the source."""
    return shuffled(text.tokens, text.real, text.draws[0]), text.whole


@dataclass(frozen=True)
class Continuation(T5):
  """The text is divided at a random position; the rest is the target."""

  start: sides.Start = 'pad'

  def corrupt(self, text: Text) -> tuple[Side, Side]:
    """The first part of the text, and the rest."""
    first = prefix(text.real, text.draws[0, :, 0])
    return Side(text.tokens, first), Side(text.tokens, text.real & ~first)

  def sizes(self, length: int) -> tuple[int, int]:
    """Source and target can each be the text but one token."""
    return length, length


def _count(length: int, rate: float) -> int:
  """Number of tokens that `independent` chooses of `length`."""
  return max(int(np.round(rate * length)), 1)
