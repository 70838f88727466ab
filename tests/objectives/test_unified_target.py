# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""UniLM's fine-tuning: what a row holds, what it sees, what is predicted."""

import types

import jax
import numpy as np
import pytest

from configs import unilm
from gpt_jax import config as config_lib
from gpt_jax.objectives import forward
from gpt_jax.objectives.unified import UnifiedTarget, with_mask
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from tests.support import tiny

CLS, SEP, MASK = 3, 4, 2
WORDS = types.SimpleNamespace(
  special=types.SimpleNamespace(mask_id=MASK), vocab_size=tiny.V
)
# Two pairs in a row of 7 + 7 tokens: lengths of their sources and targets.
PAIRS, SIDE = [(4, 2), (2, 4)], 7
FIELDS = dict(
  attention='bidirectional',
  input='tokens(token_types=6)',
  context_length=2 * SIDE,
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


def rows(count, pairs=PAIRS, size=SIDE, vocab_size=tiny.V):
  sources, targets = zip(*pairs, strict=True)
  source = side(sources, count, size, vocab_size)
  source.tokens[:, source.positions[0] == 0] = CLS
  return side(targets, count, size, vocab_size)._replace(source=source)


def keys(count):
  numbers = np.arange(count)
  return Keys(3, numbers, numbers, np.zeros(count, int))


def test_tokens_of_targets_are_hidden_and_no_others():
  """70% of them, their [SEP] too: 80% [MASK], 10% random, 10% as they are."""
  count, size, vocab = 4000, 53, 1009
  text = rows(count, [(20, 17), (29, 23)], size, vocab)
  words = types.SimpleNamespace(special=WORDS.special, vocab_size=vocab)
  model = tiny.model(**FIELDS | {'context_length': 2 * size})
  batch = UnifiedTarget().bind(model, words).make_batch(text, keys(count))
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
    UnifiedTarget()
    .bind(tiny.model(**FIELDS), WORDS)
    .make_batch(rows(1), keys(1))
  )
  real = batch['mask'][0]
  assert real.astype(int).tolist() == [*[1] * 6, 0, *[1] * 6, 0]
  places = batch['positions'][0][real].tolist()
  assert places == [*(0, 1, 2, 3, 0, 1), *(4, 5, 2, 3, 4, 5)]
  assert batch['token_types'].tolist() == [[4] * SIDE + [5] * SIDE]
  two = tiny.model(**FIELDS | {'input': 'tokens(token_types=2)'})
  batch = UnifiedTarget().bind(two, WORDS).make_batch(rows(1), keys(1))
  assert batch['token_types'].tolist() == [[0] * SIDE + [1] * SIDE]


def test_nothing_leaks():
  """The loss of a target token depends on its source and what is before."""
  model = tiny.model(**FIELDS, num_layers=2, output='untied')
  # All are chosen, and stay what they are.
  objective = UnifiedTarget(rate=1.0, mask=0.0, random=0.0).bind(model, WORDS)
  batch = objective.make_batch(rows(1), keys(1))
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
    *('11110001000000', '11110001100000'),
    *('00001100010000', '00001100011000'),
    *('00001100011100', '00001100011110'),
  ]
  chosen = batch['masked_weights'][0] > 0
  found = [''.join(map(str, row)) for row in depends[chosen]]
  assert found == expected


def test_the_loss_is_the_mean_of_what_is_chosen():
  """Against logits under the mask, in NumPy; smoothed in training alone."""
  model = tiny.model(**FIELDS)
  params = tiny.params(model)
  plain, smooth = (
    UnifiedTarget(label_smoothing=e).bind(model, WORDS) for e in (0.0, 0.1)
  )
  batch = plain.make_batch(rows(2), keys(2))

  @jax.jit
  def run(params):
    hidden, _ = forward.states(model, params, with_mask(batch), None)
    logits = model.apply(
      {'params': params}, forward.at_chosen(hidden, batch), method='logits'
    )
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
  np.testing.assert_allclose(
    trained.sum - trained.penalty, found.sum, rtol=1e-5
  )


def test_bad_use_is_one_line():
  config = unilm.get_config('cpu').unlock()
  config.objective.name = 'unified_target'
  with pytest.raises(UsageError, match='is made from parallel'):
    config_lib.resolve(config)
