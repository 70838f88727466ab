# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The splash kernels compile for TPU; what they compute: `test_kernels`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / 'support/compile_for_tpu.py'

pytestmark = pytest.mark.tpu


@pytest.mark.parametrize('topology', ['v5e:2x4', 'v4:2x2x1'])
def test_attention_and_the_train_step_compile(topology):
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(SCRIPT), topology],
    env=env,
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stderr[-3000:]
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert {line['what']: line['kernels'] for line in lines} == {
    # Forward, and backward in one kernel or in two.
    'full, splash': 2,
    'full, splash(block=128, fused_until=128)': 3,
    'local(window=96), splash(block=128)': 2,
    'bidirectional, splash(block=128)': 2,
    # Two patterns: forward, the same for the backward pass, and backward.
    'train step': 6,
  }
