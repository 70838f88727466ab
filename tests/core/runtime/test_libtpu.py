# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""libtpu where it only compiles."""

import glob
import os

from gpt_jax.core.runtime import libtpu


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
