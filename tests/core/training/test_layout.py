# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a small PaLM's train step sends on TPU v4, 16 x 4 of 64 chips.

Each is a lesson of larger models: see `gpt_jax/core/nn/layout.py`.
"""

import pytest

from tests.support import tpu

LAYERS = 3
KERNELS = {
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
SMALL = {name for name in KERNELS if '/key/' in name or '/value/' in name}

pytestmark = pytest.mark.tpu


def test_layout():
  # It compiles at all: of a vocabulary that does not divide over the devices,
  # looked up in a table whose rows are whole.
  found = tpu.compiled('layout')
  assert found['unknown'] == []

  # Each device sums its own part of a kernel's gradient.
  scattered = {n for n, k in found['gradients'].items() if k != 'all-reduce'}
  assert scattered == KERNELS - SMALL

  # Kernels are sent once in each layer, forward and backward; the table once,
  # for the look-up, the scores and all of their chunks.
  assert found['gathers'] == {**dict.fromkeys(KERNELS, 2 * LAYERS), 'embed/embedding': 1}

  # Nor is the table's gradient summed for each chunk of logits.
  assert found['most_trips'] == LAYERS

  # Weights and norms' outputs are cast before they are sent.
  assert found['float32'] == []

  # Of each layer's input a device keeps its part.
  assert (found['whole'], found['split']) == (False, True)
