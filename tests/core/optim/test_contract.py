# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of every optimizer, over the table `OPTIMIZERS`."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from gpt_jax.core import spec
from gpt_jax.core.optim.optimizer import OPTIMIZERS

# A stack of three kernels, a bias of each, and a table.
AXES = {
  'block': {
    'kernel': PartitionSpec('layers', 'embed', 'mlp'),
    'bias': PartitionSpec('layers', 'mlp'),
  },
  'embed': {'embedding': PartitionSpec('vocab', 'embed')},
}
SHAPES = {'block': {'kernel': (3, 5, 7), 'bias': (3, 7)}, 'embed': {'embedding': (11, 5)}}


def drawn(seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: rng.normal(size=shape).astype(np.float32),
    SHAPES,
    is_leaf=lambda x: isinstance(x, tuple),
  )


@pytest.fixture(params=sorted(OPTIMIZERS))
def optimizer(request):
  return spec.build('optim.name', request.param, OPTIMIZERS)(AXES)


def steps(optimizer, rates):
  """Parameters and state after a step of each rate."""
  params = drawn(0)
  state = optimizer.init(params)
  for seed, rate in enumerate(rates, start=1):
    updates, state = optimizer.update(drawn(seed), state, params, rate=rate)
    params = jax.tree.map(np.add, params, updates)
  return params, state


def test_an_update_has_the_parameters_shapes_and_is_finite(optimizer):
  params = drawn(0)
  updates, _ = optimizer.update(drawn(1), optimizer.init(params), params, rate=0.1)

  def check(update, value):
    assert (update.shape, update.dtype) == (value.shape, value.dtype)
    assert np.isfinite(update).all()

  jax.tree.map(check, updates, params)


def test_the_rate_of_the_step_is_the_only_rate(optimizer):
  """It scales the update, so that a resumed run needs no count of steps."""
  params = drawn(0)
  state = optimizer.init(params)
  one, two, none = (
    optimizer.update(drawn(1), state, params, rate=rate)[0] for rate in (0.25, 0.5, 0.0)
  )
  jax.tree.map(lambda a, b: np.testing.assert_allclose(2 * a, b, rtol=1e-6), one, two)
  assert not any(np.any(x) for x in jax.tree.leaves(none))


def test_a_state_keeps_its_form_and_is_enough_to_go_on(optimizer):
  """What a checkpoint holds: arrays, whose types no step changes."""
  _, first = steps(optimizer, [])
  params, state = steps(optimizer, [0.1, 0.2])
  form = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (first, state)]
  assert form[0] == form[1]
  assert jax.tree.structure(first) == jax.tree.structure(state)
  loaded = jax.tree.map(np.array, state)
  after = [optimizer.update(drawn(3), s, params, rate=0.3)[0] for s in (state, loaded)]
  jax.tree.map(np.testing.assert_array_equal, *after)


def test_a_compiled_step_is_the_step(optimizer):
  params = drawn(0)
  state = optimizer.init(params)
  plain, _ = optimizer.update(drawn(1), state, params, rate=0.1)
  compiled, _ = jax.jit(optimizer.update)(drawn(1), state, params, rate=0.1)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), plain, compiled)
