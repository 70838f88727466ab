# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Products in int8, and what stands in the hosts' memory, compiled for TPUs."""

import pytest

from tests.support import tpu

pytestmark = [pytest.mark.tpu, pytest.mark.long]


@pytest.mark.parametrize('chip', ['v5e', 'v6e'])
def test_a_wide_layer_is_faster_by_the_compilers_cycles(chip):
  """Forward and in both gradients of both kernels: six products."""
  found = tpu.compiled('matmul', f'{chip}:2x2')
  sums = {name: x['sums in int32'] for name, x in found.items()}
  assert sums == {'plain': 0, 'int8': 6, "int8(gradients='inputs')": 4}
  plain, narrow = found['plain'], found['int8']
  assert plain['products'] > 1.5 * narrow['products']
  assert plain['compiler'] > narrow['compiler']


@pytest.fixture(scope='module')
def found():
  return tpu.compiled('offload')


def test_products_go_to_the_hosts_memory(found):
  assert found['dots']['host'] == 0
  # Eight rows of 512 tokens a device, seven layers, in bfloat16: queries, keys
  # and values, what comes of attention, and the inner ones of the rest, whose
  # last is only added.
  products = 7 * 8 * 512 * 2 * (3 * 512 + 512 + 2048)
  assert found['offload']['host'] == pytest.approx(products, rel=0.05)
  saved = found['dots']['device'] - found['offload']['device']
  assert saved > 0.7 * products


def test_moments_come_from_the_hosts_memory_one_layer_at_a_time(found):
  """Adam's two, of the kernels of seven layers and of the two tables."""
  layer = 4 * 512 * 512 + 2 * 512 * 2048
  tables = 2 * 512 * 512
  moments = 2 * 4 * (7 * layer + tables) / 4
  here, there = found['dots'], found['state']
  assert here['given_host'] == 0
  assert there['given_host'] == moments
  assert here['given'] - there['given'] == pytest.approx(moments, rel=1e-3)
  # Nothing is kept twice, and no more comes at once than the moments of a few
  # layers: one is updated while the next is on its way.
  assert there['host'] == 0
  assert there['device'] - here['device'] < 3 * 2 * 4 * layer / 4
