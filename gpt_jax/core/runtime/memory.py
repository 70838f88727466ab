# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What memory there is, of this machine and of its devices.

A program that takes more is killed on a CPU, without a word: so states and
steps are measured by their shapes, before anything is allocated.
"""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import Any

import jax

from gpt_jax.core.costs.chips import CHIPS

_CGROUPS = pathlib.Path('/sys/fs/cgroup')


def of_host() -> int:
  """Bytes that this process may take of its machine.

  The least of the machine's memory, its control groups', and `ulimit -m`, which
  the system itself does not enforce.
  """
  sizes = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
  sizes += [limit for limit, _ in _groups()]
  soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
  if soft != resource.RLIM_INFINITY:
    sizes.append(soft)
  return min(sizes)


def left_on_host() -> int:
  """Bytes of the machine that no process has now, and that this one may take.

  What it has itself counts as taken; files in the page cache do not.
  """
  sizes = [of_host()]
  with contextlib.suppress(OSError), open('/proc/meminfo') as file:
    lines = dict(line.split(':', 1) for line in file)
    sizes.append(int(lines['MemAvailable'].split()[0]) * 1024)
  sizes += [limit - usage for limit, usage in _groups()]
  return max(min(sizes), 0)


def of_device(device: Any) -> float | None:
  """Bytes that programs may take on a device; None: only its compiler knows.

  Of a TPU what its compiler allows, of a GPU what this process may take. CPU
  devices share the machine's memory.
  """
  for chip in CHIPS.values():
    if device.device_kind == chip.kind:
      return chip.hbm / chip.devices
  if device.platform == 'cpu':
    return of_host() / jax.local_device_count()
  return (device.memory_stats() or {}).get('bytes_limit')


def _groups() -> Iterator[tuple[int, int]]:
  """Bytes that each control group around this process may take, and takes.

  Of both versions of control groups. A container sees its own group as the root
  of all.
  """
  paths = {'': '/', 'memory': '/'}  # of version 2, and of version 1
  with contextlib.suppress(OSError), open('/proc/self/cgroup') as file:
    for line in file:
      _, names, path = line.rstrip('\n').split(':', 2)
      paths |= {name: path for name in names.split(',') if name in paths}
  for name, limit, usage in (
    ('', 'memory.max', 'memory.current'),
    ('memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes'),
  ):
    root = _CGROUPS / name
    folder = root / paths[name].lstrip('/')
    for group in (folder, *folder.parents):
      if group.is_relative_to(root):
        # A ValueError: the file says 'max'.
        with contextlib.suppress(OSError, ValueError):
          used = int((group / usage).read_text()) - _cached(group)
          yield int((group / limit).read_text()), used


def _cached(group: pathlib.Path) -> int:
  """Bytes of files that a control group gives up when it needs memory."""
  text = (group / 'memory.stat').read_text()
  lines = dict(line.split() for line in text.splitlines())
  return int(lines.get('total_inactive_file', lines.get('inactive_file', 0)))
