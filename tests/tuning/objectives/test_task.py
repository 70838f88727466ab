# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses of tasks: equations in NumPy, recorded outputs; several tasks."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core import spec
from gpt_jax.core.objectives.causal import Target
from gpt_jax.core.objectives.choices import OBJECTIVES
from gpt_jax.core.training.parts import init_params
from gpt_jax.tuning.objectives.task import Choice, Classification, Regression, of_task
from tests.support import tiny
from tests.support.golden_io import ROOT, case

KEY = jax.random.key(5)
PLAIN = {'loop': 'scan', 'num_layers': 2, 'dropout': 'none'}
# Five examples of two sequences, as similarity has them.
N, C, L = 5, 2, 11
LENGTHS = np.array([[11, 11], [7, 7], [4, 4], [9, 9], [5, 5]], np.int32)


def jitted(objective):
  """The same, of which each function is compiled as a whole."""
  return objective.replaced(loss=jax.jit(objective.loss), outputs=jax.jit(objective.outputs))


def of(build, **fields):
  """Objective and random parameters."""
  objective = jitted(build.bind(tiny.model(**PLAIN, **fields)))
  return objective, tiny.random_like(tiny.shapes(objective), seed=3)


def rows(labels, lengths=LENGTHS):
  return {
    'inputs': tiny.tokens(*lengths.shape, L),
    'lengths': lengths,
    'labels': labels,
    'weights': np.array([1.0, 1.0, 0.0, 2.5, 1.0], np.float32),
  }


def softmax(x):
  x = np.exp(np.asarray(x, np.float64) - np.max(x, axis=-1, keepdims=True))
  return x / x.sum(axis=-1, keepdims=True)


def l1(logits, batch):
  """The mean over the sequences of the mean over their tokens."""
  found = []
  for example, length in zip(range(N), batch['lengths'], strict=True):
    parts = []
    for c, n in enumerate(length):
      row = batch['inputs'][example, c]
      log_probs = np.log(softmax(logits[example, c]))
      parts.append(-np.mean([log_probs[i, row[i + 1]] for i in range(n - 1)]))
    found.append(np.mean(parts))
  return np.array(found)


def states(model_fields, params, batch):
  """Hidden states and logits of each sequence, from the model itself."""
  model = tiny.model(**PLAIN, **model_fields)

  @jax.jit
  def run(tokens):
    hidden = model.apply({'params': params}, tokens).hidden_BLD
    return hidden, model.apply({'params': params}, hidden, method='logits')

  hidden, logits = run(batch['inputs'].reshape(-1, L))
  shape = (*batch['inputs'].shape, -1)
  return np.asarray(hidden).reshape(shape), np.asarray(logits).reshape(shape)


LABELS = np.array([0, 2, 1, 1, 0], np.int32)
SCORES = np.array([0.5, -1.25, 0.0, 2.0, 1.0], np.float32)


@pytest.mark.parametrize('kind', ['classification', 'regression', 'choice'])
def test_the_loss_is_the_papers(kind):
  auxiliary = 0.7
  if kind == 'classification':
    objective, params = of(Classification(3, L, C, auxiliary, 0.0))
    batch = rows(LABELS)
  elif kind == 'regression':
    objective, params = of(Regression(L, C, auxiliary, 0.0))
    batch = rows(SCORES)
  else:
    objective, params = of(Choice(C, L, auxiliary, 0.0))
    batch = rows(np.minimum(LABELS, 1))
  hidden, logits = states({}, params, batch)
  at = np.take_along_axis(hidden, batch['lengths'][..., None, None] - 1, axis=2)[:, :, 0]
  w_y = np.asarray(params['heads']['score']['kernel'], np.float64)
  outputs = (at @ w_y)[..., 0] if kind == 'choice' else (at[:, 0] + at[:, 1]) @ w_y
  if kind == 'regression':
    l2 = (outputs[:, 0] - batch['labels']) ** 2
  else:
    l2 = -np.log(softmax(outputs))[np.arange(N), batch['labels']]
  weights = np.float64(batch['weights'])
  aux = l1(logits, batch)

  found = objective.loss(params, batch, KEY)
  lm = np.sum(weights * aux)
  np.testing.assert_allclose(found.metrics['objective/lm_loss'].sum, lm, rtol=1e-5)
  np.testing.assert_allclose(found.penalty, auxiliary * lm, rtol=1e-5)
  total = np.sum(weights * (l2 + auxiliary * aux))
  np.testing.assert_allclose(found.sum, total, rtol=1e-5)
  assert found.weight == 5.5
  # In evaluation the task's alone.
  found = objective.loss(params, batch, None)
  np.testing.assert_allclose(found.sum, np.sum(weights * l2), rtol=1e-5)
  np.testing.assert_allclose(objective.outputs(params, batch), outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('read, name, inputs', [('extract', 'score', 1), ('concat', 'between', 3)])
def test_the_head_of_an_lstm_starts_as_torchs(read, name, inputs):
  """Within 1 / sqrt(inputs), whatever the number of its outputs."""
  fields = {'attention': f'lstm({tiny.D})', 'block': 'plain'}
  fields |= {'position': 'none', 'init_weights': 'uniform'}
  build = Classification(2, L, 1, 0.0, 0.0, read=read)
  objective = build.bind(tiny.model(**PLAIN | fields))
  params = jax.jit(functools.partial(init_params, objective))(jax.random.key(3))
  kernel = np.abs(params['heads'][name]['kernel'])
  bound = (inputs * tiny.D) ** -0.5
  assert 0.8 * bound < kernel.max() < bound


def test_concat_pools_the_real_tokens():
  """ULMFiT: the last state, maximum and mean; two layers, of 50 units."""
  objective, params = of(Classification(3, L, C, 0.0, 0.0, read='concat'))
  batch = rows(LABELS)
  hidden, _ = states({}, params, batch)
  pooled = []
  for example, lengths in zip(hidden, batch['lengths'], strict=True):
    real = [x[:n] for x, n in zip(example, lengths, strict=True)]
    pooled.append(sum(np.concatenate([x[-1], x.max(0), x.mean(0)]) for x in real))
  between, last = (params['heads'][n] for n in ('between', 'classifier'))
  x = np.float64(pooled) @ between['kernel'] + between['bias']
  assert x.shape == (N, 50) and np.any(x < 0)
  expected = np.maximum(x, 0) @ last['kernel'] + last['bias']
  found = objective.outputs(params, batch)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('segment', [0, 3, 20])
def test_a_segment_stops_the_gradient_of_the_state(segment):
  """With the last state alone, only its own segment's tokens have one."""
  fields = {'attention': f'lstm(13), lstm({tiny.D})', **{'block': 'plain', 'position': 'none'}}
  build = Classification(3, L, 1, 0.0, 0.0, read='concat', segment=segment)
  objective, params = of(build, **fields)
  kernel = np.array(params['heads']['between']['kernel'])
  kernel[tiny.D :] = 0
  params['heads']['between']['kernel'] = kernel
  # Tokens that occur once; the table's gradient is theirs.
  batch = {
    'inputs': np.arange(L, dtype=np.int32)[None, None],
    'lengths': np.array([[L - 1]]),
    'labels': np.array([1]),
    'weights': np.ones(1, np.float32),
  }
  gradient = jax.jit(jax.grad(lambda p: objective.loss(p, batch, KEY).sum))(params)
  found = np.any(gradient['embed']['embedding'][:L] != 0, axis=1)
  first = (L - 2) // segment * segment if segment else 0
  expected = (first <= np.arange(L)) & (np.arange(L) < L - 1)
  np.testing.assert_array_equal(found, expected)


def test_the_order_of_the_sequences_does_not_matter():
  objective, params = of(Classification(3, L, C, 0.5, 0.0))
  batch = rows(LABELS)
  other = {**batch, 'inputs': batch['inputs'][:, ::-1]}
  first, second = (objective.outputs(params, b) for b in (batch, other))
  np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
  # They are told apart before.
  hidden, _ = states({}, params, batch)
  assert np.abs(hidden[:, 0] - hidden[:, 1]).max() > 0.1


def test_what_fills_up_a_row_does_not_count():
  objective, params = of(Classification(3, L, C, 0.5, 0.0))
  batch = rows(LABELS)
  inside = np.arange(L)[None, None] < LENGTHS[..., None]
  other = {**batch, 'inputs': np.where(inside, batch['inputs'], 1)}
  first, second = (objective.loss(params, b, KEY).sum for b in (batch, other))
  np.testing.assert_allclose(first, second, rtol=1e-6)


def test_dropout_acts_on_the_classifier_in_training_alone():
  objective, params = of(Classification(3, L, C, 0.0, 0.5))
  batch = rows(LABELS)
  losses = [
    float(objective.loss(params, batch, key).sum) for key in (KEY, KEY, jax.random.key(6), None)
  ]
  assert losses[0] == losses[1]
  assert len({*losses}) == 3
  without, _ = of(Classification(3, L, C, 0.0, 0.0))
  assert float(without.loss(params, batch, KEY).sum) == losses[3]


def test_classification_as_recorded():
  model, params = hf.load(str(ROOT / 'gpt2_cls'))
  golden = case(ROOT / 'gpt2_cls', 'main')
  build = Classification(3, 16, dropout=0.0)
  objective = jitted(build.bind(model.clone(dropout='none')))
  batch = {
    'inputs': golden.inputs['input_ids'][:, None].astype(np.int32),
    'lengths': golden.inputs['attention_mask'].sum(1)[:, None].astype(np.int32),
    'labels': golden.inputs['labels'].astype(np.int32),
    'weights': np.ones(3, np.float32),
  }
  assert golden.max_error('logits', objective.outputs(params, batch)) < 1e-4
  loss = objective.loss(params, batch, None)
  assert golden.max_error('loss', loss.sum / loss.weight) < 1e-4


def test_choice_with_the_auxiliary_loss_as_recorded():
  model, params = hf.load(str(ROOT / 'openai_gpt_double'))
  golden = case(ROOT / 'openai_gpt_double', 'main')
  ids = golden.inputs['input_ids'].astype(np.int32)
  lengths = golden.inputs['mc_token_ids'].astype(np.int32) + 1
  head = params['heads']['choice']
  params = {**params, 'heads': {'score': {'kernel': head['kernel']}}}
  build = Choice(3, ids.shape[-1], auxiliary=0.5, dropout=0.0)
  objective = jitted(build.bind(model.clone(dropout='none')))
  batch = {
    'inputs': ids,
    'lengths': lengths,
    'labels': golden.inputs['mc_labels'].astype(np.int32),
    'weights': np.ones(2, np.float32),
  }
  outputs = objective.outputs(params, batch)
  # A bias that all answers share falls out of their softmax.
  assert golden.max_error('mc_logits', outputs + head['bias'][None]) < 1e-4
  found = objective.loss(params, batch, KEY)
  task = (found.sum - found.penalty) / 2
  assert golden.max_error('mc_loss', task) < 1e-4
  # The language model's, from the recorded logits.
  log_probs = np.log(softmax(golden.outputs['logits']))
  each = [
    -np.mean([log_probs[b, c, i, ids[b, c, i + 1]] for i in range(n - 1)])
    for (b, c), n in np.ndenumerate(lengths)
  ]
  np.testing.assert_allclose(found.penalty / 2, 0.5 * np.mean(each), atol=1e-4)


def test_the_loss_on_a_target_leaves_the_prompt_out():
  objective, params = of(Target(length=L))
  batch = tiny.batch(3, L, tiny.V)
  _, logits = states({}, params, {'inputs': batch['inputs'][:, None]})
  log_probs = np.log(softmax(logits[:, 0]))
  picked = np.take_along_axis(log_probs, batch['targets'][..., None], -1)
  nll = -(picked[..., 0] * batch['weights']).sum(1)
  found = objective.loss(params, batch, KEY)
  np.testing.assert_allclose(found.sum, nll.sum(), rtol=1e-5)
  assert found.weight == batch['weights'].sum()
  outputs = objective.outputs(params, batch)
  np.testing.assert_allclose(outputs[:, 0], nll, rtol=1e-4)
  np.testing.assert_array_equal(outputs[:, 1], batch['weights'].sum(1))
  best = np.argmax(log_probs, -1)
  right = (best == batch['targets']) | (batch['weights'] == 0)
  np.testing.assert_array_equal(outputs[:, 2], right.all(1))
  # With the most likely targets all are right.
  sure = objective.outputs(params, {**batch, 'targets': best.astype(np.int32)})
  np.testing.assert_array_equal(sure[:, 2], np.ones(3))


MODEL = tiny.model(attention='bidirectional', num_layers=1, loop='unroll')
CALLS = {
  'stsb': 'regression(length=5, auxiliary=0.0, read="first")',
  'race': 'choice(answers=2, length=5, auxiliary=0.0, read="first")',
}


def build(name):
  return spec.build('objective.name', name, OBJECTIVES).bind(MODEL)


@pytest.fixture(scope='module')
def several():
  each = ', '.join(f'{name}:{call!r}' for name, call in CALLS.items())
  objective = build(f'tasks({each})')
  shapes = tiny.shapes(objective)
  return objective, tiny.random_like(shapes, seed=1)


def batch(name):
  """Six sequences, so that both tasks have the same arrays within."""
  rng = np.random.default_rng(0)
  rows, C = (6, 1) if name == 'stsb' else (3, 2)
  labels = rng.normal(size=6) if name == 'stsb' else rng.integers(2, size=3)
  return {
    'inputs': tiny.tokens(rows, C, 5),
    'lengths': rng.integers(3, 6, size=(rows, C)).astype(np.int32),
    'second': np.full((rows, C), 2, np.int32),
    'labels': labels.astype(np.float32 if name == 'stsb' else np.int32),
    'weights': np.float32([1] * (rows - 1) + [0]),
  }


def test_the_pooler_is_shared_and_each_task_has_a_head(several):
  objective, params = several
  assert {*params['heads']} == {'pooler'}
  assert {n: {*x} for n, x in params['parts'].items()} == {name: {'classifier'} for name in CALLS}
  assert objective.of('stsb').frozen == ('race',)
  assert objective.of('race').frozen == ('stsb',)
  assert objective.of('') is objective
  with pytest.raises(AssertionError, match='a batch is of one task'):
    objective.loss(params, {}, None)


def test_a_loss_is_that_of_the_task_alone_by_the_papers_equations(several):
  objective, params = several
  for name, call in CALLS.items():
    one, alone = objective.of(name), build(call)
    of_alone = of_task(params, name)
    rows = batch(name)
    outputs = np.asarray(one.outputs(params, rows), np.float64)
    expected = alone.outputs(of_alone, rows)
    np.testing.assert_array_equal(outputs, np.float64(expected))
    loss = one.loss(params, rows, None)
    assert loss.weight == len(outputs) - 1  # the last row fills up
    if name == 'stsb':  # equation 7
      losses = (rows['labels'] - outputs[:, 0]) ** 2
    else:  # equation 8: of candidates, not of classes
      assert outputs.shape == (3, 2)
      scores = np.exp(outputs)
      right = scores[np.arange(3), rows['labels']]
      losses = -np.log(right / scores.sum(axis=1))
    np.testing.assert_allclose(loss.sum, losses[:-1].sum(), rtol=1e-5)


def test_heads_of_one_shape_start_apart():
  """The first as if it were alone."""

  def init(key):
    drawn = jax.random.normal(key, (2,))
    return {'embed': drawn, 'heads': {'pooler': drawn, 'classifier': drawn}}

  of_each = build(CALLS['stsb']).replaced(init=init)
  key = jax.random.key(0)
  both = build(f'tasks(a:{CALLS["stsb"]!r})')
  found = both.replaced(alone={'a': of_each, 'b': of_each}).init(key)
  a, b = (found['parts'][name]['classifier'] for name in 'ab')
  np.testing.assert_array_equal(a, init(key)['embed'])
  np.testing.assert_array_equal(found['heads']['pooler'], found['embed'])
  assert not np.any(a == b)
