# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts that step by turns, against each alone."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from gpt_jax import spec
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.wrappers import each_part

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
  schedule = optax.constant_schedule(0.1)

  def steps(optimizer, params, gradients):
    state = optimizer.init(params)
    for gradient in gradients:
      of_step = {n: x for n, x in params.items() if n != 'parts'}
      if 'parts' in gradient:
        kept = {n: params['parts'][n] for n in gradient['parts']}
        of_step['parts'] = kept
      before = state
      updates, state = optimizer.update(gradient, state, of_step)
      moved = jax.tree.map(np.add, of_step, updates)
      idle = {*params.get('parts', {})} - {*gradient.get('parts', {})}
      for part in idle:  # parameters, moments and counts
        assert state.parts[part] is before.parts[part]
      if 'parts' in gradient:
        moved['parts'] = {**params['parts'], **moved['parts']}
      params = moved
    return params

  gradients = [tree(1 + i, part) for i, part in enumerate(TURNS)]
  found = steps(
    each_part(lambda a: build(schedule, a), axes), params, gradients
  )
  alone = {
    'embed': [g['embed'] for g in gradients],
    'a': [g['parts']['a'] for g in gradients if 'a' in g['parts']],
    'b': [g['parts']['b'] for g in gradients if 'b' in g['parts']],
  }
  for part, own in alone.items():
    start = params.get(part) or params['parts'][part]
    one = build(schedule, {'x': axes['embed']})
    expected = steps(one, {'x': start}, [{'x': g} for g in own])['x']
    after = found.get(part) or found['parts'][part]
    for leaf in expected:
      np.testing.assert_array_equal(after[leaf], expected[leaf])
