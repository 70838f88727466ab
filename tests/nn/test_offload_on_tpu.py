# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `model.remat='offload'` keeps, in programs compiled for TPUs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

SUPPORT = pathlib.Path(__file__).parents[1] / 'support'
SCRIPT = SUPPORT / 'compile_offload_for_tpu.py'

pytestmark = [pytest.mark.tpu, pytest.mark.long]


def test_products_go_to_the_hosts_memory():
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True
  )
  assert not done.returncode, done.stderr[-3000:]
  found = json.loads(done.stdout)
  assert found['dots']['host'] == 0
  # Eight rows of 512 tokens a device, seven layers, in bfloat16: queries, keys
  # and values, what comes of attention, and the inner ones of the rest, whose
  # last is only added.
  products = 7 * 8 * 512 * 2 * (3 * 512 + 512 + 2048)
  assert found['offload']['host'] == pytest.approx(products, rel=0.05)
  saved = found['dots']['device'] - found['offload']['device']
  assert saved > 0.7 * products
