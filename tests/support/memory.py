# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The memory of a worker: programs and traces of earlier tests stay until told to go."""

import gc
import os
import pathlib

import jax

from gpt_jax.core import malloc

# They go above this, or a third of it above what stayed the last time: it takes a
# second.
MOST = 1.4 * 2**30
_stayed = 0


def resident():
  """The bytes of memory that this process holds."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE')


def bound():
  """Forgets programs and traces, if they take too much."""
  global _stayed
  if resident() > max(MOST, _stayed + MOST / 3):
    gc.unfreeze()
    jax.clear_caches()
    gc.collect()
    malloc.give_back()
    _stayed = resident()
