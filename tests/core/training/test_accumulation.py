# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of a batch: what they add up to, on any mesh, and what they send."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.nn import layers
from gpt_jax.core.objectives.loss import Loss, Mean
from gpt_jax.core.optim.micro_batches import MicroBatches, divided
from gpt_jax.core.training.step import mean_gradients
from tests.support import tiny

RULES = (('batch', ('data', 'fsdp', 'expert')), ('embed', ('fsdp',)))
L, D = 3, 8


@pytest.mark.parametrize(
  'rows, num_shards, micro_rows, num_micro, filled',
  [
    (512, 1, 8, 64, 512),
    (512, 64, 8, 1, 512),
    (512, 512, 8, 1, 512),
    (24, 2, None, 1, 24),
    (24, 2, 0, 1, 24),
    # Parts of 6 and 5 rows a device would differ: all have 6.
    (22, 2, 6, 2, 24),
    (16, 512, 8, 1, 512),
    (100, 8, 4, 4, 128),
  ],
)
def test_divided(rows, num_shards, micro_rows, num_micro, filled):
  found = divided(rows, num_shards=num_shards, micro_rows=micro_rows)
  assert found == MicroBatches(num_micro, num_shards)
  assert found.filled(rows) == filled
  here = found.rows(rows) // num_shards
  assert not micro_rows or here <= micro_rows


def loss(params, batch, key):
  """Sum of w (x . theta r - y)^2, r random, and what a router would cost."""
  factors = layers.draw_by_row(jax.random.uniform, key, batch['x'].shape)
  errors = (batch['x'] * factors) @ params['theta'] - batch['y']
  weight = jnp.sum(batch['w'])
  mean = layers.mean_over_rows(jnp.mean((batch['x'] @ params['theta']) ** 2, axis=1))
  over = layers.over_replicas(weight)
  total = jnp.sum(batch['w'] * errors**2) + over * mean
  return Loss(total, weight, over * mean, {'router': Mean(over * mean, over)})


def batch_of(rows):
  rng = np.random.default_rng(0)
  weights = rng.random((rows, L)) * (np.arange(rows) % 4 != 1)[:, None]
  return {
    'x': np.float32(rng.normal(size=(rows, L, D))),
    'y': np.float32(rng.normal(size=(rows, L))),
    'w': np.float32(weights),
  }


def expected(rows, num_micro, key, theta):
  """By NumPy, in float64: each row draws by its number in the batch."""
  batch = {name: np.float64(x) for name, x in batch_of(rows).items()}
  factors = np.float64(
    [jax.random.uniform(jax.random.fold_in(key, i), (1, L, D))[0] for i in range(rows)]
  )
  x, w = batch['x'] * factors, batch['w']
  errors = x @ theta - batch['y']
  total, router, of_router = np.sum(w * errors**2), 0.0, np.zeros(D)
  for i in range(num_micro):
    part = batch['x'][i::num_micro]
    weight, seen = w[i::num_micro].sum(), part @ theta
    router += weight * np.mean(seen**2)
    of_router += weight * np.mean(2 * seen[..., None] * part, axis=(0, 1))
  gradient = np.einsum('bl,bld->d', 2 * w * errors, x) + of_router
  return [y / w.sum() for y in (total, router, gradient)]


def compute(rows, sizes, micro_rows, num_replicas):
  mesh = tiny.make_mesh(*sizes)
  shards = mesh.shape['data'] * mesh.shape['fsdp']
  parts = divided(rows, num_shards=shards, micro_rows=micro_rows)
  parts = parts._replace(num_replicas=num_replicas)
  theta = np.float32(np.random.default_rng(1).normal(size=D))

  def function(params, batch, key):
    objective = tiny.LossOnly(loss)
    return mean_gradients(params, batch, key, objective=objective, **parts._asdict())

  batch = batch_of(rows)
  if rows % shards == 0:
    batch = jax.device_put(batch, sharding.batch_sharding(mesh, RULES))
  args = {'theta': theta}, batch, jax.random.key(3)
  with sharding.use(mesh, RULES):
    compiled = jax.jit(function).lower(*args).compile()
    found, metrics, grads = jax.device_get(compiled(*args))
  wanted = expected(rows, parts.num_micro, args[2], np.float64(theta))
  np.testing.assert_allclose(found, wanted[0], rtol=1e-6)
  np.testing.assert_allclose(metrics['router'], wanted[1], rtol=1e-6)
  np.testing.assert_allclose(grads['theta'], wanted[2], rtol=5e-6, atol=1e-6)
  return parts, compiled.as_text()


@pytest.mark.parametrize(
  'rows, sizes, micro_rows, num_micro',
  [
    (32, (1, 1, 1), 16, 2),
    (32, (8, 1, 1), 2, 2),
    (32, (2, 4, 1), 1, 4),
    (32, (2, 2, 2), 4, 2),
    # Three of the eight devices have rows; the last parts are short.
    (3, (8, 1, 1), 8, 1),
    (29, (2, 4, 1), 2, 2),
    (13, (1, 1, 1), 5, 3),
  ],
)
def test_parts_and_meshes_change_nothing(rows, sizes, micro_rows, num_micro):
  replicas = sizes[0] if num_micro > 1 else 1
  parts, text = compute(rows, sizes, micro_rows, replicas)
  assert parts.num_micro == num_micro
  # The router's weight is one number; the gradient waits for the last part.
  if replicas > 1 and sizes[1] == 1:
    assert reduced_in_loops(text) <= 1


def test_as_the_compiler_has_it_each_part_is_reduced():
  _, text = compute(32, (8, 1, 1), 2, 1)
  assert reduced_in_loops(text) >= D


def reduced_in_loops(text):
  """The numbers that all-reduces within loops have, at most."""
  sizes = [0]
  for line in text.splitlines():
    if ' all-reduce(' in line and 'while/body' in line:
      shapes = re.findall(r'f32\[([\d,]*)\]', line.partition(' all-reduce(')[0])
      sizes.append(sum(int(np.prod([int(n) for n in s.split(',') if n])) for s in shapes))
  return max(sizes)
