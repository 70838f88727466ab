# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tests run on eight virtual CPU devices, and refuse silent broadcasting."""

import logging
import os
import pathlib
import sys

# Read once, when jax is imported. Compiling takes most of the tests' time: a
# third of it without LLVM's optimisations and XLA's newer code generator.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = (
  '--xla_force_host_platform_device_count=8 '
  '--xla_backend_optimization_level=0 '
  '--xla_cpu_use_fusion_emitters=false'
)

# For `from configs import ...` and `from tests.support import ...`.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import hypothesis
import jax
import pytest

jax.config.update('jax_numpy_rank_promotion', 'raise')

# The same examples each time, on a machine of any speed.
hypothesis.settings.register_profile(
  'repeatable', derandomize=True, deadline=None, database=None
)
hypothesis.settings.load_profile('repeatable')


@pytest.fixture(autouse=True)
def logging_as_at_first():
  """Undoes what a command sets up: its handler writes to this test's stderr."""
  yield
  log = logging.getLogger('gpt_jax')
  log.handlers.clear()
  log.propagate = True
  for name in ('gpt_jax', 'absl', 'asyncio'):
    logging.getLogger(name).setLevel(logging.NOTSET)
