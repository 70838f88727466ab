# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimisers against the papers' algorithms, in float64."""

import jax
import numpy as np
import optax
import pytest
import tiny

from gpt_jax import flops, spec
from gpt_jax.optim import batch_ramp
from gpt_jax.optim.optimizer import OPTIMIZERS, decay_mask
from gpt_jax.optim.schedules import SCHEDULES

STEPS = 20
RAMP = batch_ramp.constant(3, row_tokens=5)
DECAY = 0.3
B1, B2, EPS = 0.9, 0.95, 1e-6


def rate(step):
  """cosine(peak=0.03, warmup=5, final=0.1) over 20 steps."""
  if step < 5:
    return 0.03 * (step + 1) / 5
  x = (step - 5) / 15
  return 0.03 * (0.1 + 0.9 * (1 + np.cos(np.pi * x)) / 2)


def algorithm(theta, gradients, *, decay):
  """Algorithm 2 of Loshchilov and Hutter; without decay, Kingma and Ba's."""
  m, v = np.zeros_like(theta), np.zeros_like(theta)
  for t, g in enumerate(gradients, start=1):
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g**2
    m_hat = m / (1 - B1**t)
    v_hat = v / (1 - B2**t)
    theta = theta - rate(t - 1) * (
      m_hat / (np.sqrt(v_hat) + EPS) + decay * theta
    )
  return theta


def shapes():
  return {
    'embed': {'embedding': (7, 3)},
    'dense': {'kernel': (2, 3, 5), 'bias': (2, 5)},
    'norm': {'scale': (3,), 'bias': (3,)},
  }


@pytest.mark.parametrize('name, decay', [('adam', 0.0), ('adamw', DECAY)])
def test_twenty_steps(name, decay):
  rng = np.random.default_rng(0)

  def draw(shape):
    return rng.normal(size=shape)

  is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
  start = jax.tree.map(draw, shapes(), is_leaf=is_shape)
  gradients = [
    jax.tree.map(draw, shapes(), is_leaf=is_shape) for _ in range(STEPS)
  ]
  text = f'{name}(b1={B1}, b2={B2}, eps={EPS}'
  text += f', weight_decay={decay})' if decay else ')'
  schedule = spec.build(
    'schedule.name', 'cosine(peak=0.03, warmup=5, final=0.1)', SCHEDULES
  )(RAMP, STEPS)
  optimizer = spec.build('optim.name', text, OPTIMIZERS)(schedule)

  @jax.jit
  def step(params, state, gradient):
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state

  to_float32 = lambda tree: jax.tree.map(np.float32, tree)  # noqa: E731
  params = to_float32(start)
  state = optimizer.init(params)
  for gradient in gradients:
    params, state = step(params, state, to_float32(gradient))

  for group, leaves in shapes().items():
    for leaf in leaves:
      expected = algorithm(
        start[group][leaf],
        [g[group][leaf] for g in gradients],
        decay=0.0 if leaf in ('bias', 'scale') else decay,
      )
      np.testing.assert_allclose(
        params[group][leaf], expected, rtol=1e-4, atol=1e-5, err_msg=leaf
      )


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_matrices_decay_biases_and_scales_do_not(output):
  params = tiny.params(tiny.model(output=output))
  mask = decay_mask(params)
  names = flops.parameter_table(params)
  decayed = {
    name.rpartition('/')[0]
    for name, decays in zip(names, jax.tree.leaves(mask), strict=True)
    if decays
  }
  block = 'decoder/periods/block_0'
  assert decayed == {
    *('embed', 'positions'),
    *(['head'] if output == 'untied' else []),
    *(f'{block}/attention/{p}' for p in ('query', 'key', 'value', 'out')),
    *(f'{block}/ffn/{p}' for p in ('in', 'out')),
  }
  assert sum(jax.tree.leaves(mask)) == len(decayed)


def test_decay_acts_where_there_is_no_gradient():
  """Weights become theta (1 - rate decay); biases and scales stay."""
  params = tiny.params(tiny.model())
  schedule = spec.build('schedule.name', 'constant(peak=0.5)', SCHEDULES)
  schedule = schedule(RAMP, 3)
  optimizer = spec.build('optim.name', 'adamw(weight_decay=0.25)', OPTIMIZERS)(
    schedule
  )
  zeros = jax.tree.map(np.zeros_like, params)
  updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(params), params)
  for path, update in jax.tree_util.tree_leaves_with_path(updates):
    value = params
    for key in path:
      value = value[key.key]
    stays = path[-1].key in ('bias', 'scale')
    expected = np.zeros_like(value) if stays else -0.125 * value
    np.testing.assert_allclose(update, expected, rtol=1e-6)
