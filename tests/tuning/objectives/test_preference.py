# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reward models and DPO, against PyTorch's values and gradients."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.objectives.cross_entropy import Scores, token_log_probs
from gpt_jax.tuning.objectives.preference import Dpo, RewardModel, dpo_losses, ranking_terms
from tests.support import tiny
from tests.support.golden_io import ROOT

CLOSE = dict(rtol=1e-5, atol=1e-6)
B, L = 3, 7


def golden(case):
  """The inputs and outputs of a case, in float64 where there are these."""
  with np.load(ROOT / 'losses/preference.npz') as arrays:
    own = [n for n in arrays.files if n.startswith(f'{case}/')]
    found = {n.removeprefix(f'{case}/'): arrays[n] for n in own}
  inputs = {n[3:]: x for n, x in found.items() if n.startswith('in/')}
  outputs = {
    n.removeprefix('out/').removesuffix('_f64'): x for n, x in found.items() if n.endswith('_f64')
  }
  return inputs, outputs


def test_bradley_terry_as_recorded():
  inputs, expected = golden('bradley_terry')

  def loss(chosen, rejected):
    rewards = jnp.stack([chosen, rejected], axis=1)
    terms = ranking_terms(rewards, jnp.full(len(chosen), 2))
    return jnp.mean(terms['loss']), terms

  both = inputs['chosen'], inputs['rejected']
  (found, terms), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(*both)
  np.testing.assert_allclose(found, expected['loss'], **CLOSE)
  np.testing.assert_allclose(jnp.mean(terms['accuracy']), expected['accuracy'], **CLOSE)
  for grad, name in zip(grads, ('chosen', 'rejected'), strict=True):
    np.testing.assert_allclose(grad, expected[f'grad_{name}'], **CLOSE)
  np.testing.assert_allclose(terms['margin'], both[0] - both[1], **CLOSE)
  np.testing.assert_allclose(terms['mean_reward'], sum(both) / 2, **CLOSE)


def test_rankings_as_recorded_beside_shorter_ones():
  """Padding, even of huge rewards, is in no pair and no mean."""
  inputs, expected = golden('ranking')
  rewards = inputs['rewards']
  counts = np.full(len(rewards), rewards.shape[1])
  wide = np.pad(rewards, ((0, 0), (0, 2)), constant_values=1e9)

  def loss(wide):
    return jnp.mean(ranking_terms(wide, counts)['loss'])

  found, grad = jax.value_and_grad(loss)(jnp.asarray(wide))
  np.testing.assert_allclose(found, expected['loss'], **CLOSE)
  np.testing.assert_allclose(grad[:, :-2], expected['grad_rewards'], **CLOSE)
  np.testing.assert_array_equal(grad[:, -2:], 0)


def test_centering_adds_the_square_of_a_pairs_sum():
  rewards, counts = jnp.array([[0.7, -0.2, 0.4]]), np.array([3])
  plain, centered = (ranking_terms(rewards, counts, c)['loss'][0] for c in (0.0, 0.1))
  sums = np.square([0.7 - 0.2, 0.7 + 0.4, -0.2 + 0.4])
  np.testing.assert_allclose(centered - plain, 0.1 * np.mean(sums), **CLOSE)


@pytest.mark.parametrize('name', ['gpt2_reward', 'llama_reward'])
def test_a_reward_model_as_recorded(name):
  """The loss, and the norm of each gradient, of pairs of unequal lengths."""
  folder = ROOT / name
  model, params = hf.load(str(folder))
  with np.load(folder / 'golden.npz') as arrays:
    ids, mask = (arrays[f'main/in/{n}'] for n in ('input_ids', 'attention_mask'))
    loss, logits = (arrays[f'main/out/{n}'] for n in ('_loss', 'logits'))

  def paired(x):  # the first half is chosen, the second rejected
    return np.stack(np.split(x, 2), axis=1).astype(np.int32)

  inputs = paired(ids)
  objective = RewardModel(2, inputs.shape[-1]).bind(model.clone(dropout='none'))
  batch = {
    'inputs': inputs,
    'lengths': paired(mask.sum(axis=1)),
    'labels': np.full(3, 2, np.int32),
    'weights': np.ones(3, np.float32),
  }
  outputs = jax.jit(objective.outputs)(params, batch)
  recorded = np.stack(np.split(logits[:, 0], 2), axis=1)
  np.testing.assert_allclose(outputs, recorded, atol=1e-4)

  @jax.jit
  @jax.value_and_grad
  def run(params):
    found = objective.loss(params, batch, None)
    return found.sum / found.weight

  found, grads = run(params)
  np.testing.assert_allclose(found, loss, atol=1e-5)
  norms = json.loads((folder / 'meta.json').read_text())['loss_grad_norm']
  whole = np.sqrt(sum(np.square(x).sum() for x in jax.tree.leaves(grads)))
  np.testing.assert_allclose(whole, np.sqrt(np.sum(np.square([*norms.values()]))), rtol=1e-4)
  np.testing.assert_allclose(
    np.linalg.norm(grads['heads']['score']['kernel']), norms['score.weight'], rtol=1e-4
  )


@pytest.mark.parametrize('case', ['dpo', 'dpo_smooth', 'ipo'])
def test_dpo_losses_as_recorded(case):
  inputs, expected = golden(case)
  smoothing = 0.1 if case == 'dpo_smooth' else 0.0
  kind = 'ipo' if case == 'ipo' else 'sigmoid'

  def loss(chosen, rejected):
    ratio = chosen - inputs['ref_chosen'], rejected - inputs['ref_rejected']
    each = dpo_losses(ratio[0] - ratio[1], 0.1, kind, smoothing)
    return jnp.mean(each), each

  both = inputs['policy_chosen'], inputs['policy_rejected']
  (found, each), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(*both)
  np.testing.assert_allclose(found, expected['loss'], **CLOSE)
  np.testing.assert_allclose(each, expected['each'], **CLOSE)
  for grad, name in zip(grads, ('chosen', 'rejected'), strict=True):
    np.testing.assert_allclose(grad, expected[f'grad_policy_{name}'], **CLOSE)


def test_hinge_is_zero_beyond_its_margin():
  found = dpo_losses(jnp.array([-4.0, 0.0, 3.0, 20.0]), 0.1, 'hinge', 0.0)
  np.testing.assert_allclose(found, [1.4, 1.0, 0.7, 0.0], **CLOSE)


@pytest.mark.parametrize('chunk', [1 << 25, 11])
def test_dpo_of_logits_as_recorded(chunk, monkeypatch):
  """The token after the prompt counts; in one chunk of positions and many."""
  monkeypatch.setattr('gpt_jax.core.objectives.cross_entropy.CHUNK_LOGITS', chunk)
  inputs, expected = golden('dpo_logits')
  labels = inputs['labels'][..., 1:]  # logits at t predict labels at t + 1
  counts = labels != -100
  N, _, T, V = inputs['policy_logits'].shape

  def summed(logits):
    found = token_log_probs(
      Scores(logits[:, :, :-1].reshape(2 * N, T - 1, V), jnp.eye(V)),
      np.maximum(labels, 0).reshape(2 * N, T - 1),
    )
    return jnp.sum(found.reshape(N, 2, T - 1) * counts, axis=2)

  reference = summed(inputs['ref_logits'])
  np.testing.assert_allclose(reference, expected['ref_logps'], rtol=1e-5)

  def loss(logits):
    ratio = summed(logits) - reference
    return jnp.mean(dpo_losses(ratio[:, 0] - ratio[:, 1], 0.1, 'sigmoid', 0.0))

  logits = jnp.asarray(inputs['policy_logits'])
  found, grad = jax.value_and_grad(loss)(logits)
  np.testing.assert_allclose(summed(logits), expected['policy_logps'], rtol=1e-5)
  np.testing.assert_allclose(found, expected['loss'], **CLOSE)
  np.testing.assert_allclose(grad, expected['grad_policy_logits'], **CLOSE)


def pairs():
  """Three pairs; completions start at different places, and rows are padded."""
  tokens = tiny.tokens(B, 2, L + 1)
  place = np.arange(L)[None, None]
  starts = np.array([[1, 1], [3, 3], [2, 2]])[..., None]
  ends = np.array([[7, 4], [5, 7], [3, 6]])[..., None]
  counts = (place >= starts) & (place < ends)
  return {
    'inputs': tokens[..., :-1],
    'targets': tokens[..., 1:],
    'counts': counts.astype(np.float32),
    'reference': np.zeros((B, 2), np.float32),
    'weights': np.ones(B, np.float32),
  }


@pytest.mark.parametrize(
  ('loss_type', 'expected'), [('sigmoid', np.log(2)), ('ipo', 1 / 0.2**2), ('hinge', 1.0)]
)
def test_a_policy_equal_to_its_reference(loss_type, expected):
  """Whatever the pairs: log 2, (1 / (2 beta))^2, 1; and nothing is learned."""
  model = tiny.model(num_layers=1)
  objective = Dpo(L, loss_type=loss_type).bind(model)
  params, batch = tiny.params(model), pairs()
  reference = jax.jit(objective.outputs)(params, batch)
  found = jax.jit(objective.loss)(params, {**batch, 'reference': reference}, None)
  np.testing.assert_allclose(found.sum / found.weight, expected, rtol=1e-5)
  np.testing.assert_allclose(found.metrics['rewards/margins'].sum, 0, atol=1e-5)
  # Against the model's own logits, one token at a time.
  logits = logits_of(model, params, batch)
  each = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
  picked = np.take_along_axis(each, batch['targets'][..., None], axis=-1)
  summed = np.sum(picked[..., 0] * batch['counts'], axis=2)
  np.testing.assert_allclose(reference, summed, rtol=1e-4, atol=1e-4)


def logits_of(model, params, batch):
  rows = batch['inputs'].reshape(2 * B, L)
  hidden = jax.jit(model.apply)({'params': params}, rows).hidden_BLD
  logits = model.apply({'params': params}, hidden, method='logits')
  return np.float64(logits).reshape(B, 2, L, -1)


def test_ipo_takes_means_over_the_tokens():
  model = tiny.model(num_layers=1)
  params, batch = tiny.params(model), pairs()
  objective = Dpo(L, beta=0.3, loss_type='ipo').bind(model)
  summed = np.asarray(jax.jit(objective.outputs)(params, batch))
  means = summed / batch['counts'].sum(axis=2)
  h = means[:, 0] - means[:, 1]
  found = jax.jit(objective.loss)(params, batch, None)
  expected = np.sum(np.square(h - 1 / 0.6))
  np.testing.assert_allclose(found.sum, expected, rtol=1e-4)


def test_metrics_of_dpo():
  """Rewards are beta log(pi / pi_ref); pairs of weight 0 fill a batch."""
  model = tiny.model(num_layers=1)
  params, batch = tiny.params(model), pairs()
  batch['weights'][2] = 0
  objective = Dpo(L, beta=0.5).bind(model)
  policy = np.asarray(jax.jit(objective.outputs)(params, batch))[:2]
  reference = batch['reference'] = policy_like(policy)
  found = jax.jit(objective.loss)(params, batch, None)
  assert found.weight == 2
  rewards = 0.5 * (policy - reference[:2])
  margins = rewards[:, 0] - rewards[:, 1]
  expected = {
    'rewards/chosen': rewards[:, 0],
    'rewards/rejected': rewards[:, 1],
    'rewards/margins': margins,
    'rewards/accuracies': margins > 0,
    'logps/chosen': policy[:, 0],
    'logps/rejected': policy[:, 1],
  }
  assert {*found.metrics} == {*expected}
  for name, values in expected.items():
    mean = found.metrics[name]
    np.testing.assert_allclose(mean.sum / mean.weight, np.mean(values), rtol=1e-4, err_msg=name)


def policy_like(policy):
  noise = np.random.default_rng(0).normal(size=(B, 2))
  return np.float32(np.pad(policy, ((0, 1), (0, 0))) + noise)
