# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train steps compiled for TPUs: experts, replicas, micro-batches, PaLM's mesh."""

import pytest

from tests.support import tpu

pytestmark = pytest.mark.tpu


def test_experts_compile():
  assert tpu.compiled('switch', 'v5e:2x4') == {
    # There and back, and the same for the gradient.
    'capacity': [0, 4, 0],
    # Two products, and for each those of its two gradients.
    'dropless': [6, 0, 4],
  }


def test_only_fingerprints_leave_a_replica():
  """The compiler takes its checker, as it refuses options that it lacks."""
  found = tpu.compiled('replay')
  # The model has 20 arrays, and each replica one number of each.
  assert found['data'] < 1000
  assert found['fsdp'] > 1e6
  assert found['temporary'] < 1.5 * found['of_step']
  assert found['kernels'] > 0


# Of the model in `compile_for_tpu`: embedding, positions, layers, norms.
KERNELS = 2 * (4 * 256 * 256 + 2 * 256 * 640)
TABLES = (512 + 128) * 256


def test_gradients_are_sent_once():
  found = tpu.compiled('micro_batches')
  for mesh, size, parts in (('data8', 8, 1), ('data2_fsdp4', 2, 4)):
    few, many = found[f'{mesh}/4'], found[f'{mesh}/1']
    # Two micro-batches of 4 rows a device, or eight of one.
    assert many['bytes'] == pytest.approx(few['bytes'], rel=0.01)
    # Float32, in a ring; norms and biases beside it.
    wire = 2 * (size - 1) / size * 4 * (KERNELS + TABLES) / parts
    assert many['bytes'] == pytest.approx(wire, rel=0.1)
    assert many['kernels'] == few['kernels'] > 0  # splash, in each replica


def test_virtual_shards_exchange_halves():
  """Of two turns on each of two times four devices."""
  found = tpu.compiled('exact')
  turns, data, fsdp = 2, 2, 4
  numbers = KERNELS + TABLES
  halves = turns * (fsdp - 1) / fsdp * 4 * numbers
  assert found['collective-permute fsdp f32'] == pytest.approx(halves, rel=0.1)
  blocks = 4 * numbers / fsdp  # one doubling
  assert data == 2
  assert found['collective-permute data f32'] == pytest.approx(blocks, rel=0.1)
  assert found['kernels'] > 0  # splash
  # Kernels are gathered as they are multiplied.
  assert found['all-gather fsdp bf16'] > 0
  # No gradient is reduced. Biases are gathered as sums with zeros.
  rest = [x for name, x in found.items() if name.startswith(('all-reduce', 'reduce-scatter'))]
  assert sum(rest) < 0.01 * halves


PALM_LAYERS = 3
PALM = {
  f'decoder/periods/block_0/{name}/kernel'
  for name in (
    'attention/query',
    'attention/key',
    'attention/value',
    'attention/out',
    'ffn/in',
    'ffn/gate',
    'ffn/out',
  )
}
# Of one key/value head: too small for the compiler to scatter them.
FEW = {name for name in PALM if '/key/' in name or '/value/' in name}


def test_layout():
  # It compiles at all: of a vocabulary that does not divide over the devices,
  # looked up in a table whose rows are whole.
  found = tpu.compiled('layout')
  assert found['unknown'] == []

  # Each device sums its own part of a kernel's gradient.
  scattered = {n for n, k in found['gradients'].items() if k != 'all-reduce'}
  assert scattered == PALM - FEW

  # Kernels are sent once in each layer, forward and backward; the table once,
  # for the look-up, the scores and all of their chunks.
  assert found['gathers'] == {**dict.fromkeys(PALM, 2 * PALM_LAYERS), 'embed/embedding': 1}

  # Nor is the table's gradient summed for each chunk of logits.
  assert found['most_trips'] == PALM_LAYERS

  # Weights and norms' outputs are cast before they are sent.
  assert found['float32'] == []

  # Of each layer's input a device keeps its part.
  assert (found['whole'], found['split']) == (False, True)
