# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss of an encoder-decoder: who sees whom, packed texts, its sums."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from gpt_jax.core import sharding
from gpt_jax.core.objectives import forward
from gpt_jax.core.optim.micro_batches import MicroBatches
from gpt_jax.core.rows.rows import Rows
from gpt_jax.core.training.step import mean_gradients
from gpt_jax.papers.transformer.seq2seq import Seq2Seq, parallel_batch
from tests.support import tiny
from tests.support.cases import slow

M, L, V, FIRST = 13, 11, tiny.V, 7
SIZES = {'num_layers': 2, 'num_encoder_layers': 1}
# Sources and targets of two rows: three texts and two, then padding.
SOURCES, TARGETS = [[4, 2, 5], [6, 3]], [[3, 5, 2], [1, 7]]
EXPERTS = "switch(num_experts=3, expert='relu', capacity_factor=3.0, jitter=0.0)"


def packed(lengths, width, seed):
  """Rows of some texts, packed."""
  shape = (len(lengths), width)
  segments, positions = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
  for row, texts in enumerate(lengths):
    at = 0
    for text, length in enumerate(texts):
      segments[row, at : at + length] = text
      positions[row, at : at + length] = np.arange(length)
      at += length
  tokens = tiny.tokens(*shape, seed=seed)
  return Rows(tokens, segments >= 0, segments=segments, positions=positions)


def rows():
  return packed(TARGETS, L, 0)._replace(source=packed(SOURCES, M, 1))


def batch_of():
  return parallel_batch(rows(), FIRST)


def logits_of(model, params, batch):
  hidden, _ = forward.states(model, params, batch, None)
  return model.apply({'params': params}, hidden, method='logits')


def test_a_batch_of_packed_pairs():
  batch, both = batch_of(), rows()
  np.testing.assert_array_equal(
    batch['inputs'][1], [FIRST, FIRST, *both.tokens[1, 1:7], *[FIRST] * 3]
  )
  assert batch['weights'].sum() == sum(map(sum, TARGETS))
  np.testing.assert_array_equal(batch['targets'], both.tokens)
  np.testing.assert_array_equal(batch['sources'], both.source.tokens)


@pytest.mark.parametrize(
  'changes',
  [slow({'position': 't5_bias'}), {'position': 'learned', 'block': 'post', 'remat': 'full'}],
)
def test_packed_texts_are_as_if_alone(changes):
  model = tiny.model(**SIZES, **changes)
  params, batch = tiny.params(model), batch_of()
  run = jax.jit(functools.partial(logits_of, model))
  found = np.asarray(run(params, batch))
  for row in range(2):
    for text in range(len(TARGETS[row])):
      at = batch['segments'][row] == text
      there = batch['source_segments'][row] == text
      alone = {
        'sources': batch['sources'][row, there],
        'source_mask': np.ones(there.sum(), bool),
        'inputs': batch['inputs'][row, at],
      }
      # Filled up to one shape, so that one program does for all.
      sizes = {'sources': M, 'source_mask': M, 'inputs': L}
      alone = {k: np.pad(x, (0, sizes[k] - len(x)))[None] for k, x in alone.items()}
      wanted = run(params, alone)[0, : at.sum()]
      np.testing.assert_allclose(found[row, at], wanted, rtol=1e-4, atol=1e-5)


def test_no_gradient_crosses_texts_or_comes_from_later_targets():
  """Of a logit by the embedding of what it may not see is exactly 0."""
  model = tiny.model(**SIZES, position='t5_bias')
  params, batch = tiny.params(model), batch_of()
  row, text, place = 0, 1, 3  # the first of the second text's targets
  kept = {k: jnp.asarray(x) for k, x in batch.items()}

  def tables(table, name):
    """The logits, where one side's tokens have embeddings of their own."""
    # A token of its own for each place.
    own = np.arange(kept[name].size, dtype=np.int32).reshape(kept[name].shape)
    wide = tiny.model(**SIZES, position='t5_bias', vocab_size=V + own.size)
    whole = {**params, 'embed': {'embedding': table}}
    hidden, _ = forward.states(wide, whole, {**kept, name: own + V}, None)
    return jnp.sum(hidden[row, place + 1] ** 3)

  for name in ('sources', 'inputs'):
    given = kept[name]
    table = jnp.concatenate(
      [params['embed']['embedding'], params['embed']['embedding'][given.ravel()]]
    )
    gradient = jax.jit(jax.grad(functools.partial(tables, name=name)))(table)
    reached = np.any(np.asarray(gradient)[V:] != 0, axis=-1)
    reached = reached.reshape(given.shape)
    segments = 'source_segments' if name == 'sources' else 'segments'
    seen = np.zeros_like(reached)
    seen[row] = batch[segments][row] == text
    if name == 'inputs':
      seen[row, place + 2 :] = False
    np.testing.assert_array_equal(reached, seen)


@pytest.mark.long
@pytest.mark.slow
def test_the_reported_loss_is_without_smoothing_and_penalties():
  """And sums of parts of a batch are those of the whole."""
  model = tiny.model(num_layers=1, num_encoder_layers=1, ffn=EXPERTS)
  params, batch = tiny.params(model), batch_of()
  plain = Seq2Seq().bind(model)
  smooth = Seq2Seq(label_smoothing=0.1).bind(model)
  key = jax.random.key(0)
  logits = np.float64(logits_of(model, params, batch))
  log_probs = np.asarray(jax.nn.log_softmax(logits))
  weights, targets = batch['weights'], batch['targets'][..., None]
  nll = -np.take_along_axis(log_probs, targets, -1)[..., 0]
  mean = -log_probs.mean(axis=-1)
  expected = np.sum(nll * weights)
  run = jax.jit(lambda batch: smooth.loss(params, batch, key).totals({}))
  total, (found, _, metrics) = run(batch)
  assert {*metrics} > {'router/encoder/load_E', 'router/decoder/load_E'}
  _, stats = forward.states(model, params, batch, None)
  assert {*stats} == {'encoder', 'decoder'}
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # Both stacks' routers cost, by the weight of the batch.
  routers = sum(float(jnp.sum(s.penalty)) for s in stats.values())
  smoothing = 0.1 * np.sum((mean - nll) * weights)
  np.testing.assert_allclose(total - found, smoothing + routers * weights.sum(), rtol=1e-4)
  evaluated = jax.jit(smooth.loss)(params, batch, None)
  same = jax.jit(plain.loss)(params, batch, None)
  assert evaluated.sum == same.sum and evaluated.penalty == 0
  accuracy = evaluated.metrics['objective/token_accuracy']
  right = np.sum((log_probs.argmax(-1) == batch['targets']) * weights)
  assert accuracy.sum == right and accuracy.weight == weights.sum()


@pytest.mark.slow
def test_micro_batches_and_meshes_change_nothing():
  fields = {
    **{k.removeprefix('model.'): v for k, v in tiny.MESHABLE.items()},
    'num_encoder_layers': 2,
    'context_length': M,
    'num_layers': 2,
  }
  model = tiny.model(**{k: v for k, v in fields.items() if not k.startswith('batch.')})
  params = tiny.params(model)
  batch = {k: np.concatenate([x, x[::-1]]) for k, x in batch_of().items()}
  batch['weights'][2:] *= np.float32([[0.5], [2.0]])
  smooth = Seq2Seq(label_smoothing=0.1).bind(model)
  rules = sharding.parse_rules(base.get_config().mesh.rules)

  def gradients(*parts):
    parts = MicroBatches(*parts)._asdict()
    return jax.jit(functools.partial(mean_gradients, objective=smooth, **parts))(
      params, batch, jax.random.key(0)
    )

  loss, _, whole = gradients(1)
  others = [gradients(2)]
  with sharding.use(tiny.make_mesh(2, 1, 2), rules):
    others.append(gradients(2, 2, 2))
  for found, _, grads in others:
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), grads, whole)
