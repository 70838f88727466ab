# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests run on eight virtual CPU devices, and refuse silent broadcasting."""

import gc
import logging
import os
import pathlib
import sys

# For `from configs import ...` and `from tests.support import ...`.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.support import quick

# Read once, when jax is imported.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = quick.xla_flags(devices=8)

import hypothesis
import jax
import pytest

jax.config.update('jax_numpy_rank_promotion', 'raise')

# The same examples each time, on a machine of any speed.
hypothesis.settings.register_profile(
  'repeatable', derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile('repeatable')


@pytest.fixture(autouse=True, scope='module')
def little_to_collect():
  """Python's collector searches no more what earlier files left in caches."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_at_first():
  """Undoes what a command sets up: its handler writes to this test's stderr."""
  yield
  log = logging.getLogger('gpt_jax')
  log.handlers.clear()
  log.propagate = True
  for name in ('gpt_jax', 'absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.NOTSET)
