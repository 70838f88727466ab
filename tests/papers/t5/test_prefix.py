# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a prefix LM sees and predicts, by gradients and in NumPy."""

import types

import jax
import numpy as np
import pytest

from configs import gpt1
from gpt_jax.core import config as config_lib
from gpt_jax.core.costs import flops, totals
from gpt_jax.core.nn.row import Row
from gpt_jax.core.rows.rows import Rows, cut
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special
from gpt_jax.papers.t5.prefix import Prefix
from gpt_jax.papers.t5.t5 import Span
from tests.support import reference, tiny
from tests.support.objectives import EOS, Words, keys

N, L = 5, tiny.L


def make_batch(rows, of):
  model = tiny.model(context_length=rows.tokens.shape[1])
  return Prefix().bind(model).make_batch(rows, of)


def batch_of(count, length=L):
  return make_batch(cut(tiny.tokens(count, length + 1)), keys(count))


def test_the_loss_is_that_of_the_second_part():
  """Against the logits under a mask that is written out."""
  model = tiny.model(num_layers=2)
  objective, params = Prefix().bind(model), tiny.params(model)
  batch = batch_of(N)
  sizes = batch['prefix']
  assert len({*sizes.tolist()}) > 2
  row, column = np.arange(L)[:, None], np.arange(L)[None]
  seen = np.stack([(column <= row) | (column < size) for size in sizes])
  both = model.clone(attention='bidirectional')

  @jax.jit
  def run(params):
    variables = {'params': params}
    out = both.apply(variables, Row(batch['inputs'], visible_BLM=seen))
    logits = both.apply(variables, out.hidden_BLD, method='logits')
    return logits, objective.loss(params, batch, None)

  logits, found = run(params)
  # The first token after the prefix is predicted by the last of the prefix.
  counts = np.stack([np.arange(L) >= size - 1 for size in sizes])
  assert found.weight == counts.sum()
  wanted, _ = reference.run(
    reference.loss_of, logits, np.eye(tiny.V), batch['targets'], np.float32(counts)
  )
  np.testing.assert_allclose(found.sum, wanted, rtol=1e-5)


def test_a_target_sees_nothing_after_it_and_a_prefix_all_of_itself():
  """By the loss of each token, and the vectors of the inputs."""
  model = tiny.model(num_layers=2, output='untied')
  params = tiny.params(model)
  objective = Prefix().bind(model)
  rng = np.random.default_rng(3)
  # No token twice in a row: the vector of one is that of its place.
  inputs = np.argsort(rng.random((N, tiny.V)))[:, :L].astype(np.int32)
  batch = {**batch_of(N), 'inputs': inputs}
  assert batch['prefix'].min() < 5 and batch['prefix'].max() > 9

  one = jax.jit(
    jax.grad(
      lambda table_VD, weights_BL: (
        objective.loss(
          {**params, 'embed': {'embedding': table_VD}}, {**batch, 'weights': weights_BL}, None
        ).sum
      )
    )
  )
  for b in range(N):
    size = batch['prefix'][b]
    for t in range(L):
      if not batch['weights'][b, t]:
        assert t < size - 1
        continue
      weights = np.zeros((N, L), np.float32)
      weights[b, t] = 1
      gradient = one(params['embed']['embedding'], weights)
      depends = np.any(np.asarray(gradient)[inputs[b]] != 0, axis=-1)
      # The last of the prefix sees all of it and predicts the token after.
      np.testing.assert_array_equal(depends, np.arange(L) <= max(t, size - 1))


def test_every_split_is_as_likely():
  count, length = 20_000, 16
  batch = batch_of(count, length)
  found = np.bincount(batch['prefix'])
  assert found[0] == 0 and len(found) == length + 1
  np.testing.assert_allclose(found[1:] / count, 1 / length, atol=6e-3)
  after = length - batch['prefix'] + 1
  np.testing.assert_array_equal(batch['weights'].sum(axis=1), after)


def test_padding_is_neither_a_prefix_nor_predicted():
  real = np.arange(L)[None] < np.array([1, 4, 0])[:, None]
  rows = cut(tiny.tokens(3, L + 1), real)
  for first in range(20):
    batch = make_batch(rows, keys(3, first))
    assert np.all(batch['prefix'] <= np.maximum(real.sum(axis=1), 1))
    counted = batch['weights'].sum(axis=1)
    assert counted[0] == 1 and 1 <= counted[1] <= 4 and counted[2] == 0


def test_both_sides_fit_the_model():
  short = tiny.model(context_length=13)
  objective = Prefix('seq2seq').bind(short, Words())
  with pytest.raises(UsageError, match='are 14 tokens in one row; raise it'):
    objective.make_batch(pairs([[(3, 2)]]), keys(1))


def pairs(sizes, length=7):
  """Packed rows of two sides, of pairs with (source, target) tokens each."""
  rng = np.random.default_rng(4)

  def side(which):
    shape = len(sizes), length
    tokens, real = np.zeros(shape, np.int32), np.zeros(shape, bool)
    segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for i, row in enumerate(sizes):
      at = 0
      for nth, pair in enumerate(row, 1):
        part = slice(at, at + pair[which])
        tokens[i, part] = rng.integers(2, tiny.V, pair[which])
        tokens[i, part.stop - 1] = EOS
        real[i, part], segments[i, part] = True, nth
        positions[i, part] = np.arange(pair[which])
        at = part.stop
    return Rows(tokens, real, segments=segments, positions=positions)

  return side(1)._replace(source=side(0))


@pytest.mark.parametrize('sees', ['both', 'left'])
def test_the_source_of_a_pair_is_the_prefix(sees):
  """And packed pairs do not see each other: under a mask written out."""
  sizes = [[(3, 2), (2, 4)], [(5, 7)], [(1, 1), (2, 2), (3, 1)]]
  rows, M = pairs(sizes), 7
  model = tiny.model(num_layers=2, context_length=2 * M)
  objective = Prefix('seq2seq(label_smoothing=0.1)', sees).bind(model, Words())
  batch = objective.make_batch(rows, keys(3))
  inputs, places = np.zeros((3, 2 * M), np.int32), np.zeros((3, 2 * M), int)
  seen = np.zeros((3, 2 * M, 2 * M), bool)
  for i, row in enumerate(sizes):
    first, second = 0, M
    for m, n in row:
      source, target = (np.arange(m) + first, np.arange(n) + second)
      inputs[i, source] = rows.source.tokens[i, source]
      inputs[i, target] = [1, *rows.tokens[i, target - M][:-1]]
      places[i, source], places[i, target] = np.arange(m), m + np.arange(n)
      for x in source:
        last = source[-1] if sees == 'both' else x
        seen[i, x, first : last + 1] = True
      for x in target:
        seen[i, x, source] = seen[i, x, second : x + 1] = True
      first, second = first + m, second + n
  other = model.clone(attention='bidirectional')

  @jax.jit
  def run(params):
    variables = {'params': params}
    out = other.apply(variables, Row(inputs, places, visible_BLM=seen))
    states = out.hidden_BLD[:, M:]
    logits = other.apply(variables, states, method='logits')
    return logits, objective.loss(params, batch, None)

  logits, found = run(tiny.params(model))
  assert found.weight == rows.real.sum()
  wanted, _ = reference.run(
    reference.loss_of, logits, np.eye(tiny.V), rows.tokens, np.float32(rows.real)
  )
  np.testing.assert_allclose(found.sum, wanted, rtol=1e-5)


def test_spans_of_a_text_are_written_after_the_rest():
  """T5's: 512 tokens of the source and 114 of the target, from 568 of text."""
  names = {f'<extra_id_{i}>': 131 - i for i in range(100)} | {'<pad>': 0}
  words = types.SimpleNamespace(vocab_size=132, special=special.of({}, 1, names))
  rows = cut(np.random.default_rng(2).integers(2, 32, (2, 569), np.int32))
  sizes = {'vocab_size': 132}
  alone = tiny.model(context_length=512, num_encoder_layers=1, **sizes)
  decoder = tiny.model(context_length=626, **sizes)
  two = Span().bind(alone, words).make_batch(rows, keys(2))
  unbound = Prefix('span')
  one = unbound.bind(decoder, words).make_batch(rows, keys(2))
  joined = np.concatenate([two['sources'], two['inputs']], axis=1)
  np.testing.assert_array_equal(one['inputs'], joined)
  assert one['inputs'].shape == (2, 626) and one['mask'].all()
  np.testing.assert_array_equal(one['targets'], two['targets'])
  np.testing.assert_array_equal(one['weights'], two['weights'])
  assert one['positions'].tolist() == [[*range(626)]] * 2
  assert one['prefix'].tolist() == [512] * 2
  needs = unbound.needs
  assert needs.text_length(626) == 568 and needs.sides(568)[1] == 626
  assert needs.sentinels(626) == Span().needs.sentinels(512) == 28


def test_a_row_of_two_sides_fits_into_the_context_and_is_counted():
  config = gpt1.get_config('cpu').unlock()
  config.objective.name = "prefix('seq2seq')"
  config.model.vocab_size = 4096
  config.batch.length = None
  config = config_lib.resolve_model(config)
  m = config.model
  assert config_lib.row_tokens(config) == m.context_length // 2 == 128
  assert config_lib.sides(config, 128)[1] == 256
  params, figures = totals.figures_of(config)
  # Two tokens through the layers and one to the vocabulary, by token of text;
  # both of them attend to the whole row.
  layers = 2 * m.num_layers * 12 * m.d_model**2
  attention = 12 * 2 * m.num_layers * m.d_model * 256
  table = 4096 * m.d_model
  assert figures['flops_per_token'] == 6 * (layers + table) + attention
  assert flops.per_token(config, params, 64) < figures['flops_per_token']
