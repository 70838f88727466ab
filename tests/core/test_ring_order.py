# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keys go from neighbour to neighbour."""

import itertools
import types

import numpy as np
import pytest

from gpt_jax.core import ring_order


def distances(cells):
  """Links from each to the next, and from the last to the first."""
  cells = np.array(cells)
  return np.abs(cells - np.roll(cells, -1, axis=0)).sum(axis=1)


@pytest.mark.parametrize(
  'shape', [(2, 2), (2, 1, 7), (7, 2), (5, 6), (3, 1, 4), (4, 4), (3, 5, 2), (2, 3, 2)]
)
def test_all_chips_of_a_box(shape):
  cells = ring_order.cycle(shape)
  everything = itertools.product(*map(range, shape))
  assert sorted(cells) == [*everything]
  assert set(distances(cells)) == {1}


@pytest.mark.parametrize('shape', [(1, 1), (1, 8), (4, 1, 1), (3, 5), (3, 3, 3)])
def test_none(shape):
  """In one row, or where squares of a chessboard would be one too many."""
  assert ring_order.cycle(shape) is None


def mesh(shape, sizes):
  """Devices in the order of their coordinates."""
  devices = np.empty(np.prod(sizes), object)
  for i, at in enumerate(itertools.product(*map(range, shape))):
    devices[i] = types.SimpleNamespace(coords=at)
  names = ('data', 'context', 'tensor')[-len(sizes) :]
  return types.SimpleNamespace(devices=devices.reshape(sizes), axis_names=names)


@pytest.mark.parametrize('shape, sizes', [((4, 8), (2, 16, 1)), ((2, 2, 4), (1, 16, 1))])
def test_along_an_axis(shape, sizes):
  made = mesh(shape, sizes)
  order = ring_order.along(made, 'context')
  for group in made.devices[:, :, 0]:
    assert set(distances([group[i].coords for i in order])) == {1}


def test_chips_that_are_no_neighbours_have_no_order():
  """Every other one of a row."""
  assert ring_order.along(mesh((4, 6), (1, 12, 2)), 'context') is None


def test_other_devices_have_no_order():
  made = mesh((2, 2), (2, 2))
  made.devices = np.array([[1, 2], [3, 4]])
  assert ring_order.along(made, 'context') is None
