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
# Nothing goes to the cache folder of whoever runs them.
os.environ['XDG_CACHE_HOME'] = quick.CACHE.name
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'

import hypothesis
import jax
import pytest

from tests.support import memory

# Their fixtures are for the tests of several rooms.
from tests.support.corpora import corpus, hf_tokenizer, make_bucket, make_config, shared  # noqa: F401

jax.config.update('jax_numpy_rank_promotion', 'raise')
# Tracing makes many objects and little garbage: a twelfth of the time otherwise.
gc.set_threshold(50_000, 20, 50)

# The same examples each time, on a machine of any speed.
hypothesis.settings.register_profile('repeatable', derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile('repeatable')


# Files that take longest come first: at the end, one worker would be alone with
# them.
LONGEST = (
  'core/training/test_laws.py',
  'core/training/test_resume.py',
  'launch/test_launch_training.py',
  'core/training/test_spikes.py',
  'core/runtime/test_hosts.py',
  'commands/test_commands.py',
  'commands/test_generate.py',
  'core/runtime/test_preemption.py',
  'tuning/test_encoders.py',
  'core/training/test_lengths.py',
  'core/training/test_history.py',
  'core/training/test_expert_parallel.py',
  'core/training/test_step.py',
  'commands/test_compare.py',
  'commands/test_convert_large.py',
  'test_one_page.py',
  'test_own_tables.py',
  'tuning/test_finetune.py',
  'hf/test_golden.py',
  'core/nn/test_visibility.py',
  'launch/test_launch.py',
)


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for go
def pytest_collection_modifyitems(items):
  """Sorts the files; the tests of each keep their order.

  Of the cases of a slow test all but the first are `long`.
  """
  here = pathlib.Path(__file__).parent
  ranks = {here / name: rank for rank, name in enumerate(LONGEST)}
  items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
  seen = set()
  for item in items:
    if item.get_closest_marker('slow') and not item.get_closest_marker('long'):
      test = item.path, item.originalname
      if test in seen:
        item.add_marker('long')
      seen.add(test)


@pytest.fixture(autouse=True, scope='module')
def little_to_collect():
  """Memory is bounded; the collector searches no more what earlier files left in caches."""
  memory.bound()
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
