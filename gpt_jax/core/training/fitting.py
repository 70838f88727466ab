# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chooses the mesh, and the rows at a time, that fit the devices' memory.

It chooses what the config leaves open: the mesh on TPU slices, if no axis of
`config.mesh` is set, and `batch.micro_rows`, if it is empty. The values chosen
are in a run's config.json, and in the events `start` of metrics.jsonl. A resume
on such devices keeps them, and one on more or fewer, or in another number of
slices, chooses again. They change
nothing but rounding. `gpt-jax plan` chooses by the same functions.

On accelerators a cost model says what to try first (`PLANNERS`). What fits is
decided by the compiled program alone.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core import malloc, sharding
from gpt_jax.core.config import Config
from gpt_jax.core.costs.chips import GIB
from gpt_jax.core.optim import train_state
from gpt_jax.core.optim.micro_batches import divided
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.runtime import hosts, memory
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError, Table, UsageError
from gpt_jax.core.training import device_check, metrics
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.compiled import Compiled, Stages, TooLarge, compile_train_step, peak
from gpt_jax.core.training.parts import Parts

T = TypeVar('T')
Mesh = dict[str, int]  # the size of each axis, in the order of `sharding.AXES`
# The config's defaults, which mean that no mesh was chosen.
UNSET = {axis: 1 for axis in sharding.AXES} | {'fsdp': -1}
# What chooses fields that a config leaves open, on accelerators.
PLANNERS = Table({}, 'planner')


class Before(NamedTuple):
  """What a run in a workdir was trained with until now."""

  mesh: Mapping[str, int]  # without a start, that of its config: -1 is open
  micro_rows: int  # 0: the whole batch
  slices: int | None = None  # None: not known


def before(workdir: str) -> Before | None:
  """How the run in a workdir was trained; None: there is none, or no workdir.

  A collective: every process must call it.
  """
  former = None
  if workdir and os.path.exists(os.path.join(workdir, 'config.json')):
    config = workdir_lib.read_config(workdir)
    mesh = {axis: config.mesh[axis] for axis in sharding.AXES}
    former = [mesh, config.batch.micro_rows or 0]
    for line in metrics.read(workdir):
      if line.get('event') == 'start' and 'mesh' in line:
        former = [line['mesh'], line['micro_rows'], line.get('slices')]
  former = hosts.broadcast_from_host0(former)
  return Before(*former) if former else None


def is_open(config: Config) -> bool:
  """Whether the config leaves its mesh open."""
  return all(config.mesh[axis] == n for axis, n in UNSET.items())


def with_mesh(config: Config, workdir: str = '', devices: Sequence[Any] | None = None) -> Config:
  """A config with its mesh chosen by the cost model, if it is left open.

  Only TPU slices have a cost model; elsewhere an open mesh stays as it is.

  Args:
    config: resolved; returned as it is while its vocabulary is not known.
    workdir: of the run, whose mesh is kept on as many devices in as many
      slices.
    devices: all of the run's; None: those of this process's backend.
  """
  devices = jax.devices() if devices is None else devices
  unknown = config.model.vocab_size is None
  if devices[0].platform != 'tpu' or unknown or not is_open(config):
    return config
  former = before(workdir)
  if former is not None and dict(former.mesh) == UNSET:
    return config  # of a version that did not choose
  slices = sharding.num_slices(devices)
  if former is not None and (
    math.prod(former.mesh.values()) == len(devices) and former.slices in (None, slices)
  ):
    mesh = dict(former.mesh)
  else:
    mesh = PLANNERS['mesh'](config, devices)
  if mesh is None:
    return config
  config = config_lib.unlocked(config)
  config.mesh.update(mesh)
  return config.lock()


class MicroRows:
  """The values that `batch.micro_rows` of a config can have."""

  def __init__(self, config: Config):
    """Takes a resolved config, whose own mesh is ignored."""
    self.config = config
    self.rules = sharding.parse_rules(config.mesh.rules)
    self.last = config_lib.ramp(config).stages[-1].shape  # of a batch

  def num_shards(self, mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return math.prod(mesh[axis] for axis in dict(self.rules)['batch'])

  def micro_choices(self, mesh: Mesh) -> list[int]:
    """The values, largest first.

    0 is the whole batch; the others take the last stage in equal parts.
    """
    here = -(-self.last.rows // self.num_shards(mesh))
    return [0, *(n for n in range(here - 1, 0, -1) if here % n == 0)]

  def halved(self, mesh: Mesh, micro_rows: int) -> int | None:
    """The largest choice of at most half the rows; None: there is none."""
    here = -(-self.last.rows // self.num_shards(mesh))
    now = min(micro_rows or here, here)
    choices = self.micro_choices(mesh)
    return next((n for n in choices if n and 2 * n <= now), None)


def halving(choices: MicroRows, mesh: Mesh, first: int, attempt: Callable[[int], T]) -> T:
  """Calls `attempt` with half as many rows until it does not raise `TooLarge`.

  Args:
    mesh: axis sizes.
    first: the first `batch.micro_rows` to try; 0: the whole batch.
    attempt: compiles.

  Raises:
    TooLarge: the fewest rows do not fit either.
  """
  micro_rows = first
  while True:
    try:
      return attempt(micro_rows)
    except TooLarge as e:
      fewer = choices.halved(mesh, micro_rows)
      if fewer is None:
        raise
      # What a step needs grows with its rows, so far too many are not halved
      # once for each compilation of a minute.
      now = micro_rows or 2 * fewer
      most = 2 * now * e.limit / e.needed if e.limit else math.inf
      while fewer > most and (less := choices.halved(mesh, fewer)) is not None:
        fewer = less
      log.info('%s: trying batch.micro_rows=%d', e, fewer)
      micro_rows = fewer


def fitted(parts: Parts, shapes: Sequence[Shape], workdir: str = '') -> tuple[Parts, Stages]:
  """Compiles training steps, with as many rows at a time as fit.

  Args:
    parts: `batch.micro_rows` of their config may be empty.
    shapes: of the batches; the one with the most tokens last.
    workdir: of the run: on the same mesh it begins with the same rows. A line
      is logged if the mesh is another one.

  Returns:
    The parts with `batch.micro_rows` set, and the compiled steps.
  """
  former = before(workdir)
  chosen, steps = _fitted(parts, shapes, former)
  if shapes:
    _tell(chosen, shapes[-1], steps[shapes[-1]])
    keep_freed(steps[shapes[-1]])
  if former is not None and shapes and (line := change(former, chosen)):
    log.info('%s', line)
  return chosen, steps


def change(known: Before, parts: Parts) -> str:
  """What differs for a run that goes on with another mesh; '': nothing.

  Args:
    known: the run until now.
    parts: with `batch.micro_rows` set.
  """
  was, now = known.mesh, dict(parts.mesh.shape)
  if was == now or -1 in was.values():
    return ''
  shape = parts.shapes()[-1]
  split = math.prod(was[axis] for axis in dict(parts.rules)['batch'])
  former = divided(shape.rows, num_shards=split, micro_rows=known.micro_rows).num_micro
  return (
    f'{_named(was)} before, {_named(now)} now; micro-batches: {former} before, '
    f'{parts.micro_batches(shape).num_micro} now; the {shape.rows} rows of a '
    f'step are the same, and {"so are its bits" if parts.exact else "only rounding differs"}'
  )


def _named(mesh: Mapping[str, int]) -> str:
  sizes = ', '.join(f'{axis}={n}' for axis, n in mesh.items() if n > 1)
  devices = math.prod(mesh.values())
  return f'{devices} device{"s" * (devices > 1)}' + (f' ({sizes})' if sizes else '')


def _fitted(parts: Parts, shapes: Sequence[Shape], former: Before | None) -> tuple[Parts, Stages]:
  """`fitted`, for a run that was trained as `former`."""
  fixed, mesh = parts.config.batch.micro_rows, dict(parts.mesh.shape)
  limit = parts_lib.memory_of_device(parts.mesh)
  state = parts_lib.abstract_state(parts)
  trained = train_state.trained(state.params, parts.objective.frozen)
  held = parts_lib.on_device(state)
  if limit is not None and parts.config.replay.every_steps:
    limit -= held  # the state before a step that is checked
  if fixed is not None:
    try:
      return parts, _compiled(parts, shapes, limit)
    except TooLarge as e:
      if over := parts.config.batch.exact_over:
        raise UsageError(f'batch.exact_over={over}: {e}; give more, or {_LESS}') from e
      raise UsageError(
        f'batch.micro_rows={fixed}: {e}; give fewer, or leave it empty for as '
        f'many as fit; or give {_LESS}'
      ) from e
  least = held + sum(
    4 * math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(trained)
  )
  whole = device_check.groups_span_rows(parts.config)
  first = 0
  if former is not None and former.mesh == mesh:
    first = former.micro_rows
  elif limit is not None and _platform(parts) != 'cpu' and not whole:
    # The model is of accelerators: on a CPU the compiled program decides alone.
    args = parts.config, mesh, least, limit
    first = PLANNERS['batch.micro_rows'](*args)

  def attempt(micro_rows: int) -> tuple[Parts, Stages]:
    if whole and micro_rows != first:
      raise UsageError(
        'batch.micro_rows: the whole batch at once does not fit, and as groups '
        'of model.ffn hold several rows, fewer rows change which tokens an '
        f'expert drops; give --config.batch.micro_rows={micro_rows}, or '
        'group_size=0'
      )
    config = config_lib.unlocked(parts.config)
    config.batch.micro_rows = micro_rows
    chosen = parts._replace(config=config.lock())
    return chosen, _compiled(chosen, shapes, limit)

  try:
    chosen_parts, steps = halving(MicroRows(parts.config), mesh, first, attempt)
  except TooLarge as e:
    raise _nothing_fits(parts, e) from e
  if micro_rows := chosen_parts.config.batch.micro_rows:
    log.info('batch.micro_rows=%d: as many as fit a device', micro_rows)
  return chosen_parts, steps


def _compiled(parts: Parts, shapes: Sequence[Shape], limit: float | None) -> Stages:
  """Compiles the steps, the largest first: if any does not fit, it is this."""
  steps = {shape: compile_train_step(parts, shape, limit=limit) for shape in reversed(shapes)}
  return {shape: steps[shape] for shape in shapes}


def check_state(parts: Parts) -> None:
  """Refuses a model whose state alone is too large; allocates nothing."""
  state = parts_lib.abstract_state(parts)
  count = sum(x.size for x in jax.tree.leaves(state.params))
  parts_lib.check_memory(
    parts,
    state,
    f'model: {count:,} parameters and the state of optim.name={parts.config.optim.name!r}',
    f'give a smaller model, {_SPLIT}{_on_fewer(parts)}',
  )


def _tell(parts: Parts, shape: Shape, step: Compiled) -> None:
  """Logs the memory that a step takes; warns if other processes hold it."""
  needed = peak(step.call, _platform(parts))
  held = parts_lib.on_device(parts_lib.abstract_state(parts))
  limit = parts_lib.memory_of_device(parts.mesh)
  log.info(
    'the step of %d rows of %d tokens takes %s of a device%s; '
    'parameters and optimizer take %s of these',
    shape.rows,
    shape.length,
    _size(needed),
    f', which has {_size(limit)}' if limit else '',
    _size(held),
  )
  left = memory.left_on_host()
  if _platform(parts) == 'cpu' and needed * jax.local_device_count() > left:
    log.warning(
      'other processes leave %.2f GiB of this machine, which is too little: end them, or give %s%s',
      left / GIB,
      _fewer_rows(parts),
      _LESS,
    )


def _size(num_bytes: float) -> str:
  """'1.25 GiB', or of a small model '3.14 MiB'."""
  if num_bytes < 0.1 * GIB:
    return f'{num_bytes / 2**20:.3g} MiB'
  return f'{num_bytes / GIB:.2f} GiB'


def keep_freed(step: Compiled) -> None:
  """Has malloc keep freed memory if the largest step of a run takes little."""
  if jax.default_backend() == 'cpu':
    malloc.keep_of_step(peak(step.call, 'cpu') * jax.local_device_count())


def _platform(parts: Parts) -> str:
  return parts.mesh.devices.flat[0].platform


def _fewer_rows(parts: Parts) -> str:
  """The advice to take fewer rows at a time, if that is possible."""
  choices, mesh = MicroRows(parts.config), dict(parts.mesh.shape)
  fewer = choices.halved(mesh, parts.config.batch.micro_rows or 0)
  return f'--config.batch.micro_rows={fewer}, ' if fewer else ''


def _nothing_fits(parts: Parts, error: TooLarge) -> UsageError:
  return UsageError(
    f'batch.micro_rows: {error}, with the fewest rows at a time; give {_LESS}' + _on_fewer(parts)
  )


def _on_fewer(parts: Parts) -> str:
  """The advice to leave some hosts out, if that splits the model more."""
  config, count = parts.config, parts.mesh.devices.size
  several = jax.process_count() > 1
  fewer = sharding.fewer_devices(
    config.mesh,
    count,
    width=config_lib.width(config),
    each=jax.local_device_count() if several else 1,
  )
  if fewer is None or _platform(parts) == 'tpu':
    return ''
  number, fsdp = fewer
  return (
    f'; or start on {number} of these {count} devices: over them '
    f'mesh.fsdp=-1 is {fsdp}, and not {parts.mesh.shape["fsdp"]}'
  )


_SPLIT = (
  'a mesh that splits the model over more devices (mesh.fsdp, mesh.tensor), or '
  'devices with more memory'
)
_LESS = f'--config.model.remat=full, {_SPLIT}'


@contextlib.contextmanager
def explaining(parts: Parts, step: Compiled, shape: Shape) -> Iterator[None]:
  """Says what a step needs, and what to change, if memory runs out in it."""
  try:
    yield
  except jax.errors.JaxRuntimeError as e:
    said = str(e).partition('\n')[0]
    if 'RESOURCE_EXHAUSTED' not in said:
      raise
    needed = peak(step.call, _platform(parts))
    fewer = _fewer_rows(parts)
    raise FailedError(
      f'{said.rstrip(".")}: the step of {shape.rows} rows of {shape.length} '
      f'tokens needs {needed / GIB:.2f} GiB on a device; give {fewer}{_LESS}, '
      'and the same command goes on from the newest checkpoint'
    ) from e
