# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step ahead of time for TPU slices, with libtpu.

No TPU is needed. The step, its state and its stages are those of `train`; only
the devices differ: they hold no arrays, and nothing is run.
"""

import importlib.util
import os
import re
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies as jax_topologies

from gpt_jax.config import Config
from gpt_jax.optim.schedules import Shape
from gpt_jax.planning.topologies import GIB, Slices
from gpt_jax.runtime import tpu_flags
from gpt_jax.spec import UsageError, install
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import device_check
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.compiled import Compiled
from gpt_jax.training.parts import Parts

_SETTINGS = {
  # Do not look for a TPU, and let several processes compile at once.
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  # Only named in the log.
  'TPU_ACCELERATOR_TYPE': 'v4-8',
}
_INSTALL = install('plan')


class Memory(NamedTuple):
  """Bytes on one device, of a compiled step."""

  peak: float  # must not exceed the limit
  arguments: float  # the state, which is donated, and the batch
  outputs: float
  temporaries: float  # without reuse: may exceed what is live at once
  host_arguments: float  # optimizer state in the memory of the host
  host_temporaries: float  # what is kept there for the backward pass
  limit: float


class Program(NamedTuple):
  """The compiled training step of one stage of the batch ramp."""

  parts: Parts
  shape: Shape  # of its batch
  compiled: Compiled  # `.call.as_text()` is the HLO of one device
  memory: Memory


class TooLarge(Exception):
  """A program that does not fit.

  Attributes:
    shape: of its batch.
    needed: bytes on one device; of the state alone if that is too large.
    limit: bytes that the compiler allows.
  """

  def __init__(self, shape: Shape, needed: float, limit: float):
    """See the attributes."""
    super().__init__(
      f'the step of {shape.rows} rows of {shape.length} tokens needs '
      f'{needed / GIB:.1f} GiB of the {limit / GIB:.2f} GiB that the compiler '
      'allows on a device'
    )
    self.shape, self.needed, self.limit = shape, needed, limit


def use_cpu() -> None:
  """Keeps JAX off this machine's accelerators; call before using JAX."""
  if importlib.util.find_spec('libtpu') is None:
    raise UsageError(
      'planning needs libtpu, the compiler for TPU, which runs on a CPU too: '
      + _INSTALL
    )
  # libtpu reads these once, when it is loaded.
  os.environ.update(_SETTINGS)
  jax.config.update('jax_platforms', 'cpu')


def devices(slices: Slices) -> list[Any]:
  """JAX devices of the slices, to compile for."""
  use_cpu()
  topology = jax_topologies.get_topology_desc(
    platform='tpu',
    topology_name=slices.name,
    chip_config_name=slices.chip.config_name,
    chips_per_host_bounds=slices.host,
    num_slices=slices.number,
    # Without it the compiler assumes a mesh network without wraparound.
    wrap=slices.wrap,
  )
  assert len(topology.devices) == slices.devices, slices
  return list(topology.devices)


def build(config: Config, slices: Slices) -> Parts:
  """Builds the run of a resolved config on the devices of the slices."""
  there = devices(slices)
  device_check.check_devices(config, there)
  return parts_lib.build(config, there)


def parse_flags(text: str) -> dict[str, str]:
  """Reads flags of libtpu as LIBTPU_INIT_ARGS has them."""
  flags = {}
  for word in text.split():
    name, equals, value = word.removeprefix('--').partition('=')
    if not equals or not name:
      raise UsageError(
        f'--flags: {word}: give --NAME=VALUE, as in '
        '--xla_enable_async_all_gather=true'
      )
    flags[name] = value
  return flags


def compile_stage(
  parts: Parts,
  slices: Slices,
  shape: Shape,
  flags: dict[str, str] | None = None,
) -> Program:
  """Compiles the step of a batch of some shape, as `train` does.

  Args:
    parts: see `build`.
    slices: what to compile for.
    shape: of the batch.
    flags: of libtpu; empty: those that `launch/` sets, of the generation.

  Raises:
    TooLarge: it does not fit the chips.
    UsageError: libtpu has no such flag.
  """
  if flags is None:
    flags = tpu_flags.FLAGS[slices.chip.name]
  try:
    compiled = compiled_lib.compile_train_step(parts, shape, flags)
  except jax.errors.JaxRuntimeError as e:
    if unknown := re.search(r"No such compile option: '(\w+)'", str(e)):
      raise UsageError(
        f'--flags: libtpu has no flag {unknown[1]}; leave it out'
      ) from e
    needed = _needed(str(e))
    if needed is None:
      raise
    raise TooLarge(shape, needed, slices.hbm) from e
  found = compiled.call.memory_analysis()
  # It counts what is in the host's memory, too. The state there stays there; of
  # what comes and goes there is a bound: all on the device, without reuse.
  peak = found.peak_memory_in_bytes - found.host_argument_size_in_bytes
  if found.host_temp_size_in_bytes:
    at_once = found.argument_size_in_bytes + found.temp_size_in_bytes
    at_once += found.output_size_in_bytes - found.alias_size_in_bytes
    peak = min(peak, at_once)
  memory = Memory(
    peak=peak,
    arguments=found.argument_size_in_bytes,
    outputs=found.output_size_in_bytes,
    temporaries=found.temp_size_in_bytes,
    host_arguments=found.host_argument_size_in_bytes,
    host_temporaries=found.host_temp_size_in_bytes,
    limit=slices.hbm,
  )
  if memory.peak > memory.limit:
    raise TooLarge(shape, memory.peak, memory.limit)
  return Program(parts, shape, compiled, memory)


def _needed(error: str) -> float | None:
  """Bytes of HBM in an out-of-memory error; None for any other error.

  The message is one of
    Ran out of memory ... the total memory required ... (19.91G) exceeds ...
    Ran out of memory in memory space hbm. Used 47.07G of 15.75G hbm. ...
  """
  if 'RESOURCE_EXHAUSTED' not in error or 'hbm' not in error.lower():
    return None
  found = re.search(r'\(([\d.]+)([KMGT]?)\) exceeds', error) or re.search(
    r'Used ([\d.]+)([KMGT]?) of', error
  )
  if found is None:
    return None
  return float(found[1]) * 1024 ** ' KMGT'.index(found[2] or ' ')
