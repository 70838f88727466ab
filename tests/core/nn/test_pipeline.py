# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The schedule of a pipeline against its layers one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.nn import pipeline
from gpt_jax.core.nn.pipeline import Circular, Schedule
from tests.support import tiny

RULES = (('batch', ('data', 'stage', 'fsdp')), ('layers', ('stage',)))
L, D = 3, 5


def layer(x_bLD, w_DD, shift_D, factor_b):
  """Not a number, in value and gradient, for rows of zeros."""
  size_bLD = jnp.sqrt(jnp.sum(x_bLD**2, axis=(1, 2), keepdims=True))
  y_bLD = (x_bLD / size_bLD) @ w_DD + shift_D[None, None]
  return x_bLD + jnp.tanh(y_bLD) * factor_b[:, None, None]


def stage(layers, shift_D, rows):
  x_bLD, factor_b = rows

  def step(x_bLD, w_DD):
    x_bLD = layer(x_bLD, w_DD, shift_D, factor_b.astype(jnp.float32))
    return x_bLD, jnp.mean(x_bLD)

  x_bLD, means_n = jax.lax.scan(step, x_bLD, layers)
  return (x_bLD, factor_b), means_n


@pytest.mark.parametrize(
  'axes, repeats, each, rows, at_once',
  [
    ({'stage': 4}, 1, 2, 8, 1),
    ({'stage': 4}, 2, 1, 8, 1),
    # As many micro-batches as stages: none waits for its next repeat.
    ({'stage': 2}, 3, 1, 4, 2),
    ({'data': 2, 'stage': 2, 'fsdp': 2}, 2, 2, 48, 2),
  ],
)
def test_run(axes, repeats, each, rows, at_once):
  """Values, gradients and each layer's further results; bubbles are nan."""
  mesh = tiny.make_mesh(axes.get('data', 1), axes.get('fsdp', 1), 1, stage=axes['stage'])
  number = axes['stage'] * repeats * each
  rng = np.random.default_rng(0)
  w_NDD, shift_D, x_BLD, weight_BLD = (
    np.float32(rng.normal(size=shape))
    for shape in ((number, D, D), (D,), (rows, L, D), (rows, L, D))
  )
  factor_B = np.arange(rows, dtype=np.int32) % 5
  assert np.all(np.isnan(layer(0 * x_BLD, w_NDD[0], shift_D, factor_B)))

  def one_by_one(w_NDD, shift_D, x_BLD):
    means = []
    for w_DD in w_NDD:
      x_BLD = layer(x_BLD, w_DD, shift_D, factor_B)
      means.append(jnp.mean(x_BLD))
    return jnp.sum(weight_BLD * x_BLD) + jnp.sum(jnp.stack(means) ** 2)

  def over_stages(w_NDD, shift_D, x_BLD):
    parts = pipeline.parts_of(Circular(repeats, at_once), rows)
    S, W = parts.stages, rows // mesh.size // at_once
    (x_SWbLD, _), means_NM = pipeline.run(
      stage,
      w_NDD,
      shift_D,
      jax.tree.map(parts.split, (x_BLD, jnp.asarray(factor_B))),
      Schedule(S, repeats, S * W),
    )
    assert means_NM.shape == (number, S * W)
    x_BLD = parts.joined(x_SWbLD)
    means_N = jnp.mean(means_NM, axis=1)
    return jnp.sum(weight_BLD * x_BLD) + jnp.sum(means_N**2)

  given = w_NDD, shift_D, x_BLD
  expected = jax.jit(jax.value_and_grad(one_by_one, argnums=(0, 1, 2)))(*given)
  with sharding.use(mesh, RULES):
    gradient = jax.value_and_grad(over_stages, argnums=(0, 1, 2))
    found = jax.jit(gradient)(*given)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected)


@pytest.mark.parametrize('each', [1, 3])
def test_rows_stay_on_their_devices(each):
  """Splitting rows into micro-batches, and joining them, sends nothing.

  Nor if each is of several texts, which stay together.
  """
  mesh, x_BD = tiny.make_mesh(2, 2, 1, stage=2), jnp.zeros((48 * each, D))
  spec = dict(RULES)['batch']
  lies = jax.NamedSharding(mesh, jax.P(spec))

  def there_and_back(x_BD):
    parts = pipeline.parts_of(Circular(1, 2), 48)
    x_SWbD = parts.split(x_BD)
    assert x_SWbD.shape == (2, 3, 8 * each, D)
    return parts.joined(x_SWbD)

  with sharding.use(mesh, RULES):
    compiled = jax.jit(there_and_back, in_shardings=lies, out_shardings=lies).lower(x_BD).compile()
  text = compiled.as_text()
  for kind in ('all-gather', 'all-to-all', 'permute(', 'all-reduce'):
    assert kind not in text
  x_BD = np.arange(48.0 * each * D).reshape(-1, D)
  np.testing.assert_array_equal(compiled(np.float32(x_BD)), x_BD)


@pytest.mark.parametrize('stages, repeats, micro_batches, steps', [(8, 1, 8, 15), (4, 3, 8, 27)])
def test_bubble(stages, repeats, micro_batches, steps):
  schedule = Schedule(stages, repeats, micro_batches)
  assert schedule.steps == steps
  # What the busy steps leave.
  busy = repeats * micro_batches / steps
  assert schedule.bubble == pytest.approx(1 - busy)


def test_without_stages_nothing_is_split():
  how = Circular(1, 1)
  assert pipeline.parts_of(how, 8) is None
  with sharding.use(tiny.make_mesh(2, 4, 1), RULES):
    assert pipeline.parts_of(how, 8) is None
  # One row, with which parameters are first drawn.
  with sharding.use(tiny.make_mesh(1, 2, 1, stage=4), RULES):
    assert pipeline.parts_of(how, 1) is None
