# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The peak FLOP/s of a device, by which MFU divides.

Where no vendor gives one, as for CPUs, it is measured. That takes seconds, and
a busy machine reaches less: the highest rate so far is kept in peaks.json of
the user's cache folder, for each kind of machine and version of JAX.
"""

import json
import math
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.core.costs import chips
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.runtime import programs
from gpt_jax.core.runtime.log import log


def of_device(device: Any, *, again: bool = False) -> tuple[float, str]:
  """Peak FLOP/s of one device, and the source of the figure.

  Args:
    again: measure even if a rate is kept, which a higher one replaces.
  """
  if published := chips.vendor_peak(device):
    return published
  on_cpu = device.platform == 'cpu'
  dtype = jnp.float32 if on_cpu else jnp.bfloat16
  about = f'{device.device_kind}, {dtype.__name__}'
  key = f'{about}, {_machine()}, jax {jax.__version__}, of {len(chips.SIZES)} sizes'
  measured = _read()
  if again or key not in measured:
    rate = chips.measured_peak(device, dtype)
    if rate > measured.get(key, 0):
      measured[key] = rate
      _write(measured)
  # Virtual CPU devices share the cores, which were measured together.
  rate = measured[key] / (jax.local_device_count() if on_cpu else 1)
  return rate, f'{about}, measured'


def path() -> pathlib.Path:
  """The file of the measured peaks."""
  return programs.cache_home() / 'peaks.json'


def _machine() -> str:
  """'8 cores of AMD EPYC 7B13'."""
  model = ''
  try:
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        model = line.partition(':')[2].strip()
        break
  except OSError:
    pass
  return f'{len(os.sched_getaffinity(0))} cores of {model}'


def _read() -> dict[str, float]:
  """FLOP/s by kind of machine; {} if the file is missing or damaged."""
  try:
    entries = json.loads(path().read_text(encoding='utf-8'))
  except FileNotFoundError:
    return {}
  except (OSError, ValueError) as e:
    log.warning('%s: cannot be read; the peak is measured again: %s', path(), e)
    return {}
  rates = entries.values() if isinstance(entries, dict) else [None]
  if not all(type(x) is float and 0 < x < math.inf for x in rates):
    log.warning('%s: is damaged; the peak is measured again', path())
    return {}
  return entries


def _write(rates: dict[str, float]) -> None:
  try:
    path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(str(path()), json.dumps(rates, indent=2) + '\n')
  except OSError as e:
    log.warning('%s: the peak is not kept: %s', path(), e)
