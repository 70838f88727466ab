# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""UniLM's masks in pretraining and in fine-tuning, and what each predicts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.objectives import forward
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.training.step import mean_gradients
from gpt_jax.papers.unilm import unified_order
from gpt_jax.papers.unilm.unified import Unified, UnifiedTarget, order, with_mask
from gpt_jax.papers.unilm.unified_order import NAMES
from tests.support import tiny
from tests.support.golden_io import ROOT, case
from tests.support.objectives import CLS, MASK, SEP, Words, keys

BOTH, LEFT, RIGHT, SEQ2SEQ = range(4)
V, L = tiny.V, 13
FOLDER = ROOT / 'bert_mask3d'
FIELDS = dict(
  attention='bidirectional',
  input='tokens(token_types=6)',
  output="tied(bias=True, transform='gelu')",
  num_layers=1,
)


def rows(count, length=L, vocab_size=V, seed=0):
  """[SOS] S1 [EOS] S2 [EOS] and some padding; 3 and 4 are these tokens."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(5, vocab_size, (count, length), np.int32)
  sizes = rng.integers(length - 4, length + 1, count)
  first = rng.integers(2, sizes - 2)
  place, index = np.arange(length), np.arange(count)
  real = place < sizes[:, None]
  special = np.zeros_like(real)
  special[:, 0] = special[index, first] = special[index, sizes - 1] = True
  tokens[special] = 4
  tokens[:, 0] = 3
  types = (place > first[:, None]) & real
  tokens[~real] = 0
  return Rows(
    tokens,
    real,
    token_types=types.astype(np.int32),
    special=special,
    pair=rng.integers(0, 2, count, np.int32),
  )


@functools.cache
def of(token_types=6):
  fields = FIELDS | {'input': f'tokens(token_types={token_types})'}
  objective = Unified(rate=0.3).bind(tiny.model(**fields), Words())
  shapes = tiny.shapes(objective)
  return objective, tiny.random_like(shapes, seed=2)


def test_masks_are_those_of_the_worked_example():
  """A source of 3 and a target of 2; right to left is the transpose."""
  second = np.array([[False] * 3 + [True] * 2] * 4)
  found = np.asarray(order(np.arange(4), second).visible()).astype(int)
  assert [''.join(map(str, row)) for row in found[SEQ2SEQ]] == [
    '11100',
    '11100',
    '11100',
    '11110',
    '11111',
  ]
  np.testing.assert_array_equal(found[BOTH], 1)
  np.testing.assert_array_equal(found[LEFT], np.tri(5))
  np.testing.assert_array_equal(found[RIGHT], found[LEFT].T)


def test_masks_and_losses_are_those_of_hugging_face():
  """Of each mask its own mean, and the mean over the tokens of all."""
  loaded, params = hf.load(str(FOLDER))
  model = make_model(**{name: getattr(loaded, name) for name in hf.transformer_fields()})
  golden = [case(FOLDER, n) for n in ('bidirectional', 'ltr', 'rtl', 'seq2seq')]
  main = case(FOLDER, 'main')
  second = main.inputs['token_type_ids'] == 1
  seen = np.array(order(np.arange(4), second).visible())
  seen &= main.valid['tokens'][:, None]
  expected = main.inputs['attention_mask'] == 1
  real = main.valid['tokens']
  np.testing.assert_array_equal(seen[real], expected[real])

  def joined(name):
    return np.concatenate([g.inputs[name] for g in golden])

  labels, types = joined('labels'), joined('token_type_ids')
  counted = labels >= 0
  P = counted.sum(axis=1).max()
  at = np.argsort(~counted, axis=1, kind='stable')[:, :P]
  weights = np.take_along_axis(counted, at, axis=1)
  targets = np.take_along_axis(labels, at, axis=1)
  batch = {
    'inputs': joined('input_ids'),
    'mask': np.concatenate([g.valid['tokens'] for g in golden]),
    'token_types': types,
    'masked_positions': at,
    'masked_targets': np.where(weights, targets, 0),
    'masked_weights': weights.astype(np.float32),
    'pair_labels': np.zeros(len(at), np.int32),
    'pair_weights': np.zeros(len(at), np.float32),
    'masks': np.repeat(np.arange(4), 2),
    'second': types == 1,
  }
  objective = Unified().bind(model)
  shapes = tiny.shapes(objective)
  params = {**params, 'heads': tiny.random_like(shapes['heads'], seed=0)}

  @jax.jit
  def run(batch):
    return objective.loss(params, batch, None)

  found = run(batch)
  counts = counted.reshape(4, -1).sum(axis=1)
  losses = np.array([g.outputs['loss'] for g in golden])
  for name, loss, count in zip(NAMES, losses, counts, strict=True):
    mean = found.metrics[f'objective/{name}_loss']
    np.testing.assert_allclose(mean.sum / mean.weight, loss, rtol=2e-5)
    assert mean.weight == count
  total = np.sum(losses * counts) / counts.sum()
  np.testing.assert_allclose(found.sum / found.weight, total, rtol=2e-5)
  assert not any(name.startswith('objective/masked') for name in found.metrics)


@pytest.mark.parametrize('first', [0, 1, 4, 330 * 7 + 5])
def test_a_batch_of_330_has_110_110_55_and_55(first):
  found = np.bincount(unified_order.masks(first + np.arange(330)))
  assert found.tolist() == [110, 55, 55, 110]
  # And any other number of rows as near to it as that can be.
  for count in range(1, 12):
    found = np.bincount(unified_order.masks(first + np.arange(count)), minlength=4)
    assert np.all(np.abs(found - count * np.array([2, 1, 1, 2]) / 6) < 1)


def test_masks_types_and_labels_follow_from_the_numbers_of_rows():
  objective, _ = of()
  text, first = rows(12), 7
  whole = objective.make_batch(text, keys(12, first))
  turns = [BOTH, SEQ2SEQ, LEFT, BOTH, SEQ2SEQ, RIGHT]
  assert whole['masks'].tolist() == [turns[n % 6] for n in range(7, 19)]
  types = np.array([[0, 1], [2, 2], [3, 3], [4, 5]])
  second = text.token_types
  expected = types[whole['masks'][:, None], second]
  np.testing.assert_array_equal(whole['token_types'], expected)
  # Two types: those of BERT, and one of the two where one way is read.
  batch = of(2)[0].make_batch(text, keys(12, first))
  np.testing.assert_array_equal(batch['token_types'], expected % 2)
  np.testing.assert_array_equal(whole['pair_weights'], whole['masks'] == BOTH)


def test_a_million_tokens():
  """15% masked, 80/10/10, in runs of 1.3, the target's [EOS] among them."""
  count, length, size = 3000, 380, 1009
  text = rows(count, length, size)
  model = tiny.model(**FIELDS, context_length=length, vocab_size=size)
  batch = Unified().bind(model, Words(size)).make_batch(text, keys(count))
  assert text.real.sum() > 1e6
  chosen = np.zeros(text.real.shape, bool)
  index, nth = np.nonzero(batch['masked_weights'])
  chosen[index, batch['masked_positions'][index, nth]] = True
  assert chosen.sum() / text.real.sum() == pytest.approx(0.15, abs=1e-3)
  was, now = text.tokens[chosen], batch['inputs'][chosen]
  assert np.mean(now == MASK) == pytest.approx(0.8, abs=5e-3)
  assert np.mean(now == was) == pytest.approx(0.1, abs=5e-3)
  # Of what no text has, the last [EOS] of sequence to sequence rows alone.
  last = np.zeros_like(chosen)
  last[np.arange(count), text.real.sum(axis=1) - 1] = True
  seq2seq = (batch['masks'] == SEQ2SEQ)[:, None]
  assert not np.any(chosen & text.special & ~(last & seq2seq))
  assert not np.any(chosen & ~text.real)
  share = np.sum(chosen & last & seq2seq) / np.sum(last & seq2seq)
  assert share == pytest.approx(0.15, abs=0.02)


def test_runs_are_of_one_token_four_times_of_five():
  count, length, size = 4000, 120, 1009
  text = rows(count, length, size)
  model = tiny.model(**FIELDS, context_length=length, vocab_size=size)
  # Three of about 118 tokens: two runs seldom touch.
  objective = Unified(rate=3.4 / 118).bind(model, Words(size))
  made = objective.make_batch(text, keys(count))
  places, weights = made['masked_positions'], made['masked_weights']
  full = weights.sum(axis=1) == 3
  assert full.mean() > 0.2
  steps = np.diff(places[full][:, :3], axis=1) == 1
  runs = 3 - steps.sum(axis=1)  # of what is drawn until three are chosen
  # One trigram; or a single token three times; else one of each kind. What is
  # left cuts the run that would be more.
  p1, p2, p3 = 0.8, 0.1, 0.1
  # (1, 1, any), the rest is two or one run; first a trigram: one run.
  assert np.mean(runs == 1) == pytest.approx(p3 + 0.002, abs=0.02)
  assert np.mean(runs == 3) == pytest.approx(p1 * p1, abs=0.05)
  assert 1 * p1 + 2 * p2 + 3 * p3 == pytest.approx(1.3)


def test_no_state_of_a_source_depends_on_the_target():
  """Nor any of one direction on what lies in the other: exactly 0."""
  model = tiny.model(**{**FIELDS, 'num_layers': 2})
  text = rows(4)
  # No token twice in a row: the vector of one is that of its place.
  places = np.argsort(np.random.default_rng(1).random((4, V)))[:, :L]
  second = text.token_types == 1

  @jax.jit
  def jacobian(params):
    def states(table_VD):
      embedded = {**params, 'embed': {'embedding': table_VD}}
      out = model.apply(
        {'params': embedded},
        Row(
          places,
          real_BL=text.real,
          token_types_BL=text.token_types,
          order=order(jnp.arange(4), second),
        ),
      )
      return (out.hidden_BLD**2).sum(-1)

    return jax.jacrev(states)(params['embed']['embedding'])

  found = np.asarray(jacobian(tiny.params(model)))  # [B, L, V, D]
  depends = np.any(found != 0, axis=-1)
  depends = np.take_along_axis(depends, places[:, None], axis=2)  # [B, L, M]
  before = np.tri(L, dtype=bool)
  target = second[SEQ2SEQ]
  expected = np.stack([np.ones_like(before), before, before.T, before])
  expected[SEQ2SEQ] &= target[:, None] & target[None]
  expected[SEQ2SEQ] |= ~target[None]
  real = text.real[:, :, None] & text.real[:, None]
  np.testing.assert_array_equal(depends & real, expected & real)
  source = (~target & text.real[SEQ2SEQ])[:, None]
  assert not np.any(depends[SEQ2SEQ] & source & target[None])


def test_parts_add_up_and_pairs_count_where_both_sides_are_seen():
  objective, params = of()
  batch = objective.make_batch(rows(12), keys(12))
  assert batch['pair_weights'].tolist() == [1, 0, 0] * 4

  of_whole, of_parts = (
    jax.jit(functools.partial(mean_gradients, objective=objective, num_micro=number))
    for number in (1, 3)
  )
  key = jax.random.key(0)
  whole, parts = of_whole(params, batch, key), of_parts(params, batch, key)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), parts, whole)
  loss, metrics, _ = whole
  weights = {
    name: batch['masked_weights'][batch['masks'] == number].sum()
    for number, name in enumerate(NAMES)
  }
  masked = sum(
    metrics[f'objective/{name}_loss'] * weight for name, weight in weights.items()
  ) / sum(weights.values())
  np.testing.assert_allclose(loss, masked + metrics['objective/pair_loss'], rtol=1e-5)
  # The labels of the others say nothing.
  other = {**batch, 'pair_labels': batch['pair_labels'] ^ (batch['masks'] > 0)}
  np.testing.assert_array_equal(of_whole(params, other, key)[0], loss)


# Two pairs in a row of 7 + 7 tokens: lengths of their sources and targets.
PAIRS, SIDE = [(4, 2), (2, 4)], 7
TARGET_FIELDS = dict(
  attention='bidirectional', input='tokens(token_types=6)', context_length=2 * SIDE
)


def side(lengths, count, size=SIDE, vocab_size=tiny.V):
  """Texts that end with [SEP], no token twice in a row but these."""
  rng = np.random.default_rng(sum(lengths))
  tokens = rng.integers(5, vocab_size, (count, size), np.int32)
  real = np.arange(size) < sum(lengths)
  ends = np.cumsum(lengths)
  segments = np.searchsorted(ends, np.arange(size), side='right')
  positions = np.arange(size) - np.append(0, ends)[segments]
  tokens[:, ends - 1] = SEP
  tokens = np.where(real, tokens, 0).astype(np.int32)

  def each(x):
    return np.broadcast_to(x, (count, size)).astype(x.dtype)

  return Rows(
    tokens,
    each(real),
    segments=each(segments.astype(np.int32)),
    positions=each(positions.astype(np.int32)),
  )


def pair_rows(count, pairs=PAIRS, size=SIDE, vocab_size=tiny.V):
  sources, targets = zip(*pairs, strict=True)
  source = side(sources, count, size, vocab_size)
  source.tokens[:, source.positions[0] == 0] = CLS
  return side(targets, count, size, vocab_size)._replace(source=source)


def test_tokens_of_targets_are_hidden_and_no_others():
  """70% of them, their [SEP] too: 80% [MASK], 10% random, 10% as they are."""
  count, size, vocab = 4000, 53, 1009
  text = pair_rows(count, [(20, 17), (29, 23)], size, vocab)
  model = tiny.model(**TARGET_FIELDS | {'context_length': 2 * size})
  batch = UnifiedTarget().bind(model, Words(vocab)).make_batch(text, keys(count))
  np.testing.assert_array_equal(batch['inputs'][:, :size], text.source.tokens)
  chosen = np.zeros((count, 2 * size), bool)
  index, nth = np.nonzero(batch['masked_weights'])
  chosen[index, batch['masked_positions'][index, nth]] = True
  assert not chosen[:, :size].any()
  chosen = chosen[:, size:]
  assert not (chosen & ~text.real).any() and chosen.sum() == count * 28
  assert abs(chosen[:, 16].mean() - 0.7) < 0.03
  was, now = text.tokens, batch['inputs'][:, size:]
  np.testing.assert_array_equal(now[~chosen], was[~chosen])
  assert abs(np.mean(now[chosen] == MASK) - 0.8) < 0.01
  assert abs(np.mean(now[chosen] == was[chosen]) - 0.1) < 0.01
  targets = batch['masked_targets'][index, nth]
  places = batch['masked_positions'][index, nth] - size
  np.testing.assert_array_equal(targets, was[index, places])


def test_a_row_is_read_as_its_pairs():
  """Positions go on from source to target; types are those of two sides."""
  batch = (
    UnifiedTarget().bind(tiny.model(**TARGET_FIELDS), Words()).make_batch(pair_rows(1), keys(1))
  )
  real = batch['mask'][0]
  assert real.astype(int).tolist() == [*[1] * 6, 0, *[1] * 6, 0]
  places = batch['positions'][0][real].tolist()
  assert places == [0, 1, 2, 3, 0, 1, 4, 5, 2, 3, 4, 5]
  assert batch['token_types'].tolist() == [[4] * SIDE + [5] * SIDE]
  two = tiny.model(**TARGET_FIELDS | {'input': 'tokens(token_types=2)'})
  batch = UnifiedTarget().bind(two, Words()).make_batch(pair_rows(1), keys(1))
  assert batch['token_types'].tolist() == [[0] * SIDE + [1] * SIDE]


def test_nothing_leaks():
  """The loss of a target token depends on its source and what is before."""
  model = tiny.model(**TARGET_FIELDS, num_layers=2, output='untied')
  # All are chosen, and stay what they are.
  objective = UnifiedTarget(rate=1.0, mask=0.0, random=0.0).bind(model, Words())
  batch = objective.make_batch(pair_rows(1), keys(1))
  # The vector of a token is that of its place.
  places = np.random.default_rng(1).permutation(tiny.V)[: 2 * SIDE]
  batch['inputs'] = places[None].astype(np.int32)
  params = tiny.params(model)

  @jax.jit
  def jacobian(table_VD):
    def losses(table_VD):
      given = {**params, 'embed': {'embedding': table_VD}}
      hidden, _ = forward.states(model, given, with_mask(batch), None)
      return (forward.at_chosen(hidden, batch)[0] ** 2).sum(-1)

    return jax.jacrev(losses)(table_VD)

  found = np.asarray(jacobian(params['embed']['embedding']))  # [P, V, D]
  depends = np.any(found[:, places] != 0, axis=-1).astype(int)
  expected = [
    '11110001000000',
    '11110001100000',
    '00001100010000',
    '00001100011000',
    '00001100011100',
    '00001100011110',
  ]
  chosen = batch['masked_weights'][0] > 0
  found = [''.join(map(str, row)) for row in depends[chosen]]
  assert found == expected


def test_the_loss_is_the_mean_of_what_is_chosen():
  """Against logits under the mask, in NumPy; smoothed in training alone."""
  model = tiny.model(**TARGET_FIELDS)
  params = tiny.params(model)
  plain, smooth = (UnifiedTarget(label_smoothing=e).bind(model, Words()) for e in (0.0, 0.1))
  batch = plain.make_batch(pair_rows(2), keys(2))

  @jax.jit
  def run(params):
    hidden, _ = forward.states(model, params, with_mask(batch), None)
    logits = model.apply({'params': params}, forward.at_chosen(hidden, batch), method='logits')
    return (
      logits,
      plain.loss(params, batch, None),
      smooth.loss(params, batch, None),
      smooth.loss(params, batch, jax.random.key(0)),
    )

  logits, found, evaluated, trained = run(params)
  scores = np.float64(logits)
  logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
  weights = batch['masked_weights']
  index = batch['masked_targets'][..., None]
  nll = -np.take_along_axis(logs, index, axis=-1)[..., 0]
  np.testing.assert_allclose(found.sum, (nll * weights).sum(), rtol=1e-5)
  assert found.weight == weights.sum() in (8, 9, 10)  # 4.2 of each row's 6
  np.testing.assert_allclose(evaluated.sum, found.sum, rtol=1e-6)
  expected = ((0.9 * nll - 0.1 * logs.mean(-1)) * weights).sum()
  np.testing.assert_allclose(trained.sum, expected, rtol=1e-5)
  np.testing.assert_allclose(trained.sum - trained.penalty, found.sum, rtol=1e-5)
