# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiler for TPUs knows the flags that launch/ gives it."""

import json
import pathlib
import subprocess
import sys

import pytest

from gpt_jax.runtime import tpu_flags

SUPPORT = pathlib.Path(__file__).parents[1] / 'support'


def test_the_file_needs_no_package():
  """As launch/ runs it, on a machine without any."""
  argv = [sys.executable, '-I', '-S', tpu_flags.__file__, 'v5e']
  said = subprocess.check_output(argv, text=True)
  assert said == tpu_flags.init_args('v5e') + '\n'
  assert '--xla_tpu_enable_async_collective_fusion=true ' in said


@pytest.mark.tpu
def test_the_compiler_knows_them():
  said = subprocess.check_output(
    [sys.executable, SUPPORT / 'compile_with_flags.py'], text=True
  )
  found = json.loads(said.splitlines()[-1])
  assert found.keys() == tpu_flags.FLAGS.keys() - {'tpu7x'}
  for refused in found.values():
    assert refused == ['xla_tpu_enable_what_there_is_not']
