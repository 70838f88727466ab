# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What JAX has no public name for, in one file.

Nothing else imports `jax._src`. The test of this file says on each version of
JAX what is no longer so.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax._src import clusters, compilation_cache, distributed
from jax._src.compilation_cache_interface import CacheInterface as CacheInterface


def hosts(
  address: str | None, num_processes: int | None, index: int | None, seconds: int
) -> tuple[str | None, int | None, int | None]:
  """The coordinator, the number of processes and the index of this one.

  What is not given is read from the cluster that runs this process, such as a
  Cloud TPU slice, as `jax.distributed.initialize` would; None: there is none.
  """
  detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
  return detect(address, num_processes, index, None, None, seconds)[:3]


# After `jax.distributed.initialize`. The public functions that are nearest,
# `jax.process_index` and `jax.process_count`, initialise the devices.


def process_index() -> int:
  """The index of this process; 0 without `jax.distributed`."""
  return distributed.global_state.process_id


def num_processes() -> int:
  """The number of processes; 1 without `jax.distributed`."""
  return distributed.global_state.num_processes


def coordinator() -> str | None:
  """HOST:PORT of the coordinator; None without `jax.distributed`."""
  return distributed.global_state.coordinator_address


def client() -> Any:
  """The client of the coordinator's keys; None without `jax.distributed`."""
  return distributed.global_state.client


def setting(name: str) -> Any:
  """A setting of `jax.config`, which has no types for them."""
  return getattr(jax.config, name)


def cache_programs(make: Callable[[str], CacheInterface]) -> None:
  """Has the cache of compiled programs keep them in `make(folder)`."""
  compilation_cache.get_file_cache = lambda path: (make(path), path)
