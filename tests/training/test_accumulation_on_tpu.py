# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step sends over `data` does not grow with its micro-batches."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

SUPPORT = pathlib.Path(__file__).parents[1] / 'support'
SCRIPT = SUPPORT / 'compile_micro_batches_for_tpu.py'
# Of the model in that script: embedding, positions, layers, norms.
KERNELS = 2 * (4 * 256 * 256 + 2 * 256 * 640)
TABLES = (512 + 128) * 256

pytestmark = pytest.mark.tpu


def test_gradients_are_sent_once():
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True
  )
  assert not done.returncode, done.stderr[-3000:]
  found = json.loads(done.stdout)
  for mesh, size, parts in (('data8', 8, 1), ('data2_fsdp4', 2, 4)):
    few, many = found[f'{mesh}/4'], found[f'{mesh}/1']
    # Two micro-batches of 4 rows a device, or eight of one.
    assert many['bytes'] == pytest.approx(few['bytes'], rel=0.01)
    # Float32, in a ring; norms and biases beside it.
    wire = 2 * (size - 1) / size * 4 * (KERNELS + TABLES) / parts
    assert many['bytes'] == pytest.approx(wire, rel=0.1)
    assert many['kernels'] == few['kernels'] > 0  # splash, in each replica
