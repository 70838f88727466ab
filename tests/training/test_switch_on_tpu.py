# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts compile for TPU; what their kernels compute: `test_moe`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / 'support/compile_switch_for_tpu.py'

pytestmark = pytest.mark.tpu


def test_the_train_step_compiles():
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(SCRIPT), 'v5e:2x4'],
    env=env,
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stderr[-3000:]
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert {
    line['what']: (line['kernels'], line['exchanges']) for line in lines
  } == {
    # There and back, and the same for the gradient.
    'capacity': (0, 4),
    # Two products, and for each those of its two gradients.
    'dropless': (6, 0),
  }
