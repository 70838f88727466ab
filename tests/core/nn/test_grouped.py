# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products. The kernels run in interpret mode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice

from gpt_jax.core import sharding
from gpt_jax.core.nn import grouped
from tests.support.cases import slow

D, F, E = 5, 7, 3
# Of 150 rows: most of one expert, none of another; some are of none.
COUNTS = np.array([0, 97, 24])


@pytest.mark.parametrize('size', [1, 8, 32])
@pytest.mark.parametrize('counts', [COUNTS, [50, 50, 50], [0, 0, 150], [0] * 3])
def test_layout(counts, size):
  blocks = grouped.layout(jnp.asarray(counts), 150, size)
  used = [-(-n // size) for n in counts]
  assert int(blocks.count) == sum(used) <= len(blocks.owners_X)
  owners = [e for e, n in enumerate(used) for _ in range(n)]
  assert blocks.owners_X[: len(owners)].tolist() == owners
  assert np.max(blocks.owners_X) < E
  unused = len(blocks.owners_X) - sum(used)
  assert blocks.sizes_Z.tolist() == [n * size for n in [*used, unused]]
  starts = [sum(used[:e]) * size for e in range(E)]
  assert grouped.starts(jnp.asarray(counts), size).tolist() == starts


@pytest.mark.parametrize('dtype, error', [('float32', 1e-5), ('bfloat16', 0.02)])
@pytest.mark.parametrize('kernel', [False, True])
def test_matmul(kernel, dtype, error):
  """And its gradients, against a product with the matrix of each row."""
  size = 128 if kernel else 8
  blocks = grouped.layout(COUNTS, 150, size)
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
    function = functools.partial(grouped.by_kernel, blocks=blocks, interpret=True)
  else:
    function = functools.partial(grouped.matmul, blocks=blocks)
  found = gradients(function, x, w)
  expected = gradients(by_row, *(np.float32(a) for a in (x, w)))
  for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert ours.dtype == dtype
    scale = np.abs(theirs).max()
    np.testing.assert_allclose(np.float32(ours), theirs, rtol=error, atol=error * scale)


@pytest.mark.parametrize('dtype', ['float32', slow('bfloat16')])
def test_lowers_for_tpu(dtype):
  """As far as three Mosaic kernels; the mesh says it is for TPU."""
  device = AbstractDevice(device_kind='TPU v4', num_cores=1, platform='tpu')
  mesh = sharding.abstract_mesh(device=device)
  blocks = grouped.layout(COUNTS, 150, 128)
  with jax.sharding.use_abstract_mesh(mesh):
    assert [grouped.block_size(n, E) for n in (8, 770, 9999)] == [128, 256, 512]
    x = jax.ShapeDtypeStruct((128 * len(blocks.owners_X), 640), dtype)
    w = jax.ShapeDtypeStruct((E, 640, 96), dtype)

    def total(x, w):
      return jnp.sum(grouped.matmul(x, w, blocks).astype(jnp.float32))

    traced = jax.jit(jax.grad(total, (0, 1))).trace(x, w)
    text = traced.lower(lowering_platforms=('tpu',)).as_text()
  # The forward product itself is not needed for a sum's gradient.
  assert text.count('tpu_custom_call') == 2


@pytest.mark.parametrize(
  'rows, num_experts, size',
  [(8192, 8, 128), (1024, 8, 128), (1023, 8, 64), (100, 8, 8), (1, 128, 8)],
)
def test_block_size(rows, num_experts, size):
  assert grouped.block_size(rows, num_experts) == size


@pytest.mark.parametrize(
  'width, bytes_each, tile',
  # Three tiles of at most 1,024, in whole lanes; a width of one tile is taken
  # as it is.
  [(2500, 2, 896), (14336, 2, 1024), (768, 2, 768), (1030, 2, 640), (96, 4, 96)],
)
def test_tiles(width, bytes_each, tile):
  assert grouped.tile_of(width, bytes_each) == tile
