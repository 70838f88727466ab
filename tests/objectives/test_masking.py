# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens are masked: counts over a million of them."""

import numpy as np
import pytest

from gpt_jax.objectives.masked import Masking, ngrams
from gpt_jax.rows.rows import HELD_OUT, Keys, Rows

V, MASK = 1009, 3
L = 127


def rows(count, *, seed=0, special=True):
  """Rows of text between two special tokens; some end in padding."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(5, V, size=(count, L), dtype=np.int32)
  lengths = np.where(np.arange(count) % 3 == 0, rng.integers(2, L, count), L)
  real = np.arange(L) < lengths[:, None]
  tokens[~real] = 0
  mark = np.zeros((count, L), bool)
  if special:
    mark[:, 0] = True
    mark[np.arange(count), lengths - 1] = True
    tokens[mark] = 1
  return Rows(tokens, real, special=mark)


def keys(count, *, seed=7, first=0, epoch=0):
  numbers = np.arange(first, first + count)
  return Keys(seed, numbers, numbers % count, np.full(count, epoch))


def masking(**changes):
  fields = dict(rate=0.15, mask=0.8, random=0.1, vocab_size=V)
  return Masking(**{**fields, 'mask_id': MASK, **changes})


def chosen(made, shape):
  """Which tokens the batch says are chosen, bool [B, L]."""
  out = np.zeros(shape, bool)
  at = np.nonzero(made['masked_weights'])
  out[at[0], made['masked_positions'][at]] = True
  assert out.sum() == made['masked_weights'].sum()
  return out


STARTS = np.random.default_rng(1).random((10_000, L)) < 0.6


@pytest.mark.parametrize(('words', 'ngram'), [(False, 1), (True, 1), (True, 3)])
def test_a_part_is_chosen_and_replaced(words, ngram):
  count = 10_000 if ngram == 1 and not words else 3000
  batch = rows(count)
  made = masking(words=words, runs=ngrams(ngram))(
    batch, keys(count), STARTS[:count]
  )
  found = chosen(made, batch.tokens.shape)
  assert batch.real.sum() > count * 100
  # A sampling error of 10^6 tokens is 0.04 points; of words some do not fit.
  assert found.sum() / batch.real.sum() == pytest.approx(0.15, abs=1e-3)
  assert not np.any(found & (batch.special | ~batch.real))
  # What stands there now, of what was chosen.
  was, now = batch.tokens[found], made['inputs'][found]
  assert np.mean(now == MASK) == pytest.approx(0.8, abs=5e-3)
  # One of V random tokens is the token itself, another [MASK].
  assert np.mean(now == was) == pytest.approx(0.1, abs=5e-3)
  others = now[(now != was) & (now != MASK)]
  assert len(others) / len(now) == pytest.approx(0.1, abs=5e-3)
  # From the whole vocabulary: the mean and the spread of uniform numbers.
  assert others.mean() / V == pytest.approx(0.5, abs=0.01)
  assert others.std() / V == pytest.approx(12**-0.5, abs=0.01)
  np.testing.assert_array_equal(made['inputs'][~found], batch.tokens[~found])
  weights = made['masked_weights'] > 0
  at = np.take_along_axis(batch.tokens, made['masked_positions'], axis=1)
  np.testing.assert_array_equal(made['masked_targets'][weights], at[weights])


def units(batch, starts):
  """Number of the word that each token belongs to; others where none may."""
  first = batch.special | ~batch.real
  begins = starts | first
  begins[:, 1:] |= first[:, :-1]
  begins[:, 0] = True
  return np.cumsum(begins.ravel()).reshape(begins.shape)


def test_whole_words_are_whole():
  batch = rows(1000)
  starts = STARTS[:1000]
  made = masking(words=True)(batch, keys(1000), starts)
  found = chosen(made, batch.tokens.shape)
  word = units(batch, starts)
  sizes = np.bincount(word.ravel())
  taken = np.bincount(word[found], minlength=len(sizes))
  assert set(np.unique(taken[taken > 0] / sizes[taken > 0])) == {1.0}
  assert sizes[taken > 0].max() > 3


def test_runs_of_words_are_as_long_as_the_paper_says():
  """p(n) = (1/n) / sum(1/k): 6/11, 3/11, 2/11 (ALBERT, equation 1)."""
  batch = rows(4000, special=False)
  words = np.ones((4000, L), bool)
  # So few are chosen that two runs seldom touch.
  made = masking(rate=0.02, words=True, runs=ngrams(3))(
    batch, keys(4000), words
  )
  found = chosen(made, batch.tokens.shape)
  edge = np.diff(np.pad(found, ((0, 0), (1, 1))).astype(int), axis=1)
  lengths = np.nonzero(edge == -1)[1] - np.nonzero(edge == 1)[1]
  full = found.sum(axis=1) == 3  # a rest of one or two would be cut
  assert full.mean() > 0.3
  # Of the three, one run takes all in 2/11 of the rows; three runs of one take
  # them where the first two are so drawn, in (6/11)^2. Two of those stand side
  # by side in about 5% of them.
  longest = np.zeros(4000, int)
  np.maximum.at(longest, np.nonzero(edge == -1)[0], lengths)
  shares = np.bincount(longest[full], minlength=4)[1:] / full.sum()
  assert shares[2] == pytest.approx(2 / 11 + 0.01, abs=0.03)
  assert shares[0] == pytest.approx((6 / 11) ** 2 * 0.95, abs=0.04)


def test_another_epoch_has_another_mask():
  batch = rows(2000)
  shape = batch.tokens.shape
  one, other = (
    chosen(masking()(batch, keys(2000, first=2000 * e), None), shape)
    for e in range(2)
  )
  # 15% of the tokens chosen once are chosen again, as chance has it. (Of those
  # that may be chosen it is a little more.)
  free = batch.real & ~batch.special
  expected = other.sum() / free.sum()
  assert np.mean(other[one]) == pytest.approx(expected, abs=0.01)


def test_static_masks_come_again():
  batch = rows(50)

  def made(epoch, times):
    of = keys(50, first=50 * epoch, epoch=epoch).recurring(times)
    return masking()(batch, of, None)['inputs']

  np.testing.assert_array_equal(made(0, 1), made(5, 1))
  np.testing.assert_array_equal(made(1, 3), made(4, 3))
  different = [made(e, 3) for e in range(3)]
  assert len({x.tobytes() for x in different}) == 3


def test_a_row_does_not_depend_on_its_company():
  batch = rows(30)
  made = masking(words=True, runs=ngrams(3))(batch, keys(30), STARTS[:30])
  for part in (slice(0, 10), slice(10, 30), slice(29, 30)):
    of = Keys(7, *(x[part] for x in keys(30)[1:]))
    few = Rows(
      batch.tokens[part], batch.real[part], special=batch.special[part]
    )
    alone = masking(words=True, runs=ngrams(3))(few, of, STARTS[:30][part])
    for name, value in alone.items():
      np.testing.assert_array_equal(value, made[name][part])


def test_seeds_and_held_out_rows_have_masks_of_their_own():
  batch = rows(20)
  first = np.arange(20)
  found = [
    masking()(batch, of, None)['inputs'].tobytes()
    for of in (keys(20, seed=1), keys(20, seed=2), Keys.held_out(first))
  ]
  assert len({*found}) == 3
  again = masking()(batch, Keys.held_out(first), None)['inputs']
  assert again.tobytes() == found[2]
  assert Keys.held_out(first).seed == HELD_OUT


@pytest.mark.parametrize(
  ('length', 'places'), [(20, 3), (128, 20), (512, 77), (1, 1)]
)
def test_the_places_of_a_row(length, places):
  """20 at 128 and 77 at 512, as in the released code of BERT."""
  assert masking().places(length) == places


def test_rows_of_padding_choose_nothing():
  blank = Rows(np.zeros((2, 9), np.int32), np.zeros((2, 9), bool))
  made = masking()(blank, keys(2), None)
  assert not made['masked_weights'].any()
  assert not made['inputs'].any()
