# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the script that compiles for TPU slices that are not here."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

_SCRIPT = pathlib.Path(__file__).with_name('compile_for_tpu.py')


def compiled(*args: str) -> Any:
  """What a program of `compile_for_tpu.PROGRAMS` prints.

  Args:
    *args: its name, and its arguments.
  """
  # Those of `conftest` are for the CPU's compiler.
  env = {name: x for name, x in os.environ.items() if name != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, str(_SCRIPT), *args], env=env, capture_output=True, text=True
  )
  assert not done.returncode, done.stderr[-3000:]
  return json.loads(done.stdout)
