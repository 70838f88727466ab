# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Products of rows grouped by expert; the kernels run in interpret mode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from gpt_jax import sharding
from gpt_jax.nn import moe

E, D, F = 3, 5, 7
# Of 150 rows: most to one expert, none to another, some to other devices (E).
EXPERTS = np.random.default_rng(0).choice([1, 1, 1, 2, E], size=150)


@functools.partial(jax.jit, static_argnames='size')
def blocks_of(experts, size):
  experts = jnp.asarray(experts, jnp.int32)
  return moe.grouped_layout(moe.rank(experts, E), experts, size)


@pytest.mark.parametrize('size', [1, 8, 32])
@pytest.mark.parametrize(
  'experts', [EXPERTS, np.arange(150) % E, np.full(150, 2), np.full(150, E)]
)
def test_layout(experts, size):
  """Every row in a block of its expert, in order, each in a row of its own."""
  blocks = blocks_of(experts, size)
  num = len(blocks.owners_X) * size
  here = experts < E
  slots = np.asarray(blocks.slots.slots_A)
  assert np.all(slots[~here] == num)
  owners = np.repeat(blocks.owners_X, size)
  np.testing.assert_array_equal(owners[slots[here]], experts[here])
  for e in range(E):
    assert np.all(np.diff(slots[experts == e]) == 1)
  sources = np.full(num, len(experts))
  sources[slots[here]] = np.flatnonzero(here)
  np.testing.assert_array_equal(blocks.slots.sources_S, sources)
  counts = np.bincount(experts[here], minlength=E)
  used = -(-counts // size)
  assert int(blocks.count) == used.sum() <= len(blocks.owners_X)
  sizes = [*(used * size), num - used.sum() * size]
  np.testing.assert_array_equal(blocks.sizes_Z, sizes)


@pytest.mark.parametrize(
  'dtype, error', [('float32', 1e-5), ('bfloat16', 0.02)]
)
@pytest.mark.parametrize('kernel', [False, True])
def test_matmul(kernel, dtype, error):
  """And its gradients, against a product with the matrix of each row."""
  blocks = blocks_of(EXPERTS, 128 if kernel else 8)
  size = len(blocks.slots.sources_S) // len(blocks.owners_X)
  owners = np.repeat(blocks.owners_X, size)
  used = np.arange(len(owners)) < int(blocks.count) * size
  assert np.sum(~used) > 0
  rng = np.random.default_rng(1)
  x, w = rng.normal(size=(len(owners), D)), rng.normal(size=(E, D, F))
  # Whatever stands in the rows that are not in use, it is left out.
  x[~used] = np.nan
  x, w = (jnp.asarray(a, dtype) for a in (x, w))

  def by_row(x, w):
    x = jnp.where(used[:, None], x, 0)
    y = jnp.einsum('SD,SDF->SF', x, w[owners], precision='highest')
    return jnp.where(used[:, None], y, 0)

  def gradients(function, *args):
    def total(*args):
      y = function(*args)
      return jnp.sum(jnp.sin(y.astype(jnp.float32))), y

    return jax.jit(jax.grad(total, (0, 1), has_aux=True))(*args)

  if kernel:
    function = functools.partial(moe.by_kernel, blocks=blocks, interpret=True)
  else:
    function = functools.partial(moe.matmul, blocks=blocks)
  found = gradients(function, x, w)
  expected = gradients(by_row, *(np.float32(a) for a in (x, w)))
  for ours, theirs in zip(
    *map(jax.tree.leaves, (found, expected)), strict=True
  ):
    assert ours.dtype == dtype
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(
      np.float32(ours), theirs, rtol=error, atol=error * scale
    )


@pytest.mark.parametrize(
  'dtype', ['float32', pytest.param('bfloat16', marks=pytest.mark.slow)]
)
def test_lowers_for_tpu(dtype):
  """As far as three Mosaic kernels; the mesh says it is for TPU."""
  device = AbstractDevice(device_kind='TPU v4', num_cores=1, platform='tpu')
  mesh = AbstractMesh((1,) * 5, sharding.AXES, abstract_device=device)
  blocks = blocks_of(EXPERTS, 128)
  with jax.sharding.use_abstract_mesh(mesh):
    assert moe.block_size(8, E) == 128
    x = jax.ShapeDtypeStruct((len(blocks.slots.sources_S), 640), dtype)
    w = jax.ShapeDtypeStruct((E, 640, 96), dtype)

    def total(x, w):
      return jnp.sum(moe.matmul(x, w, blocks).astype(jnp.float32))

    traced = jax.jit(jax.grad(total, (0, 1))).trace(x, w)
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
  # The forward product itself is not needed for a sum's gradient.
  assert text.count('tpu_custom_call') == 2


@pytest.mark.parametrize(
  'rows, num_experts, size',
  [(8192, 8, 128), (1024, 8, 128), (1023, 8, 64), (100, 8, 8), (1, 128, 8)],
)
def test_block_size(rows, num_experts, size):
  assert moe.block_size(rows, num_experts) == size
