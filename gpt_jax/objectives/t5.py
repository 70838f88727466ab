# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""T5's objectives without labels (Raffel et al., 2019, tables 3, 5 and 7).

  span            random spans, of which each becomes a sentinel (3.3.4)
  replace_spans   the same of tokens chosen one by one
  drop_tokens     these are left out instead
  bert_style      they are masked, and all of the text is written
  mass_style      the same, with no random tokens
  deshuffle       the text out of order
  continuation    the first part of a text; the rest is written (prefix LM)

Rows are cut out of a stream, so long that the encoder gets as many tokens as
its context, sentinels and end included: 568 of text are 512 and 114.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from gpt_jax.data import sides
from gpt_jax.data.rows import MASKING, Keys, Rows
from gpt_jax.data.tokenizers.special import Special
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import encoder_decoder, t5_noise
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.objectives.sentinels import sentinel_ids
from gpt_jax.objectives.seq2seq import check_start
from gpt_jax.objectives.t5_noise import Side
from gpt_jax.ranges import Inside, Probability, number
from gpt_jax.spec import UsageError

Mean = Annotated[float, number(1)]


class Text(NamedTuple):
  """Rows, and what is drawn for them.

  Attributes:
    tokens: int32 [B, L].
    real: bool [B, L], False for padding.
    draws: uniform below 1, [2, B, L].
    sentinels: int32 [S].
    vocab_size: of the tokenizer.
  """

  tokens: np.ndarray
  real: np.ndarray
  draws: np.ndarray
  sentinels: np.ndarray
  vocab_size: int

  def replaced(self, noise: np.ndarray) -> tuple[Side, Side]:
    """Sentinels for the noise, and for what is kept in the other side."""
    rest = self.tokens, self.real, self.sentinels
    tokens, *others = rest
    return (
      t5_noise.with_sentinels(tokens, noise, *others),
      t5_noise.with_sentinels(tokens, self.real & ~noise, *others),
    )

  @property
  def whole(self) -> Side:
    """All of it."""
    return Side(self.tokens, self.real)


class Noise(NamedTuple):
  """An objective of T5's.

  Attributes:
    corrupt: of a text the source and the target, without their ends.
    sizes: of tokens of text, those of source and target at most, ends included;
      neither ever falls.
    sentinels: of tokens of text, how many at most.
  """

  corrupt: Callable[[Text], tuple[Side, Side]]
  sizes: Callable[[int], tuple[int, int]]
  sentinels: Callable[[int], int]


def span(
  rate: Inside = 0.15, length: Mean = 3.0, start: str = 'pad'
) -> Declared:
  """Random spans become sentinels, and the target has what they stand for.

  Args:
    rate: of the tokens that are noise.
    length: of a span, on average.
    start: see `seq2seq.seq2seq`.
  """

  def corrupt(text: Text) -> tuple[Side, Side]:
    noise = t5_noise.random_spans(
      text.real, text.draws[0], rate=rate, mean=length
    )
    return text.replaced(noise)

  def spans(n: int) -> int:
    return int(t5_noise.span_counts(n, rate, length)[1])

  def sizes(n: int) -> tuple[int, int]:
    noise, number = map(int, t5_noise.span_counts(n, rate, length))
    return max(n, 2) - noise + number + 1, noise + number + 1

  return _declared(Noise(corrupt, sizes, spans), start, even=rate == 0.5)


def replace_spans(rate: Inside = 0.15, start: str = 'pad') -> Declared:
  """As `span`, of tokens that are chosen one by one."""

  def corrupt(text: Text) -> tuple[Side, Side]:
    return text.replaced(_independent(text, rate))

  def spans(n: int) -> tuple[int, int]:
    # Either may stand at both ends, where there is enough of it.
    noise, kept = _count(n, rate), n - _count(n, rate)
    return min(noise, kept + 1), min(noise + 1, kept)

  def sizes(n: int) -> tuple[int, int]:
    noise, (of_noise, of_kept) = _count(n, rate), spans(n)
    return n - noise + of_noise + 1, noise + of_kept + 1

  return _declared(Noise(corrupt, sizes, lambda n: max(spans(n))), start)


def drop_tokens(rate: Inside = 0.15, start: str = 'pad') -> Declared:
  """Tokens are left out, one by one, and the target is these."""

  def corrupt(text: Text) -> tuple[Side, Side]:
    noise = _independent(text, rate)
    return (
      Side(text.tokens, text.real & ~noise),
      Side(text.tokens, text.real & noise),
    )

  def sizes(n: int) -> tuple[int, int]:
    noise = _count(n, rate)
    return n - noise + 1, noise + 1

  return _declared(Noise(corrupt, sizes, lambda n: 0), start)


def bert_style(
  rate: Inside = 0.15, random: Probability = 0.1, start: str = 'pad'
) -> Declared:
  """Tokens become the first sentinel, or random ones; all is the target.

  Args:
    rate: of the tokens that are noise.
    random: of these, that become a token drawn from the vocabulary.
    start: see `seq2seq.seq2seq`.
  """

  def corrupt(text: Text) -> tuple[Side, Side]:
    noise, fate = _independent(text, rate), text.draws[1]
    source = t5_noise.masked(text.tokens, noise, text.real, text.sentinels[0])
    chosen = noise & (fate < random)
    # What is below a bound is uniform up to it.
    drawn = np.floor(fate[chosen] / random * text.vocab_size)
    source.tokens[chosen] = drawn.astype(np.int32)
    return source, text.whole

  return _declared(Noise(corrupt, _as_long, lambda n: 1), start)


def mass_style(rate: Inside = 0.15, start: str = 'pad') -> Declared:
  """As `bert_style`, of which none becomes a random token (3.3.2)."""
  return bert_style(rate, 0.0, start)


def deshuffle(start: str = 'pad') -> Declared:
  """The tokens of a text in a random order; the target is the text."""

  def corrupt(text: Text) -> tuple[Side, Side]:
    source = t5_noise.shuffled(text.tokens, text.real, text.draws[0])
    return source, text.whole

  return _declared(Noise(corrupt, _as_long, lambda n: 0), start)


def continuation(start: str = 'pad') -> Declared:
  """A text is parted anywhere; the target is what follows (prefix LM)."""

  def corrupt(text: Text) -> tuple[Side, Side]:
    first = t5_noise.prefix(text.real, text.draws[0, :, 0])
    return Side(text.tokens, first), Side(text.tokens, text.real & ~first)

  # The longest source leaves a token, and the longest target too.
  return _declared(Noise(corrupt, lambda n: (n, n), lambda n: 0), start)


def _independent(text: Text, rate: float) -> np.ndarray:
  return t5_noise.independent(text.real, text.draws[0], rate=rate)


def _count(n: int, rate: float) -> int:
  """See `t5_noise.independent`."""
  return max(int(np.round(rate * n)), 1)


def _as_long(n: int) -> tuple[int, int]:
  return n + 1, n + 1


def _declared(noise: Noise, start: str, *, even: bool = False) -> Declared:
  """The objective; `even`: see `_longest`."""
  check_start(start)

  def text_length(context: int) -> int:
    return _longest(noise.sizes, context, even)

  def target_length(context: int) -> int:
    return noise.sizes(text_length(context))[1]

  def sentinels(context: int) -> int:
    return noise.sentinels(text_length(context))

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    context = model.context_length
    if noise.sizes(text_length(context))[0] > context:
      raise UsageError(
        f'model.context_length={context}: too short for a text, what stands '
        'for its noise and its end; give 3 or more'
      )

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      return _batch(noise, rows, keys, tokenizer, start)

    return encoder_decoder.objective(model, make_batch)

  needs = Needs(
    attention='causal',
    encoder=True,
    starts=start,
    rows=('stream',),
    text_length=text_length,
    target_length=target_length,
    sentinels=sentinels,
  )
  return Declared(needs, build)


def _longest(
  sizes: Callable[[int], tuple[int, int]], context: int, even: bool
) -> int:
  """The most tokens of text whose source fits a context; 2 at least.

  With `even`, as in the released code, one less where the target would be
  longer than the source.
  """
  low, high = 2, 4
  while sizes(high)[0] <= context:
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if sizes(middle)[0] <= context else (low, middle)
  return low - 1 if even and sizes(low)[1] > context else low


def _batch(
  noise: Noise,
  rows: Rows,
  keys: Keys,
  tokenizer: Tokenizer | None,
  start: str,
) -> dict[str, np.ndarray]:
  """See `Objective.make_batch`; without a tokenizer of empty rows alone."""
  L = rows.tokens.shape[1]
  if tokenizer is None:
    assert not rows.real.any(), 'rows of text need their tokenizer'
    ends, first, ids, vocab_size = {'eos_id': 0, 'pad_id': 0}, 0, [0], 1
  else:
    special: Special = tokenizer.special
    ends = {'eos_id': special.eos_id, 'pad_id': special.pad_id}
    first, vocab_size = sides.start_id(start, special), tokenizer.vocab_size
    ids = sentinel_ids(special.names)
  draws = np.stack([g.random((2, L)) for g in keys.generators(MASKING)], axis=1)
  text = Text(
    *(rows.tokens, rows.real, draws, np.array(ids, np.int32), vocab_size)
  )
  both = zip(noise.corrupt(text), noise.sizes(L), strict=True)
  (sources, source_mask), (targets, real) = (
    side.ended(width, **ends) for side, width in both
  )
  return {
    'sources': sources,
    'source_mask': source_mask,
    'inputs': sides.decoder_inputs(targets, first),
    'targets': targets,
    'weights': real.astype(np.float32),
  }


OBJECTIVES = {
  'span': span,
  'replace_spans': replace_spans,
  'drop_tokens': drop_tokens,
  'bert_style': bert_style,
  'mass_style': mass_style,
  'deshuffle': deshuffle,
  'continuation': continuation,
}
