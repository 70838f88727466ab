# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An optimizer for each part, and its state on the host."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec, SingleDeviceSharding

from gpt_jax.core import spec
from gpt_jax.core.optim import wrappers
from gpt_jax.core.optim.optimizer import OPTIMIZERS
from gpt_jax.core.optim.wrappers import each_part

# Which parts steps are of.
TURNS = 'abbaab'


def tree(seed, parts='ab'):
  rng = np.random.default_rng(seed)
  shapes = {'kernel': (2, 3), 'bias': (3,)}
  made = {
    name: {n: np.float32(rng.normal(size=s)) for n, s in shapes.items()}
    for name in ('embed', 'a', 'b')
  }
  return {'embed': made['embed'], 'parts': {name: made[name] for name in parts}}


@pytest.mark.parametrize('name', ['adamw(weight_decay=0.3)', 'adamax', 'lamb'])
def test_a_part_steps_as_if_the_others_were_not_there(name):
  build = spec.build('optim.name', name, OPTIMIZERS)
  params = tree(0)
  axes = jax.tree.map(lambda x: PartitionSpec(*[None] * x.ndim), params)

  def steps(optimizer, params, gradients):
    state = optimizer.init(params)
    for gradient in gradients:
      of_step = {n: x for n, x in params.items() if n != 'parts'}
      if 'parts' in gradient:
        kept = {n: params['parts'][n] for n in gradient['parts']}
        of_step['parts'] = kept
      before = state
      updates, state = optimizer.update(gradient, state, of_step, rate=0.1)
      moved = jax.tree.map(np.add, of_step, updates)
      idle = {*params.get('parts', {})} - {*gradient.get('parts', {})}
      for part in idle:  # parameters, moments and counts
        assert state.parts[part] is before.parts[part]
      if 'parts' in gradient:
        moved['parts'] = {**params['parts'], **moved['parts']}
      params = moved
    return params

  gradients = [tree(1 + i, part) for i, part in enumerate(TURNS)]
  found = steps(each_part(build, axes), params, gradients)
  alone = {
    'embed': [g['embed'] for g in gradients],
    'a': [g['parts']['a'] for g in gradients if 'a' in g['parts']],
    'b': [g['parts']['b'] for g in gradients if 'b' in g['parts']],
  }
  for part, own in alone.items():
    start = params.get(part) or params['parts'][part]
    one = build({'x': axes['embed']})
    expected = steps(one, {'x': start}, [{'x': g} for g in own])['x']
    after = found.get(part) or found['parts'][part]
    for leaf in expected:
      np.testing.assert_array_equal(after[leaf], expected[leaf])


# State in the host's memory, against the same optimizer on the device.


# Stacks of two lengths, experts within one, and what is not stacked.
AXES = {
  'embed': {'embedding': PartitionSpec('vocab', 'embed')},
  'decoder': {
    'kernel': PartitionSpec('layers', 'embed', 'mlp'),
    'scale': PartitionSpec('layers', 'norm'),
    'experts_kernel': PartitionSpec('layers', 'expert', 'embed', 'mlp'),
  },
  'encoder': {'kernel': PartitionSpec('layers', 'embed', 'mlp')},
  'bias': PartitionSpec('embed'),
}
SHAPES = {
  'embed': {'embedding': (19, 7)},
  'decoder': {'kernel': (5, 7, 11), 'scale': (5, 7), 'experts_kernel': (5, 2, 7, 3)},
  'encoder': {'kernel': (3, 7, 13)},
  'bias': (7,),
}
RATES = optax.linear_schedule(0.1, 0.3, 3)
ONE = jax.devices()[0]
HOST = SingleDeviceSharding(ONE, memory_kind='pinned_host')
# The update whose gradient is not finite.
UNSOUND = 1


def tree_of(seed, shapes=SHAPES):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: rng.normal(size=shape).astype(np.float32),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )


def is_matrix(x):
  return x.ndim > 1 and x.shape != SHAPES['decoder']['scale']


def by_host(optimizer, params, gradients, place):
  """Updates and states, of the optimizer and a state in the host's memory."""
  state = place(optimizer.init(params))
  kinds = jax.tree.map(lambda x: x.sharding, state)
  update = jax.jit(
    lambda u, s, p, sound, rate: optimizer.update(u, s, p, sound=sound, rate=rate),
    out_shardings=(SingleDeviceSharding(ONE), kinds),
  )
  for i, gradient in enumerate(gradients):
    updates, state = update(gradient, state, params, i != UNSOUND, RATES(i))
    yield updates, jax.device_get(state)


def by_device(optimizer, params, gradients):
  update = jax.jit(optimizer.update)
  state = optimizer.init(params)
  for i, gradient in enumerate(gradients):
    updates, new = update(gradient, state, params, rate=RATES(i))
    state = state if i == UNSOUND else new
    yield updates, jax.device_get(state)


def place(state):
  """Matrices in the host's memory, as `state_shardings` does."""
  return jax.tree.map(lambda x: jax.device_put(x, HOST if is_matrix(x) else ONE), state)


@pytest.mark.parametrize(
  'name',
  [
    'adamw(weight_decay=0.3)',
    'adam(l2=0.1)',
    'adagrad',
    'adamax',
    'adafactor(min_size=4)',
    'adafactor(b1=0.9, factored=False, clip=0.0, weight_decay=1.0)',
    'lamb',
    'lion',
    'muon',
    'sgd(momentum=0.9)',
  ],
)
def test_updates_and_state_are_those_of_the_device(name):
  build = spec.build('optim.name', name, OPTIMIZERS)
  params, gradients = tree_of(0), [tree_of(1 + i) for i in range(4)]
  gradients[UNSOUND]['bias'][3] = np.nan
  far = wrappers.by_layer(build)(AXES)
  found = list(by_host(far, params, gradients, place))
  expected = list(by_device(build(AXES), params, gradients))
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6), found, expected)


def test_a_part_that_does_not_step_keeps_its_state():
  build = wrappers.by_layer(spec.build('optim.name', 'adamw', OPTIMIZERS))
  axes = {'bias': AXES['bias'], 'parts': {n: AXES['decoder'] for n in 'ab'}}
  shapes = {'bias': SHAPES['bias'], 'parts': {n: SHAPES['decoder'] for n in 'ab'}}
  optimizer = each_part(build, axes)
  params = tree_of(0, shapes)
  state = place(optimizer.init(params))

  @jax.jit
  def update(gradient, state):
    here = {'bias': params['bias'], 'parts': {'b': params['parts']['b']}}
    return optimizer.update(gradient, state, here, sound=True, rate=0.1)

  gradient = tree_of(1, {**shapes, 'parts': {'b': shapes['parts']['b']}})
  updates, new = update(gradient, state)
  assert [*updates['parts']] == ['b']
  jax.tree.map(np.testing.assert_array_equal, new.parts['a'], state.parts['a'])
  moved = jax.tree.map(lambda x, y: bool(np.any(x != y)), new.parts['b'], state.parts['b'])
  assert all(jax.tree.leaves(moved))
