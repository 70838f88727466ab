# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student that starts as layers of its teacher."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.nn.transformer import parameter_shapes
from gpt_jax.objectives import distilled
from gpt_jax.objectives.choices import build
from gpt_jax.spec import UsageError
from tests.support import tiny

WITH_TYPES = 'tokens(token_types=2, norm=True)'


def random(model, seed=3):
  return tiny.random_like(parameter_shapes(model), seed=seed)


@pytest.mark.parametrize(
  ('period', 'of_teacher'), [(1, 1), (1, 2), (2, 1), (2, 2)]
)
def test_layers_and_all_outside_are_the_teachers(period, of_teacher):
  """Whatever the number of layers in a period of either."""
  ffns = {1: 'gelu', 2: 'gelu, gelu_tanh'}
  teacher = tiny.model(num_layers=6, ffn=ffns[of_teacher], input=WITH_TYPES)
  model = tiny.model(num_layers=4, ffn=ffns[period], input='tokens(norm=True)')
  layers = (0, 3, 4, 5)
  theirs = random(teacher)
  distilled.check_layers(model, teacher, layers)
  own = {**random(model, seed=5), 'heads': {'a': np.ones(2)}}
  found = distilled.copied(own, theirs, model, teacher, layers)
  assert found.pop('heads') is own['heads']
  assert jax.tree.map(np.shape, found) == jax.tree.map(
    lambda x: x.shape, parameter_shapes(model)
  )
  assert 'segments' in theirs and 'segments' not in found
  for name in {*found} - {'decoder'}:
    jax.tree.map(np.testing.assert_array_equal, found[name], theirs[name])

  def layer(params, size, n):
    block = params['decoder']['periods'][f'block_{n % size}']
    return jax.tree.map(lambda x: np.asarray(x[n // size]), block)

  for n, m in enumerate(layers):
    jax.tree.map(
      np.testing.assert_array_equal,
      layer(found, period, n),
      layer(theirs, of_teacher, m),
    )


@pytest.mark.parametrize(
  ('layers', 'changes', 'message'),
  [
    (
      (0, 6),
      {},
      r'layers=\(0, 6\): the teacher has no layer 6; give',
    ),
    ((-1, 3), {}, 'the teacher has no layer -1'),
    ((0, 2, 4), {}, r'are 3, but model\.num_layers=2; name one'),
    (
      (0, 3),
      {'d_ff': 31},
      r'in/bias is \(2, 31\) in the model and \(2, 29',
    ),
    ((0, 3), {'output': 'untied'}, 'the teacher has no head; make model like'),
    (
      (0, 3),
      {'share': 'all'},
      r"model\.share='all': layers that",
    ),
  ],
)
def test_what_does_not_fit_is_one_line(layers, changes, message):
  teacher = tiny.model(num_layers=6)
  model = tiny.model(num_layers=2, **changes)
  with pytest.raises(UsageError, match=message):
    distilled.check_layers(model, teacher, layers)


def test_a_run_starts_with_them():
  teacher, model = tiny.model(num_layers=5), tiny.model(num_layers=2)
  name = "distilled(text='causal', layers=(1, 4))"
  objective = build(name, model, None, {'teacher': teacher})
  shapes = nn.meta.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
  params = tiny.random_like(shapes, seed=1)
  started = objective.first_params(params)
  theirs = params['parts']['teacher']
  kernel = started['decoder']['periods']['block_0']['ffn']['in']['kernel']
  expected = theirs['decoder']['periods']['block_0']['ffn']['in']['kernel']
  np.testing.assert_array_equal(kernel, expected[np.array([1, 4])])
  np.testing.assert_array_equal(
    started['embed']['embedding'], theirs['embed']['embedding']
  )
  assert started['parts'] is params['parts']
