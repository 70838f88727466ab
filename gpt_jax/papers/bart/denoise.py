# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Restoring corrupted texts: BART (section 2), and MASS's hidden spans.

  L = -sum_t log P(x_t | x_<t, noise(x))

  objective.name = "denoise('permute, infill(0.3, 3)')"

The encoder reads the corrupted row; the decoder writes the whole original row,
<s> and </s> included, and starts with </s>. Each document of a row is corrupted
separately, and the special tokens between them stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from gpt_jax.core import ranges, spec
from gpt_jax.core.objectives.base import Needs
from gpt_jax.core.ranges import Fraction, Probability
from gpt_jax.core.rows import sides
from gpt_jax.core.rows.rows import MASKING, Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.papers.bert.masked import Masking, check_shares
from gpt_jax.papers.transformer.seq2seq import EncoderDecoder

# MASS (Song et al., 2019): the decoder writes a hidden span of the text.
#
# L = -sum_{t=u}^{v} log P(x_t | x_{u..t-1}, x without x_{u..v})   (equation 1)
#
# The encoder reads the text with k consecutive tokens hidden; the decoder
# predicts them, reading the token before each one at its position in the text.
# k = 1 is a masked language model of one token; with all tokens but the first
# hidden it is a causal one with an uninformative source.
#
# As in the released code, the span is at the front of the text, at its end or
# anywhere. The first token, [CLS], is never hidden; instead of it the decoder
# reads its start token.


# Fractions of rows whose span is at the front, and at the end.
FRONT, END = 0.2, 0.2
# Shorter rows have no loss (the released code leaves such texts out).
LEAST = 5


@dataclass(frozen=True)
class Mass(EncoderDecoder):
  """MASS's pre-training.

  Attributes:
    rate: round(rate n) of a row's n tokens, including [CLS] and [SEP], are
      hidden: at least 1, at most all but [CLS].
    mask: fraction of the hidden tokens that the encoder reads as [MASK].
    random: fraction that it reads as a random token. The rest is unchanged.
    start: see `EncoderDecoder`.
  """

  rate: Probability = 0.5
  mask: Probability = 0.8
  random: Probability = 0.1
  start: sides.Start = 'eos'

  def __post_init__(self):
    """Checks that `mask` and `random` are at most 1 in sum."""
    check_shares(self.mask, self.random)

  @property
  def needs(self) -> Needs:
    """An encoder-decoder, a [MASK] and sentences."""
    return Needs(
      encoder=True,
      decoder_start=self.start,
      target_length=lambda n: int(_num_hidden(np.array(n), self.rate)),
      rows=('sentences',),
      tokens=('mask',),
    )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Rows with a hidden span, see `mass_batch`."""
    masking = Masking(self.rate, self.mask, self.random)
    masking = masking.known_to(self.tokenizer)
    return mass_batch(rows, keys, masking, self.first_id)


def _num_hidden(lengths: np.ndarray, rate: float) -> np.ndarray:
  """Number of hidden tokens in rows of these lengths."""
  wanted = np.round(rate * lengths).astype(np.int64)
  return np.minimum(np.maximum(wanted, 1), np.maximum(lengths - 1, 1))


def mass_batch(rows: Rows, keys: Keys, masking: Masking, first_id: int) -> dict[str, np.ndarray]:
  """Hides a span of each row, for an encoder-decoder: see `seq2seq`.

  Args:
    rows: B rows of L tokens, of which the first is never hidden.
    masking: gives the rate, and replaces hidden tokens.
    first_id: replaces a row's first token in the decoder's input.

  Returns:
    A batch as in `seq2seq`, plus `positions` int32 [B, P]: each decoder
    input's position in the row.
  """
  L = rows.tokens.shape[1]
  P = int(_num_hidden(np.array(L), masking.rate))
  draws = np.stack([g.random(2 + 2 * P) for g in keys.generators(MASKING)])
  which_B, where_B = draws[:, 0], draws[:, 1]
  fate_BP, token_BP = draws[:, 2 : 2 + P], draws[:, 2 + P :]
  length_B = rows.real.sum(axis=1)
  count_B = _num_hidden(length_B, masking.rate)
  count_B = np.where(length_B < LEAST, 0, count_B)
  # The last position where the span can begin.
  last_B = np.maximum(length_B - count_B, 1)
  begin_B = 1 + (where_B * last_B).astype(np.int64)
  begin_B = np.where(which_B < FRONT + END, last_B, begin_B)
  begin_B = np.where(which_B < FRONT, 1, begin_B)
  # Targets past the span are padding: their positions do not matter.
  at_BP = np.minimum(begin_B[:, None] + np.arange(P), L - 1)
  hidden_BP = np.arange(P) < count_B[:, None]
  targets_BP = np.take_along_axis(rows.tokens, at_BP, axis=1)
  new_BP = masking.replaced(targets_BP, fate_BP, token_BP)
  sources_BL = rows.tokens.copy()
  index, nth = np.nonzero(hidden_BP)
  sources_BL[index, at_BP[index, nth]] = new_BP[index, nth]
  inputs_BP = np.take_along_axis(rows.tokens, at_BP - 1, axis=1)
  return {
    'sources': sources_BL,
    'source_mask': rows.real,
    'inputs': np.where(at_BP == 1, np.int32(first_id), inputs_BP),
    'targets': targets_BP,
    'weights': hidden_BP.astype(np.float32),
    'positions': (at_BP - 1).astype(np.int32),
  }


# BART's corruptions (Lewis et al., 2019, section 2.2).
#
# Each corruption is a pair: a deterministic function, which returns the indices
# of the remaining tokens in their new order, with `MASK` for each [MASK]; and a
# step, which draws that function's arguments. Steps can be combined in any
# order. NumPy, on the host.


# Instead of a token's index.
MASK = -1


class Piece(NamedTuple):
  """A text, possibly corrupted.

  Attributes:
    ids: int32 [N].
    starts: bool [N], which tokens begin a word.
  """

  ids: np.ndarray
  starts: np.ndarray


class Vocabulary(NamedTuple):
  """The parts of the tokenizer that steps use.

  Attributes:
    stop_id: the full stop, which ends a sentence; None if there is none.
  """

  size: int
  mask_id: int
  stop_id: int | None


Step = Callable[[Piece, np.random.Generator, Vocabulary], Piece]


def masked(count: int, positions: np.ndarray) -> np.ndarray:
  """Token masking: the tokens at `positions` become [MASK]."""
  index = np.arange(count)
  index[positions] = MASK
  return index


def deleted(count: int, positions: np.ndarray) -> np.ndarray:
  """Token deletion: the tokens at `positions` leave no trace."""
  return np.delete(np.arange(count), positions)


def infilled(count: int, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Text infilling: each span becomes one [MASK], whatever its length.

  Args:
    count: number of tokens.
    starts: int [S], starts of spans that do not overlap.
    lengths: int [S]; 0 inserts a [MASK] before the token at the start.
  """
  change = np.zeros(count + 1, np.int64)
  np.add.at(change, starts, 1)
  np.add.at(change, starts + lengths, -1)
  kept = np.flatnonzero(np.cumsum(change[:-1]) == 0)
  index = np.concatenate([np.full(len(starts), MASK), kept])
  # A [MASK] precedes the token at the same place.
  places = np.concatenate([2 * starts, 2 * kept + 1])
  return index[np.argsort(places, kind='stable')]


def permuted(ends: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Sentence permutation.

  Args:
    ends: int [S], exclusive end of each sentence; the last is the text's.
    order: int [S], which sentence comes first, second, ...
  """
  sentences = np.split(np.arange(int(ends[-1])), ends[:-1])
  return np.concatenate([sentences[i] for i in order])


def rotated(count: int, offset: int) -> np.ndarray:
  """Document rotation: the token at `offset` comes first."""
  return np.roll(np.arange(count), -offset)


def span_lengths(draws: np.ndarray, budget: int) -> np.ndarray:
  """Takes draws in turn until they cover the budget; the last one is cut.

  Raises:
    ValueError: if all draws do not cover the budget.
  """
  covered = np.cumsum(draws)
  last = int(np.searchsorted(covered, budget))
  if last == len(draws):
    raise ValueError(f'{covered[-1:]} of {budget} are covered')
  lengths = np.array(draws[: last + 1])
  lengths[last] -= covered[last] - budget
  return lengths


def sentence_ends(ids: np.ndarray, stop_id: int) -> np.ndarray:
  """Sentence ends: after a full stop that does not follow another one.

  As in the released code; the last sentence ends with the text.
  """
  stops = ids == stop_id
  stops[1:] &= ids[:-1] != stop_id
  return np.unique(np.append(np.flatnonzero(stops) + 1, len(ids)))


def _changed(piece: Piece, index: np.ndarray, mask_id: int) -> Piece:
  hidden = index == MASK
  if not len(piece.ids):
    ids, starts = np.zeros(len(index), np.int32), hidden
  else:
    ids, starts = piece.ids[index], piece.starts[index] | hidden
  return Piece(np.where(hidden, np.int32(mask_id), ids), starts)


def mask(rate: Fraction) -> Step:
  """Token masking of this fraction of tokens, rounded at random."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = masked(count, _some(rate, count, generator))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def delete(rate: Fraction) -> Step:
  """Token deletion of this fraction of tokens, rounded at random."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = deleted(count, _some(rate, count, generator))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def infill(
  rate: Fraction = 0.3,
  mean: Annotated[float, ranges.number(0.1, 1000)] = 3.0,
  random: Probability = 0.0,
) -> Step:
  """Text infilling: spans of whole words.

  The released code draws the starts independently of the lengths, so that
  spans overlap and fewer words than `rate` are hidden. Here all arrangements of
  spans without overlap are equally likely.

  Args:
    rate: fraction of words in spans; their number is rounded up.
    mean: mean length in words, of a Poisson distribution.
    random: fraction of [MASK]s that become a random token (released code: 0.1).
  """

  def step(piece, generator, vocabulary):
    bounds = np.append(np.flatnonzero(piece.starts), len(piece.ids))
    begins, lengths = _spans(len(bounds) - 1, rate, mean, generator)
    starts = bounds[begins]
    index = infilled(len(piece.ids), starts, bounds[begins + lengths] - starts)
    made = _changed(piece, index, vocabulary.mask_id)
    places = np.flatnonzero(index == MASK)
    places = places[generator.random(len(places)) < random]
    made.ids[places] = generator.integers(vocabulary.size, size=len(places))
    return made

  return step


def permute() -> Step:
  """Sentence permutation: sentences end at full stops."""

  def step(piece, generator, vocabulary):
    ends = sentence_ends(piece.ids, vocabulary.stop_id)
    index = permuted(ends, generator.permutation(len(ends)))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def rotate() -> Step:
  """Document rotation: each token is equally likely to come first."""

  def step(piece, generator, vocabulary):
    count = len(piece.ids)
    index = rotated(count, int(generator.integers(max(count, 1))))
    return _changed(piece, index, vocabulary.mask_id)

  return step


def _some(rate: float, count: int, generator: np.random.Generator) -> np.ndarray:
  """Draws positions; their number is `rate * count` on average."""
  chosen = int(rate * count - 1e-9 + generator.random())
  return generator.choice(count, size=min(chosen, count), replace=False)


def _spans(
  count: int, rate: float, mean: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Draws begins and lengths, int [S], of spans of `count` words."""
  # Without the epsilon, rounding errors would make 0.3 x 10 more than 3.
  budget = int(np.ceil(rate * count - 1e-9))
  if not budget:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)
  draws = np.zeros(0, np.int64)
  while draws.sum() < budget:
    more = generator.poisson(mean, size=8 + int(budget / mean))
    draws = np.concatenate([draws, more])
  lengths = span_lengths(draws, budget)
  # A text never grows: empty spans insert at most what the others remove.
  empty = lengths == 0
  room = budget - np.count_nonzero(lengths)
  lengths = generator.permutation(lengths[~empty | (np.cumsum(empty) <= room)])
  # One place for each remaining word, and one for each span.
  places = count - budget + len(lengths)
  places = np.sort(generator.choice(places, size=len(lengths), replace=False))
  before = np.cumsum(lengths) - lengths
  return places - np.arange(len(lengths)) + before, lengths


NOISES = {'delete': delete, 'infill': infill, 'mask': mask, 'permute': permute, 'rotate': rotate}


_FIELD = 'objective.name: noise'


@dataclass(frozen=True)
class Denoise(EncoderDecoder):
  """BART's pre-training: restoring corrupted texts.

  Attributes:
    noise: a comma list of `NOISES`, applied in this order: mask(rate),
      delete(rate), infill(rate=0.3, mean=3.0, random=0.0), permute, rotate.
      The default is the paper's, in the order of the released code.
  """

  noise: str = 'permute, infill'
  start = 'eos'

  def __post_init__(self):
    """Checks the corruptions."""
    spec.build_all(_FIELD, self.noise, NOISES)

  @property
  def needs(self) -> Needs:
    """An encoder-decoder and a [MASK]."""
    return Needs(
      encoder=True, decoder_start=self.start, rows=('stream', 'sentences'), tokens=('mask',)
    )

  def check(self) -> None:
    """Rejects sentence permutation if the tokenizer has no full stop."""
    super().check()
    names = [call.name for call in spec.parse(_FIELD, self.noise)]
    if self.tokenizer is None or 'permute' not in names:
      return
    if vocabulary_of(self.tokenizer).stop_id is None:
      raise UsageError(
        f'{_FIELD}={self.noise!r}: permute splits sentences at full stops, '
        'for which the tokenizer has no token; leave it out, or prepare the '
        'text with another tokenizer.name'
      )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Corrupted sources of the rows' length; the rows are the targets."""
    tokenizer = self.tokenizer
    sources_BM, mask_BM = rows.tokens, rows.real
    if tokenizer is None:
      # Such batches are made for their shapes only.
      assert not rows.real.any(), 'rows of text need their tokenizer'
    else:
      steps = spec.build_all(_FIELD, self.noise, NOISES)
      sources_BM, mask_BM = _corrupted_rows(rows, keys, steps, tokenizer)
    return {
      'sources': sources_BM,
      'source_mask': mask_BM,
      'inputs': sides.decoder_inputs(rows.tokens, self.first_id),
      'targets': rows.tokens,
      'weights': rows.real.astype(np.float32),
    }


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
  """The vocabulary of a tokenizer that has a [MASK]."""
  mask_id = tokenizer.special.mask_id
  assert mask_id is not None, 'see choices.build'
  # The full stop as it is encoded at the end of a word.
  last = int(tokenizer.encode('a.')[-1])
  stop_id = last if tokenizer.decode([last]).strip() == '.' else None
  return Vocabulary(tokenizer.vocab_size, mask_id, stop_id)


def _corrupted_rows(
  rows: Rows, keys: Keys, steps: Sequence[Step], tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
  """Corrupted rows [B, L], and bool [B, L], False for padding."""
  special, vocabulary = tokenizer.special, vocabulary_of(tokenizer)
  open_BL = rows.real & (rows.tokens != special.eos_id)
  if rows.special is not None:
    open_BL &= ~rows.special
  starts_BL = tokenizer.word_starts(rows.tokens)
  sources_BM = np.full_like(rows.tokens, special.pad_id)
  mask_BM = np.zeros_like(rows.real)
  for i, generator in enumerate(keys.generators(MASKING)):
    real = rows.real[i]
    source = corrupted(
      rows.tokens[i, real], starts_BL[i, real], open_BL[i, real], steps, generator, vocabulary
    )
    sources_BM[i, : len(source)] = source
    mask_BM[i, : len(source)] = True
  return sources_BM, mask_BM


def corrupted(
  tokens: np.ndarray,
  starts: np.ndarray,
  is_open: np.ndarray,
  steps: Sequence[Step],
  generator: np.random.Generator,
  vocabulary: Vocabulary,
) -> np.ndarray:
  """Corrupts each text of a row separately; int32 [M], M <= L.

  Args:
    tokens: int32 [L], without padding.
    starts: bool [L], which tokens begin a word.
    is_open: bool [L], tokens of texts; the others stay.
  """
  cuts = np.flatnonzero(is_open[1:] != is_open[:-1]) + 1
  parts = [np.split(x, cuts) for x in (tokens, starts, is_open)]
  out = [np.zeros(0, np.int32)]
  for ids, first, inside in zip(*parts, strict=True):
    piece = Piece(ids, first)
    for step in steps if inside.any() else ():
      # The first token always begins a word.
      piece.starts[:1] = True
      piece = step(piece, generator, vocabulary)
    out.append(piece.ids)
  return np.concatenate(out)
