# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet: orders, who sees whom, the loss, its segments, New York."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from gpt_jax import hf
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.masked import Masked, ngrams
from gpt_jax.papers.xlnet.permuted import Permutation, Permuted, order, ranks
from tests.support import tiny
from tests.support.cases import slow
from tests.support.golden_io import ROOT, case, cases
from tests.support.objectives import CLS, SEP, Words, keys

FIELDS = dict(
  attention='bidirectional',
  block='post',
  d_model=22,
  input='tokens(queries=True)',
  num_layers=1,
  position='xlnet(memory=5)',
)


@pytest.mark.parametrize('segments', [1, slow(2)])
def test_loss_is_that_of_hugging_face(segments):
  """With the masks, the targets and the memories that it is given."""
  model, params = hf.load(str(ROOT / 'xlnet_lm'))
  B, L = 3, 14 * segments
  tokens = tiny.tokens(B, L, vocab_size=model.vocab_size)
  objective = Permuted(context=3, segments=segments).bind(model, Words())
  batch = objective.make_batch(Rows(tokens, np.ones((B, L), bool)), keys(B))
  found = jax.jit(lambda p, b: objective.loss(p, b, None))(params, batch)
  mems = np.zeros((2, 8, B, 32), np.float32) if segments > 1 else None
  total, P = 0.0, 4  # a third of 14
  for first in range(0, L, 14):
    part = slice(first, first + 14)
    at = batch['masked_positions'][:, part.start // 14 * P :][:, :P] - first
    ranks = batch['ranks'][:, part]
    mapping = np.eye(14)[at]
    # A token that is predicted does not see itself, nor what is not before.
    chosen = mapping.sum(axis=1) > 0
    later = ranks[:, None] >= ranks[..., None]
    hidden = np.where(chosen[..., None], later, ranks[:, None] > 0)
    more = {} if mems is None else {'mems': mems}
    out = hf.forward(
      model,
      params,
      input_ids=tokens[:, part],
      perm_mask=np.float32(hidden),
      target_mapping=np.float32(mapping),
      labels=np.take_along_axis(tokens[:, part], at, axis=1),
      use_mems=segments > 1,
      **more,
    )
    total += float(out['loss']) * B * P
    mems = out.get('mems')
  assert found.weight == segments * B * P
  assert float(found.sum) == pytest.approx(total, rel=1e-5)
  assert {*found.metrics} == {'objective/masked_loss', 'objective/masked_accuracy'}


def test_segments_divide_a_row():
  model = tiny.model(**FIELDS)
  rows = Rows(tiny.tokens(2, 13), np.ones((2, 13), bool))
  with pytest.raises(UsageError, match='segments=2 do not divide a row of 13'):
    Permuted(segments=2).bind(model, Words()).make_batch(rows, keys(2))


@functools.cache
def learner(kind):
  """A model of one layer and what its objective wants."""
  fields = dict(FIELDS, d_model=32, d_ff=32, num_heads=2, num_kv_heads=2, head_size=16)
  if kind == 'permuted':
    model = tiny.model(**fields)
    return model, Permuted().bind(model)
  fields['input'] = 'tokens'
  model = tiny.model(**fields)
  return model, Masked().bind(model)


@functools.partial(jax.jit, static_argnums=(0, 1))
def trained(kind, steps, batch):
  """The loss after so many steps of the whole corpus."""
  model, objective = learner(kind)
  init = model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
  params = nn.meta.unbox(init['params'])
  optimizer = optax.adam(1e-2)

  def mean(params):
    found = objective.loss(params, batch, jax.random.key(0))
    return found.sum / found.weight

  def step(state, _):
    params, moments = state
    loss, gradient = jax.value_and_grad(mean)(params)
    updates, moments = optimizer.update(gradient, moments)
    return (optax.apply_updates(params, updates), moments), loss

  state = params, optimizer.init(params)
  return jax.lax.scan(step, state, None, steps)[1][-1]


# "New York is a city" and "Los Angeles is a city".
CORPUS = np.array([[1, 2, 5, 6, 7], [3, 4, 5, 6, 7]], np.int32)
BLANK = 9


@pytest.mark.slow
def test_new_york_is_a_city():
  """Ln 2 a pair in either order; 2 ln 2 where both are predicted at once.

  Both first words are predicted, of each sentence in both orders.
  """
  both = np.tile([[0, 1]], (4, 1)).astype(np.int32)
  tokens = np.repeat(CORPUS, 2, axis=0)
  batch = {
    'mask': np.ones((4, 5), bool),
    'masked_positions': both,
    'masked_targets': tokens[:, :2],
    'masked_weights': np.ones((4, 2), np.float32),
  }
  ranks = np.array([[1, 2, 0, 0, 0], [2, 1, 0, 0, 0]] * 2, np.int32)
  found = trained('permuted', 300, {**batch, 'inputs': tokens, 'ranks': ranks})
  assert 2 * found == pytest.approx(np.log(2), abs=0.03)
  hidden = tokens.copy()
  hidden[:, :2] = BLANK
  found = trained('masked', 300, {**batch, 'inputs': hidden})
  assert 1.38 <= 2 * found < 1.42


FOLDER = ROOT / 'xlnet_perm'


def seen(ranks_L, asked):
  """What each token, then each prediction, sees."""
  found = order(np.array([ranks_L]), np.array([ranks_L[asked]]))
  return np.asarray(found.visible())[0]


@pytest.mark.parametrize('name', cases(FOLDER, 'values'))
def test_masks_are_those_of_the_released_code(name):
  """Of a given order; the fixtures' 1 is "may not see", ours "sees"."""
  golden = case(FOLDER, name)
  given, out = golden.inputs, golden.outputs
  special = np.isin(given['input_ids'], [SEP, CLS])
  reused = np.arange(len(special)) < golden.static.get('reuse_len', 0)
  late = given['is_masked'] | special
  found = ranks(given['order_index'], late, reused)
  targets = np.flatnonzero(given['is_masked'] & ~special)
  np.testing.assert_array_equal(targets, np.flatnonzero(out['target_mask']))
  may = out['perm_mask'] == 0
  content = seen(found, targets)
  np.testing.assert_array_equal(content[: len(may)], may | np.eye(len(may), dtype=bool))
  np.testing.assert_array_equal(content[len(may) :], may[targets])


def test_blocks_have_one_order():
  """A token of a later block comes after all of an earlier one."""
  golden = case(FOLDER, 'perm_size')
  in_block = golden.inputs['order_in_block']

  class Given:
    def permutation(self, size):
      assert size == len(in_block)
      return in_block

  permutation = Permutation(6, ngrams(5), golden.static['perm_size'])
  np.testing.assert_array_equal(permutation.order(12, Given()), golden.inputs['order_index'])
  # A last block that is shorter keeps the order of its tokens.
  np.testing.assert_array_equal(permutation.order(6, Given()), [0, 3, 1, 2, 4, 5])


def rows(count, length, *, halves=False, seed=0):
  """With padding in the first row, and ends of texts as rows of halves."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(5, 90, (count, length), np.int32)
  real, special = np.ones((2, *tokens.shape), bool)
  special[:] = False
  if not halves:
    real[0, length // 2 :] = False
    return Rows(tokens, real)
  special[:, [length - 9, length - 2, length - 1]] = True
  reused = np.zeros(tokens.shape, bool)
  reused[:, : length // 2] = True
  return Rows(tokens, real, special=special, reused=reused)


def test_exactly_so_many_are_predicted():
  """85 of 512, in whole words but for the last few of a half."""
  permutation = Permutation(6, ngrams(5), 256)
  given = rows(7, 512, halves=True)
  starts = np.random.default_rng(1).random(given.tokens.shape) < 0.7
  found = permutation(given, keys(7), starts)
  assert permutation.places(512) == 85
  assert found['masked_weights'].shape == (7, 85)
  assert np.all(found['masked_weights'] == 1)
  at = found['masked_positions']
  assert np.all(np.diff(at) > 0)
  assert np.all(np.sum(at < 256, axis=1) == 43)
  chosen = np.zeros(given.tokens.shape, bool)
  np.put_along_axis(chosen, at, True, axis=1)
  assert not np.any(chosen & given.special)
  np.testing.assert_array_equal(
    found['masked_targets'], np.take_along_axis(given.tokens, at, axis=1)
  )
  # Runs begin and end with words; a goal's rest is single tokens.
  begins = chosen[:, 1:] & ~chosen[:, :-1]
  whole = np.mean(starts[:, 1:][begins])
  assert whole > 0.9
  # The others are context of their half, or later: SEP and CLS.
  context = np.where(given.reused, 0, 512)
  plain = ~chosen & ~given.special
  np.testing.assert_array_equal(found['ranks'][plain], context[plain])
  assert np.all(found['ranks'][~plain] > context[~plain])
  for row in found['ranks']:
    late = row[(row != 0) & (row != 512)]
    assert len({*late.tolist()}) == len(late)


def test_the_first_half_sees_nothing_of_the_second():
  given = rows(3, 40, halves=True)
  starts = np.ones(given.tokens.shape, bool)
  found = Permutation(3, ngrams(5), 8)(given, keys(3), starts)
  for row, at in zip(found['ranks'], found['masked_positions'], strict=True):
    mask = seen(row, at)
    first = np.concatenate([np.arange(40), at]) < 20
    assert not np.any(mask[first][:, 20:])
    assert np.all(mask[~first][:, :20])


def test_padding_is_not_predicted():
  permutation = Permutation(3, ngrams(5), 8)
  given = rows(5, 23)
  starts = np.ones(given.tokens.shape, bool)
  found = permutation(given, keys(5), starts)
  # Of the first row 11 tokens are real, of which a third.
  assert found['masked_weights'].sum(axis=1).tolist() == [3, 7, 7, 7, 7]
  real = np.take_along_axis(given.real, found['masked_positions'], axis=1)
  assert np.all(real[found['masked_weights'] == 1])


def test_segments_have_their_own_orders():
  permutation, given = Permutation(3, ngrams(5), 8), rows(2, 22)
  starts = np.ones(given.tokens.shape, bool)
  found = permutation(given, keys(2), starts, segments=2)
  assert found['masked_positions'].shape == (2, 6)
  halves = found['masked_positions'][1].reshape(2, 3) // 11
  np.testing.assert_array_equal(halves, [[0] * 3, [1] * 3])
  # A segment of padding alone has nothing to predict.
  assert found['masked_weights'][0].tolist() == [1, 1, 1, 0, 0, 0]


def test_runs_are_of_few_words():
  """p(n) ~ 1 / n of 1 to 5 words: 2.19 on average."""
  permutation = Permutation(6, ngrams(5), 256)
  assert np.dot(permutation.runs, np.arange(1, 6)) == pytest.approx(2.190, 1e-3)
  given = rows(30, 512)
  given.real[:] = True
  found = permutation(given, keys(30), np.ones(given.tokens.shape, bool))
  chosen = np.zeros((30, 513), bool)
  np.put_along_axis(chosen, found['masked_positions'], True, axis=1)
  runs = np.sum(chosen[:, 1:] & ~chosen[:, :-1])
  assert 1.7 < chosen.sum() / runs < 2.3
