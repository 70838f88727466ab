# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step sends over `data` does not grow with its micro-batches."""

import pytest

from tests.support import tpu

# Of the model in `compile_for_tpu`: embedding, positions, layers, norms.
KERNELS = 2 * (4 * 256 * 256 + 2 * 256 * 640)
TABLES = (512 + 128) * 256

pytestmark = pytest.mark.tpu


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
