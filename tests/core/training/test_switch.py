# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models with experts: causality, auxiliary losses and generation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.objectives.choices import OBJECTIVES
from gpt_jax.core.training.step import mean_gradients
from tests.support import decoding, tiny
from tests.support.cases import slow

V, CONTEXT = tiny.V, 12
# Of two layers with experts, of which about a third of the tokens are dropped.
SWITCH = 'switch(num_experts=3, capacity_factor=0.75, jitter=0, z_loss=0.1)'


def model(ffn=f'gelu, {SWITCH}', **changes):
  return tiny.model(ffn=ffn, context_length=CONTEXT, num_layers=4, **changes)


def objective(of):
  return spec.build('objective.name', 'causal', OBJECTIVES).bind(of)


def params_of(of):
  return tiny.params(of)


@functools.partial(jax.jit, static_argnames='of')
def trained(of, params, tokens):
  """Hidden states and what was kept, as in training."""
  out, sown = of.apply(
    {'params': params}, tokens, rngs={'dropout': jax.random.key(0)}, mutable=['intermediates']
  )
  period = sown['intermediates']['decoder']['periods']
  return out.hidden_BLD, period['block_1']['ffn']['router_kept'][0]


@pytest.mark.parametrize('group_size, top_k', [slow(0, 1), (4, 2), (24, 1)])
def test_no_token_depends_on_a_later_one(group_size, top_k):
  """In groups of a row, of a third, and of two rows; bit for bit."""
  text = SWITCH[:-1] + f', group_size={group_size}, top_k={top_k})'
  of = model(f'gelu, {text}')
  params, tokens = params_of(of), tiny.tokens(2, CONTEXT)
  before, kept = trained(of, params, tokens)
  assert 0.1 < 1 - np.mean(kept) < 0.7
  changed = tokens.copy()
  changed[1, 7:] = (changed[1, 7:] + 1 + np.arange(5)) % V
  after, kept_after = trained(of, params, changed)
  np.testing.assert_array_equal(after[0], before[0])
  np.testing.assert_array_equal(after[1, :7], before[1, :7])
  assert np.all(np.any(after[1, 7:] != before[1, 7:], axis=-1))
  # [layers, rows, tokens, choices]
  np.testing.assert_array_equal(kept_after[:, 0], kept[:, 0])
  np.testing.assert_array_equal(kept_after[:, 1, :7], kept[:, 1, :7])


def batch():
  """Of which all tokens count, as in pre-training."""
  out = tiny.batch(4, CONTEXT, V)
  return {**out, 'weights': np.ones_like(out['weights'])}


def loss_and_gradients(of, key, num_micro=1):
  function = functools.partial(mean_gradients, objective=objective(of), num_micro=num_micro)
  return jax.jit(function)(params_of(model()), batch(), key)


@functools.cache
def unrolled():
  return loss_and_gradients(model(loop='unroll'), jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(
  'loop, remat, num_micro', [('scan', 'none', 1), ('scan', 'full', 1), ('scan', 'dots', 2)]
)
def test_auxiliary_losses_survive(loop, remat, num_micro):
  """Scans, recomputation and micro-batches give what unrolled layers do."""
  found = loss_and_gradients(model(loop=loop, remat=remat), jax.random.key(0), num_micro)
  tiny.assert_close(found, unrolled())


@pytest.mark.slow
def test_each_auxiliary_loss_has_a_gradient_on_every_router():
  """The loss is their sum with the cross-entropy, which is reported alone."""
  _, metrics, whole = unrolled()
  for name in ('balance', 'z_loss', 'penalty'):
    values = metrics[f'router/decoder/{name}']
    assert values.shape == (2,)
    assert np.all(np.isfinite(values)) and np.all(values > 0)
  assert metrics['router/decoder/load_E'].shape == (2, 3)
  np.testing.assert_allclose(
    metrics['router/decoder/penalty'],
    0.01 * metrics['router/decoder/balance'] + 0.1 * metrics['router/decoder/z_loss'],
    rtol=1e-5,
  )

  def auxiliary(params):
    stats = objective(model()).loss(params, batch(), jax.random.key(0)).stats['router/decoder']
    return jnp.stack([jnp.sum(stats.balance), jnp.sum(stats.z_loss)])

  def router(grads):
    return grads['decoder']['periods']['block_1']['ffn']['router']['kernel']

  parts = router(jax.jit(jax.jacrev(auxiliary))(params_of(model())))
  # [losses, layers, D, E]
  assert np.all(np.max(np.abs(parts), axis=(2, 3)) > 1e-3)
  text = SWITCH.replace('z_loss=0.1', 'z_loss=0, balance=0')
  loss, _, without = loss_and_gradients(model(f'gelu, {text}'), jax.random.key(0))
  np.testing.assert_allclose(loss, unrolled()[0], rtol=1e-5)
  added = router(without) + 0.01 * parts[0] + 0.1 * parts[1]
  tiny.assert_close(np.asarray(added), np.asarray(router(whole)))


def test_evaluation_is_deterministic_and_of_each_row_alone():
  """It drops nothing, and adds nothing to the loss."""
  of = model(dropout='rates(residual=0.1)')
  loss = jax.jit(functools.partial(objective(of).loss, key=None))
  params, batch = params_of(of), tiny.batch(3, CONTEXT, V)
  whole = loss(params, batch)
  assert whole.penalty == 0
  assert not np.any(whole.stats['router/decoder'].dropped)
  assert loss(params, batch).sum == whole.sum
  alone = [loss(params, {name: x[i : i + 1] for name, x in batch.items()}) for i in range(3)]
  np.testing.assert_allclose(sum(x.sum for x in alone), whole.sum, rtol=1e-5)


def test_generation_is_dropless_and_equals_the_forward_pass():
  """Even if evaluation is not: single tokens would fill no group."""
  text = 'gelu, switch(num_experts=3, top_k=2, eval_capacity_factor=0.5)'
  of, plain = model(text), model(text.replace('0.5', "'none'"))
  params = params_of(of)
  prompts = [[3, 1, 4], [5]]
  found = decoding.generate(of, params, prompts, max_tokens=4, seed=0)

  @jax.jit
  def next_tokens(tokens):
    hidden = plain.apply({'params': params}, tokens).hidden_BLD
    logits = plain.apply({'params': params}, hidden, method='logits')
    return jnp.argmax(logits, axis=-1)

  for prompt, new in zip(prompts, found, strict=True):
    ids = np.zeros((1, CONTEXT), np.int32)
    ids[0, : len(prompt) + 4] = prompt + new
    expected = next_tokens(ids)[0, len(prompt) - 1 : len(prompt) + 3]
    assert new == expected.tolist()
