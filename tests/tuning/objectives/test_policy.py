# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""PPO and GRPO against recorded values, and what their gradients reach."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file

from gpt_jax import hf
from gpt_jax.core.objectives import choices, forward
from gpt_jax.decoding import sampler
from gpt_jax.tuning.objectives import policy
from gpt_jax.tuning.objectives.policy import clipped_policy_loss, clipped_value_loss, kl_estimate
from tests.support import tiny
from tests.support.cases import slow
from tests.support.golden_io import ROOT

CLOSE = dict(rtol=1e-5, atol=1e-6)
B, L, V = 5, 7, 61


def golden(case):
  """Inputs and outputs of a case."""
  with np.load(ROOT / 'losses/policy.npz') as arrays:
    parts = {'in': {}, 'out': {}}
    for key in arrays.files:
      name, kind, array = key.split('/')
      if name == case:
        parts[kind][array] = arrays[key]
  return parts['in'], parts['out']


def mean(x, mask):
  return (mask * x).sum() / mask.sum()


@pytest.mark.parametrize('case', ['ppo_table', 'ppo_policy'])
def test_clipped_ratio(case):
  """Of six ratios two bind, and have no gradient (PPO, figure 1)."""
  given, expected = golden(case)
  old, advantages, mask = (given[n] for n in ('old_logp', 'advantages', 'mask'))

  def loss(log_probs):
    each = clipped_policy_loss(log_probs, old, advantages, 0.2, 0.2)
    return mean(each[0], mask), each

  gradient, (each, ratio, binds) = jax.grad(loss, has_aux=True)(given['logp'])
  np.testing.assert_allclose(each, expected['each'], **CLOSE)
  np.testing.assert_allclose(ratio, expected['ratio'], **CLOSE)
  np.testing.assert_allclose(gradient, expected['grad_logp'], **CLOSE)
  assert mean(binds, mask) == pytest.approx(float(expected['clip_fraction']))


def test_clipped_values():
  given, expected = golden('value_clip')
  old, returns, mask = (given[n] for n in ('old_values', 'returns', 'mask'))

  def loss(values):
    each = clipped_value_loss(values, old, returns, 0.2)[0]
    return mean(each, mask), each

  gradient, each = jax.grad(loss, has_aux=True)(given['values'])
  np.testing.assert_allclose(each, expected['each'], **CLOSE)
  np.testing.assert_allclose(gradient, expected['grad_values'], **CLOSE)


@pytest.mark.parametrize(
  ('case', 'gamma', 'lam'), [('gae', 1.0, 0.95), ('gae_discounted', 0.99, 0.9)]
)
def test_generalised_advantages(case, gamma, lam):
  given, expected = golden(case)
  mask = given['mask']
  found = policy.gae(given['rewards'], given['values'], mask, gamma, lam)
  for name, x in zip(('advantages', 'returns'), found, strict=True):
    np.testing.assert_allclose(x, expected[name] * mask, **CLOSE)
  white = policy.whiten(found[0], mask)
  np.testing.assert_allclose(white, expected['whitened'] * mask, **CLOSE)
  kept = policy.whiten(found[0], mask, shift_mean=False)
  assert mean(kept, mask) == pytest.approx(mean(found[0], mask), rel=1e-5)


@pytest.mark.parametrize('estimator', ['k1', 'k2', 'k3'])
def test_kl_estimators(estimator):
  given, expected = golden('kl_estimators')

  def loss(log_probs):
    each = kl_estimate(log_probs, given['ref_logp'], estimator)
    return mean(each, given['mask']), each

  gradient, each = jax.grad(loss, has_aux=True)(given['logp'])
  np.testing.assert_allclose(each, expected[estimator], **CLOSE)
  if estimator == 'k3':
    np.testing.assert_allclose(gradient, expected['grad_logp'], **CLOSE)


def test_rewards_of_tokens():
  given, expected = golden('rlhf_rewards')
  kl = kl_estimate(given['logp'], given['ref_logp'], 'k1')
  mask = given['mask']
  found = policy.rlhf_rewards(np.asarray(kl), given['score'], mask, 0.02)
  np.testing.assert_allclose(found, expected['rewards'] * mask, **CLOSE)


@pytest.mark.parametrize('scale', ['group', 'batch', 'none'])
def test_advantages_within_a_group(scale):
  """Against the equations, one group at a time."""
  rewards = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  found = policy.group_advantages(rewards.reshape(-1), 5, scale).reshape(3, 5)
  deviation = np.array([x.std(ddof=1) for x in rewards])[:, None] + 1e-4
  if scale == 'batch':
    deviation = rewards.std(ddof=1) + 1e-4
  elif scale == 'none':
    deviation = 1
  expected = (rewards - rewards.mean(axis=1)[:, None]) / deviation
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


EQUAL = [1000.1, -1e6 / 3, 1 / 3, 0.1, 1e-6, 3e38]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('scale', ['group', 'batch', 'none'])
@pytest.mark.parametrize('num_generations', [2, 3, 6, 7, 10, 12])
def test_equal_rewards_have_no_advantage(num_generations, scale, dtype):
  """One group for each, in a batch where others differ."""
  rewards = np.repeat(np.array(EQUAL, dtype), num_generations)
  found = policy.group_advantages(rewards, num_generations, scale)
  np.testing.assert_array_equal(found, np.zeros(len(rewards)))
  within = policy.within_groups(rewards, num_generations)
  assert within.std(axis=1, ddof=1).tolist() == [0.0] * len(EQUAL)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('value', EQUAL)
def test_equal_numbers_stay_equal_when_whitened(value, dtype):
  mask = np.ones((3, 7), np.float32)
  mask[0, :4] = mask[2, 5:] = 0
  x = np.where(mask, np.full((3, 7), value, dtype), dtype(7)).astype(dtype)
  np.testing.assert_array_equal(policy.whiten(x, mask), 0 * mask)
  kept = policy.whiten(x, mask, shift_mean=False)
  np.testing.assert_array_equal(kept, np.float32(value) * mask)
  nothing = policy.whiten(x, 0 * mask)
  np.testing.assert_array_equal(nothing, 0 * mask)


def test_advantages_that_cancel_are_0():
  """The value function knows each return, whatever the rewards' size."""
  rewards = np.random.default_rng(0).normal(1000.1, 300, (3, 11))
  mask = np.ones((3, 11), np.float32)
  values = np.cumsum(rewards[:, ::-1].astype(np.float32), 1, np.float64)
  values = values[:, ::-1]
  found, _ = policy.gae(rewards.astype(np.float32), values, mask, 1.0, 1.0)
  np.testing.assert_allclose(policy.whiten(found, mask), 0 * mask, atol=1e-6)


def test_value_head():
  """Values and log-probabilities of a Hugging Face model with such a head."""
  folder = ROOT / 'gpt2_value'
  with np.load(folder / 'golden.npz') as arrays:
    ids, mask, values, log_probs = (
      arrays[f'value/{name}']
      for name in ('in/input_ids', 'in/attention_mask', 'out/values', 'out/token_logps')
    )
  head = load_file(folder / 'value_head.safetensors')
  model, params = hf.load(str(folder))
  weight, bias = (head[f'v_head.summary.{n}'] for n in ('weight', 'bias'))
  classifier = {'kernel': weight.T, 'bias': bias}
  params = {**params, 'heads': {'value': {'classifier': classifier}}}
  objective = choices.build(f'ppo(length={ids.shape[1]})', model)
  targets = np.roll(ids, -1, axis=1)
  found = jax.jit(objective.outputs)(params, {'inputs': ids, 'targets': targets})
  found_log_probs, found_values = np.split(np.asarray(found), 2, axis=1)
  real = mask == 1
  np.testing.assert_allclose(found_values[real], values[real], atol=1e-4)
  real = real[:, 1:]
  np.testing.assert_allclose(found_log_probs[:, :-1][real], log_probs[real], atol=1e-4)


def bound(call):
  return choices.build(call, tiny.model(vocab_size=V, context_length=2 * L))


def given_batch(objective, params, seed=0):
  """A batch whose old and reference log-probabilities are the policy's."""
  rng = np.random.default_rng(seed)
  ids = rng.integers(0, V, (B, L + 1)).astype(np.int32)
  counts = rng.integers(1, 5, B)
  place = np.arange(L)
  mask = (place >= 2) & (place < 2 + counts[:, None])
  batch = {name: np.repeat(x, B, 0) for name, x in objective.example.items()}
  batch |= {
    'inputs': ids[:, :-1],
    'targets': ids[:, 1:],
    'mask': mask.astype(np.float32),
    'advantages': rng.normal(size=(B, L)).astype(np.float32),
  }
  outputs = np.asarray(jax.jit(objective.outputs)(params, batch))
  batch['old_log_probs'] = outputs[:, :L]
  batch['ref_log_probs'] = outputs[:, :L]
  if outputs.shape[1] > L:
    batch |= {'old_values': outputs[:, L:], 'returns': 1 + outputs[:, L:]}
  return batch


def params_of(objective):
  boxed = jax.eval_shape(objective.init, jax.random.key(0))
  return tiny.random_like(nn.meta.unbox(boxed), seed=1)


PPO = f'ppo(length={L})'
GRPO = f'grpo(length={L}, max_tokens=5'


@pytest.mark.parametrize(
  'call', [slow(PPO), f'{GRPO}, beta=0.3)', slow(f"{GRPO}, loss_type='grpo')")]
)
def test_the_first_update_is_a_policy_gradient(call):
  """The ratio is 1, so the gradient is that of the mean of A log pi."""
  objective = bound(call)
  params = params_of(objective)
  batch = given_batch(objective, params)
  mask = batch['mask']

  def loss(params):
    found = objective.loss(params, batch, jax.random.key(0))
    return found.sum / found.weight, found.metrics

  def expected(params):
    gain = batch['advantages'] * objective.log_probs(params, batch)
    each = jnp.sum(mask * gain, axis=1)
    if "'grpo'" in call:
      return -jnp.mean(each / mask.sum(axis=1))
    return -jnp.sum(each) / mask.sum()

  if 'ppo' in call:
    objective = objective.replaced(vf_coef=0.0)
  gradient, metrics = jax.grad(loss, has_aux=True)(params)
  ratio = metrics['val/ratio']
  assert ratio.sum / ratio.weight == pytest.approx(1, abs=1e-6)
  wanted = jax.grad(expected)(params)
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), gradient, wanted
  )


def test_dr_grpo_divides_by_the_longest():
  dapo, other = (bound(f'{GRPO}, loss_type={t!r})') for t in ('dapo', 'dr_grpo'))
  params = params_of(dapo)
  batch = given_batch(dapo, params)
  one, two = (jax.jit(x.loss)(params, batch, None) for x in (dapo, other))
  assert one.sum == two.sum
  assert (one.weight, two.weight) == (batch['mask'].sum(), 5 * B)


def test_pretraining_text_counts_gamma_times_its_mean():
  """InstructGPT, equation 2, against the loss of language modelling."""
  with_text, plain = bound(f'ppo(length={L}, ptx=27.8)'), bound(PPO)
  params = params_of(plain)
  batch = given_batch(with_text, params)
  text = given_batch(with_text, params, seed=1)
  rows = {n: text[n] for n in ('inputs', 'targets')} | {'weights': np.ones((B, L), np.float32)}
  batch |= {f'ptx_{name}': x for name, x in rows.items()}
  batch['ptx_weights'][0] = 0
  found = jax.jit(with_text.loss)(params, with_text.weighed(batch), None)
  alone = jax.jit(plain.loss)(params, batch, None)
  lm = jax.jit(bound('causal').loss)(params, rows, None)
  difference = (found.sum - alone.sum) / found.weight
  np.testing.assert_allclose(difference, 27.8 * lm.sum / lm.weight, rtol=1e-4)


def test_the_softmax_of_the_draws():
  """One temperature and one mask: as the decoder's, see `sampler`."""
  model = tiny.model(vocab_size=V, context_length=2 * L)
  never = np.isin(np.arange(V), [4, V - 2, V - 1])
  tokenizer: Any = SimpleNamespace(vocab_size=V - 2, special=SimpleNamespace(never_ids=(4,)))
  objective = choices.build(f'{GRPO}, temperature=0.7)', model)
  objective = objective.replaced(tokenizer=tokenizer)
  params = params_of(objective)
  batch = given_batch(objective, params)
  hidden, _ = forward.states(model, params, {'inputs': batch['inputs']}, None)
  logits = model.apply({'params': params}, hidden, method='logits') / 0.7
  logits = sampler.suppress(logits, never)
  batch['targets'] = np.where(never[batch['targets']], 0, batch['targets'])
  found = objective.log_probs(params, batch)
  at = np.arange(B)[:, None], np.arange(L)[None], batch['targets']
  expected = jax.nn.log_softmax(logits)[at]
  np.testing.assert_allclose(found, expected, atol=1e-5)
