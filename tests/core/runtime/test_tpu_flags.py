# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiler for TPUs knows its flags, and is silent where it only compiles."""

import glob
import os
import subprocess
import sys

import pytest

from gpt_jax.core.runtime import libtpu, tpu_flags
from tests.support import tpu


def test_the_file_needs_no_package():
  """As launch/ runs it, on a machine without any."""
  argv = [sys.executable, '-I', '-S', tpu_flags.__file__, 'v5e']
  said = subprocess.check_output(argv, text=True)
  assert said == tpu_flags.init_args('v5e') + '\n'
  assert '--xla_tpu_enable_async_collective_fusion=true ' in said


def test_gathers_are_fused_on_v5e_alone():
  """Elsewhere libtpu 0.0.50 says: "this might lead to incorrect results"."""
  fusion = 'xla_tpu_enable_async_collective_fusion'
  for chip, flags in tpu_flags.FLAGS.items():
    fused = [n for n in flags if n.startswith(fusion) and flags[n] == 'true']
    assert bool(fused) == (chip == 'v5e'), chip


@pytest.mark.tpu
def test_the_compiler_knows_them():
  refused = tpu.compiled('flags')
  assert refused.keys() == tpu_flags.FLAGS.keys() - {'tpu7x'}
  for names in refused.values():
    assert names == ['xla_tpu_enable_what_there_is_not']


def test_it_is_silent_where_no_tpu_is(monkeypatch):
  for name in libtpu.SETTINGS:
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('TPU_ACCELERATOR_TYPE', 'v6e-8')
  monkeypatch.setattr(glob, 'glob', lambda pattern: ['/dev/accel0'])
  libtpu.silence()
  assert 'TPU_WORKER_HOSTNAMES' not in os.environ
  monkeypatch.setattr(glob, 'glob', lambda pattern: [])
  libtpu.silence()
  found = {name: os.environ.pop(name) for name in libtpu.SETTINGS}
  assert found == {
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    # The user's.
    'TPU_ACCELERATOR_TYPE': 'v6e-8',
  }
