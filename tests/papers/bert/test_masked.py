# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masked tokens: which are chosen, and the loss against its equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.rows.rows import HELD_OUT, Keys, Rows
from gpt_jax.core.training.step import eval_step, mean_gradients
from gpt_jax.ejecting import weights as weights_lib
from gpt_jax.papers.bert.masked import Masked, Masking, ngrams
from tests.support import reference, tiny
from tests.support.objectives import MASK, Words, keys

N, L, V = 8, 13, tiny.V


FIELDS = dict(
  attention='bidirectional',
  input='tokens(token_types=2, norm=True)',
  block='post',
  ffn='gelu',
  output="tied(bias=True, transform='gelu')",
  num_layers=1,
)


def rows():
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, V, size=(N, L), dtype=np.int32)
  real = np.arange(L) < np.array([L, 7, L, 5, 11, L, 3, L])[:, None]
  types = (np.arange(L)[None] > 4).astype(np.int32) * np.ones((N, 1), np.int32)
  pair = np.arange(N, dtype=np.int32) % 2
  special = np.zeros((N, L), bool)
  special[:, 0] = True
  return Rows(tokens, real, token_types=types, special=special, pair=pair)


@functools.cache
def of(pair):
  objective = Masked(rate=0.3, pair=pair).bind(tiny.model(**FIELDS), Words())
  shapes = tiny.shapes(objective)
  # Biases and norms that say something.
  return objective, tiny.random_like(shapes, seed=2)


def expected(params, batch):
  """The sums of both losses by plain JAX, and of the masked tokens that are right."""
  plain = reference.of({'block': 'post_block', 'activation': 'gelu_exact'})
  targets, weights = batch['masked_targets'], batch['masked_weights']

  def run(p):
    hidden = plain.encoder_states(p, batch)
    scores = plain.masked_logits(p, hidden, batch['masked_positions'])
    masked, _ = reference.loss_of(scores, jnp.eye(V), targets, weights)
    right = jnp.sum((scores.argmax(-1) == targets) * weights)
    if 'heads' not in p:
      return masked, 0.0, right
    follows = plain.pair_logits(p, hidden)[:, None]
    given = (batch[name][:, None] for name in ('pair_labels', 'pair_weights'))
    return masked, reference.loss_of(follows, jnp.eye(2), *given)[0], right

  return reference.run(run, weights_lib.to_plain(params))


@functools.cache
def loss_of(pair):
  objective, _ = of(pair)

  return jax.jit(functools.partial(eval_step, objective=objective))


@pytest.mark.parametrize('pair', ['none', 'next'])
def test_the_loss_is_the_papers(pair):
  objective, params = of(pair)
  batch = objective.make_batch(rows(), keys(N))
  # A row that only fills up.
  batch['mask'][-1] = batch['masked_weights'][-1] = 0
  if pair != 'none':
    batch['pair_weights'][-1] = 0
  masked, pairs, right = expected(params, batch)
  weight = batch['masked_weights'].sum()
  total = masked / weight
  found = loss_of(pair)(params, batch)
  mean = found['objective/masked_loss']
  np.testing.assert_allclose(mean.sum / mean.weight, total, rtol=1e-5)
  if pair != 'none':
    pairs = pairs / batch['pair_weights'].sum()
    mean = found['objective/pair_loss']
    np.testing.assert_allclose(mean.sum / mean.weight, pairs, rtol=1e-5)
    total += pairs
  value = sum(mean.sum / mean.weight for mean in found['loss'])
  np.testing.assert_allclose(value, total, rtol=1e-5)
  accuracy = found['objective/masked_accuracy']
  assert (accuracy.sum, accuracy.weight) == (right, weight)


def test_parts_with_other_numbers_of_tokens_and_rows_add_up():
  objective, params = of('next')
  batch = objective.make_batch(rows(), keys(N))
  batch['mask'][-1] = batch['masked_weights'][-1] = 0
  batch['pair_weights'][-1] = 0
  whole, parts = (
    jax.jit(functools.partial(mean_gradients, objective=objective, num_micro=number))(
      params, batch, jax.random.key(0)
    )
    for number in (1, 4)
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), parts, whole)


def test_tokens_that_are_not_chosen_have_no_loss():
  objective, params = of('none')
  batch = objective.make_batch(rows(), keys(N))
  nothing = {**batch, 'masked_weights': 0 * batch['masked_weights']}
  assert loss_of('none')(params, nothing)['loss'][0].sum == 0
  # Another target where no token counts changes nothing.
  other = np.where(batch['masked_weights'] > 0, batch['masked_targets'], 1)
  same = loss_of('none')(params, {**batch, 'masked_targets': other})
  assert same['loss'] == loss_of('none')(params, batch)['loss']


VOCAB = 1009
LENGTH = 127


def text_rows(count, *, seed=0, special=True):
  """Rows of text between two special tokens; some end in padding."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(5, VOCAB, size=(count, LENGTH), dtype=np.int32)
  short = rng.integers(2, LENGTH, count)
  lengths = np.where(np.arange(count) % 3 == 0, short, LENGTH)
  real = np.arange(LENGTH) < lengths[:, None]
  tokens[~real] = 0
  mark = np.zeros((count, LENGTH), bool)
  if special:
    mark[:, 0] = True
    mark[np.arange(count), lengths - 1] = True
    tokens[mark] = 1
  return Rows(tokens, real, special=mark)


def masking(**changes):
  fields = dict(rate=0.15, mask=0.8, random=0.1, vocab_size=VOCAB)
  return Masking(**{**fields, 'mask_id': MASK, **changes})


def chosen(made, shape):
  """Which tokens the batch says are chosen, bool [B, L]."""
  out = np.zeros(shape, bool)
  at = np.nonzero(made['masked_weights'])
  out[at[0], made['masked_positions'][at]] = True
  assert out.sum() == made['masked_weights'].sum()
  return out


STARTS = np.random.default_rng(1).random((10_000, LENGTH)) < 0.6


@pytest.mark.parametrize(('words', 'ngram'), [(False, 1), (True, 1), (True, 3)])
def test_a_part_is_chosen_and_replaced(words, ngram):
  count = 10_000 if ngram == 1 and not words else 3000
  batch = text_rows(count)
  made = masking(words=words, runs=ngrams(ngram))(batch, keys(count), STARTS[:count])
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
  assert others.mean() / VOCAB == pytest.approx(0.5, abs=0.01)
  assert others.std() / VOCAB == pytest.approx(12**-0.5, abs=0.01)
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
  batch = text_rows(1000)
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
  batch = text_rows(4000, special=False)
  words = np.ones((4000, LENGTH), bool)
  # So few are chosen that two runs seldom touch.
  made = masking(rate=0.02, words=True, runs=ngrams(3))(batch, keys(4000), words)
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
  batch = text_rows(2000)
  shape = batch.tokens.shape
  one, other = (chosen(masking()(batch, keys(2000, epoch=e), None), shape) for e in range(2))
  # 15% of the tokens chosen once are chosen again, as chance has it. (Of those
  # that may be chosen it is a little more.)
  free = batch.real & ~batch.special
  expected = other.sum() / free.sum()
  assert np.mean(other[one]) == pytest.approx(expected, abs=0.01)


def test_static_masks_come_again():
  batch = text_rows(50)

  def made(epoch, times):
    of = keys(50, epoch=epoch).recurring(times)
    return masking()(batch, of, None)['inputs']

  np.testing.assert_array_equal(made(0, 1), made(5, 1))
  np.testing.assert_array_equal(made(1, 3), made(4, 3))
  different = [made(e, 3) for e in range(3)]
  assert len({x.tobytes() for x in different}) == 3


def test_seeds_and_held_out_rows_have_masks_of_their_own():
  batch = text_rows(20)
  first = np.arange(20)
  found = [
    masking()(batch, of, None)['inputs'].tobytes()
    for of in (keys(20, seed=1), keys(20, seed=2), Keys.held_out(first))
  ]
  assert len({*found}) == 3
  again = masking()(batch, Keys.held_out(first), None)['inputs']
  assert again.tobytes() == found[2]
  assert Keys.held_out(first).seed == HELD_OUT


@pytest.mark.parametrize(('length', 'places'), [(20, 3), (128, 20), (512, 77), (1, 1)])
def test_the_places_of_a_row(length, places):
  """20 at 128 and 77 at 512, as in the released code of BERT."""
  assert masking().places(length) == places


def test_rows_of_padding_choose_nothing():
  blank = Rows(np.zeros((2, 9), np.int32), np.zeros((2, 9), bool))
  made = masking()(blank, keys(2), None)
  assert not made['masked_weights'].any()
  assert not made['inputs'].any()
