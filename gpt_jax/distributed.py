# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several hosts, one process on each."""

import os
from collections.abc import Callable
from typing import TypeVar

import jax
from jax.experimental import multihost_utils

T = TypeVar('T')


def initialize() -> None:
  """Joins the other hosts; to be called before any array exists.

  On Cloud TPU JAX finds them by itself. Elsewhere it reads
  JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
  """
  num, index = (
    int(os.environ[name]) if name in os.environ else None
    for name in ('JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
  )
  jax.distributed.initialize(num_processes=num, process_id=index)


def first_process_first(function: Callable[[], T], name: str) -> T:
  """Runs `function` on process 0, and only then on the others.

  What the first one wrote to shared storage is there for the others.
  """
  if jax.process_count() == 1:
    return function()
  if jax.process_index() == 0:
    result = function()
    multihost_utils.sync_global_devices(name)
  else:
    multihost_utils.sync_global_devices(name)
    result = function()
  return result
