# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Silent data corruption: a device that computes or keeps wrong bits.

A step is a function of its state and its batch, so the same step taken again
has the same bits, or some device was wrong. Every `replay.every_steps` steps:

1. The copies of the state that different devices hold are compared.
2. The gradients of each replica's rows, before they are summed over the
   replicas, are computed twice: where the step computes them, and with all rows
   moved to the next replica along the mesh axis `data`. A sum over replicas may
   be rounded by its order, and so by the placement; these gradients are not.
   A device that is always wrong shows here, and more moves say which it is.
3. The step itself is taken twice from copies of the state, its batch copied to
   the devices anew. If the results differ, a third decides.

A result that two runs agree on is used, so no step is lost. If the state itself
has been wrong for some steps, the run goes back to its newest checkpoint: the
copies are compared before each save, too. It also goes back once after a loss
jump or a loss that is not finite, to see whether that recurs.

Comparisons are of fingerprints, `checkpoints.restore.print_of`, whose sums of
integers do not depend on any order. Process 0 judges them for all.
"""

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from gpt_jax.core import sharding
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.nn import layout
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.loss import Batch
from gpt_jax.core.optim import train_state, wrappers
from gpt_jax.core.optim.micro_batches import MicroBatches
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.train_state import Rates, TrainState
from gpt_jax.core.runtime import hosts, watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError
from gpt_jax.core.training.compiled import Compiled, Stages, abstract_batch, compile_on_mesh
from gpt_jax.core.training.events import GoBack, Listener
from gpt_jax.core.training.parts import Parts, abstract_state
from gpt_jax.core.training.step import begun, mean_gradients

# How often a run goes back from one step, or takes it, before it gives up.
TRIES = 3
# XLA's own checker on TPUs: the program computes twice, and compares.
CHECKER = {'xla_tpu_enable_sdc_checker': 'true'}

# Fingerprints of what each device holds, and of what each replica computes.


def device_prints(tree: Any, mesh: Mesh) -> np.ndarray:
  """Fingerprints of each device's shard of each array.

  Returns:
    uint32 [devices, arrays]: devices as in `mesh.devices.flat`, arrays as the
    leaves of the tree. Every process has all.
  """
  leaves = jax.tree.leaves(tree)
  specs = tuple(x.sharding.spec for x in leaves)
  return np.asarray(_printer(mesh, specs)(leaves))


@functools.cache
def _printer(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
  def here(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([restore.print_of(x) for x in leaves])[None]

  each = jax.shard_map(
    here,
    mesh=mesh,
    in_specs=([*specs],),
    out_specs=PartitionSpec(mesh.axis_names),
    check_vma=False,  # copies may differ: that is what is looked for
  )
  return jax.jit(
    lambda leaves: each([wrappers.near(x) for x in leaves]), out_shardings=sharding.replicated(mesh)
  )


def shard_prints(
  state: TrainState,
  batch: Batch,
  *,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  rates: Rates,
  seed: int,
  num_steps: int,
  num_replicas: int,
  parts: MicroBatches,
  specs: Any,
) -> jax.Array:
  """Fingerprints of the loss and the gradients of each replica's rows.

  Each replica computes its rows as if they were the whole batch, so that no
  number depends on another replica, or on which one it is.

  Args:
    batch: as many rows for each replica.
    parts: the micro-batches of a replica's rows.
    specs: how the trained parameters are split.

  Returns:
    uint32 [replicas, 1 + arrays].
  """
  state, key = begun(state, optimizer=optimizer, rates=rates, seed=seed)

  def one(rows: Batch) -> tuple[jax.Array, Any]:
    loss, _, grads = mean_gradients(
      state.params,
      rows,
      key,
      state.step,
      objective=objective,
      rates=rates,
      num_steps=num_steps,
      **parts._asdict(),
    )
    return loss, grads

  each = jax.tree.map(lambda x: x.reshape(num_replicas, -1, *x.shape[1:]), batch)
  with layout.within(sharding.REPLICAS):
    loss, grads = jax.vmap(one, spmd_axis_name=sharding.REPLICAS)(each)
  # As in the step, so that no device holds the gradient of a whole model.
  grads = jax.tree.map(
    lambda x, spec: jax.lax.with_sharding_constraint(x, PartitionSpec(sharding.REPLICAS, *spec)),
    grads,
    specs,
  )
  prints = [jax.vmap(restore.print_of)(x) for x in [loss, *jax.tree.leaves(grads)]]
  return jnp.stack(prints, axis=1)


def compile_shard_prints(parts: Parts, shape: Shape) -> Compiled:
  """Compiles `shard_prints`; on TPUs with XLA's checker in it."""
  micro = parts.micro_batches(shape)
  size = parts.mesh.shape[sharding.REPLICAS]
  objective = parts.objective.of(shape.task)
  found = train_state.trained(parts.shardings.params, objective.frozen)
  call = functools.partial(
    shard_prints,
    objective=objective,
    optimizer=parts.optimizer,
    rates=parts.rates,
    seed=parts.config.seed,
    num_steps=parts.config.schedule.num_steps,
    num_replicas=size,
    parts=MicroBatches(micro.num_micro, micro.num_shards // size),
    specs=jax.tree.map(lambda x: x.spec, found),
  )
  jitted = jax.jit(call, out_shardings=sharding.replicated(parts.mesh))
  rows = micro.filled(shape.rows)
  batch = abstract_batch(parts, rows, shape.length, shape.task, training=True)
  is_tpu = parts.mesh.devices.flat[0].platform == 'tpu'
  return compile_on_mesh(
    parts, jitted, abstract_state(parts), batch, options=CHECKER if is_tpu else None
  )


def moved(arrays: Any, parts: Parts, shape: Shape, places: int) -> Any:
  """The rows of a batch, filled up, `places` replicas further along `data`."""
  filled = parts.micro_batches(shape).filled(shape.rows)
  shift = places * (filled // parts.mesh.shape[sharding.REPLICAS])
  run = _mover(filled, shift, parts.batch_sharding)
  return run(arrays)


@functools.cache
def _mover(filled: int, shift: int, split: Any) -> Any:
  def run(arrays: Any) -> Any:
    def of(x: jax.Array) -> jax.Array:
      ends = [(0, filled - len(x)), *[(0, 0)] * (x.ndim - 1)]
      return jnp.roll(jnp.pad(x, ends), shift, axis=0)

    return jax.tree.map(of, arrays)

  return jax.jit(run, out_shardings=split)


def copied(tree: Any) -> Any:
  """A copy that may be donated; each device copies what it holds."""
  return jax.tree.map(lambda x: jax.device_put(x, x.sharding, may_alias=False), tree)


# Judgement of fingerprints.


class Moved(NamedTuple):
  """The prints of one run of `shard_prints`."""

  places: int  # that the rows were moved by
  prints: np.ndarray  # uint32 [replicas, ...], by the replica that computed

  def of(self, shard: int) -> tuple[int, bytes]:
    """The replica that computed a shard of the rows, and the prints of it."""
    replica = (shard + self.places) % len(self.prints)
    return replica, self.prints[replica].tobytes()


class Verdict(NamedTuple):
  """Which replicas differ from the majority.

  If a shard has no majority, all that computed it.
  """

  replicas: list[int]
  # Shards of which no print has a majority.
  undecided: list[int]
  again: bool  # equal moves had equal prints: whatever it is, it stays


def judged(runs: Sequence[Moved]) -> Verdict:
  """Compares who computed the same rows; some moves are there twice."""
  wrong, undecided = set(), []
  for shard in range(len(runs[0].prints)):
    votes = [run.of(shard) for run in runs]
    [(most, count)] = Counter(x for _, x in votes).most_common(1)
    split = 2 * count <= len(votes)
    undecided += [shard] * split
    wrong |= {replica for replica, x in votes if split or x != most}
  by_move: dict[int, set[bytes]] = {}
  for run in runs:
    by_move.setdefault(run.places, set()).add(run.prints.tobytes())
  again = all(len(found) == 1 for found in by_move.values())
  return Verdict(sorted(wrong), undecided, again)


def first_holders(tree: Any, mesh: Mesh) -> np.ndarray:
  """For each device and array, the first device with the same shard of it.

  Args:
    tree: real or abstract arrays.

  Returns:
    int [devices, arrays], in the order of `device_prints`.
  """
  known: dict[Any, np.ndarray] = {}

  def of(x: Any) -> np.ndarray:
    key = x.sharding.spec, x.shape
    if key not in known:
      shards = x.sharding.devices_indices_map(x.shape)
      first: dict[str, int] = {}
      known[key] = np.array(
        [
          first.setdefault(str(shards[device]), place)
          for place, device in enumerate(mesh.devices.flat)
        ]
      )
    return known[key]

  return np.stack([of(x) for x in jax.tree.leaves(tree)], axis=1)


def differing(prints: np.ndarray, first: np.ndarray) -> dict[int, list[int]]:
  """Arrays whose copies differ, each with the devices in the minority.

  Without a majority these are all devices that hold the shard.

  Args:
    prints: of `device_prints`.
    first: of `first_holders`.
  """
  found: dict[int, list[int]] = {}
  unlike = prints != np.take_along_axis(prints, first, axis=0)
  for array in np.flatnonzero(np.any(unlike, axis=0)):
    devices: set[int] = set()
    for holder in np.unique(first[unlike[:, array], array]):
      group = np.flatnonzero(first[:, array] == holder)
      values = prints[group, array]
      [(most, count)] = Counter(values.tolist()).most_common(1)
      alone = values != most if 2 * count > len(group) else values == values
      devices.update(group[alone].tolist())
    found[int(array)] = sorted(devices)
  return found


# Checks of a run.


class Replay(Listener):
  """Checks steps of a run by repeating them: see the top of this file."""

  def __init__(self, parts: Parts, write: Callable[[str, int, dict[str, Any]], str]):
    """`compiled` comes next, then `begin`.

    Args:
      write: writes what is known of a step: see `Run.write_step`.
    """
    self._parts, self._write_step = parts, write
    self._every = parts.config.replay.every_steps
    abstract = abstract_state(self._parts)
    self._names = [*restore.arrays(abstract)]
    self._first = first_holders(abstract, self._parts.mesh)
    self._programs: dict[Shape, Compiled] = {}
    self._separate = True
    self._alike = False  # replicas have been, at least once
    # By step: the figures of each time that it had a spike, or went back.
    self._spikes: dict[int, list[dict[str, float]]] = {}
    self._backs: Counter[int] = Counter()

  def compiled(self, train_steps: Stages) -> None:
    """Compiles `shard_prints` for the batches of some training steps."""
    for shape in train_steps:
      micro = self._parts.micro_batches(shape)
      separate = self._parts.separate_replicas(micro, shape) > 1
      self._separate = self._separate and separate
      if separate and shape not in self._programs:
        self._programs[shape] = compile_shard_prints(self._parts, shape)

  def begin(self, done: int) -> None:
    """Continues after step `done`."""
    self._passed = done
    if not self._separate:
      log.warning(
        'replay.every_steps=%d: no other devices of this run can take a '
        "device's rows, so a device that is always wrong is not found; "
        'mesh.data=2 or more, without mesh.stage and optim.outer, allows it',
        self._every,
      )

  def step(self, step: int, *args: Any) -> tuple[TrainState, dict[str, Any]] | None:
    """Takes the steps that are due by `checked_step`, with its arguments."""
    return None if step % self._every else self.checked_step(step, *args)

  def checked_step(
    self,
    step: int,
    state: TrainState,
    batch: dict[str, np.ndarray],
    shape: Shape,
    program: Compiled,
    average_start: Sequence[jax.Array],
  ) -> tuple[TrainState, dict[str, Any]]:
    """Takes a step and checks it: see `Listener.step`.

    Returns:
      The state and the metrics that two runs agree on.

    Raises:
      GoBack: the state is wrong.
      FailedError: a device is always wrong, or no two runs agree.
    """
    parts = self._parts
    before = self.check_copies(step - 1, state)
    put = functools.partial(parts.put, batch, shape.rows)
    if shape in self._programs:
      self._check_replicas(step, state, put(), shape)
    results, batches = [], []
    while True:
      arrays = put()
      batches.append(device_prints(arrays, parts.mesh))
      new, out = program.call(copied(state), arrays, *average_start)
      results.append(device_prints((new, out), parts.mesh))
      watchdog.enter('step')
      known = [np.array_equal(x, results[-1]) for x in results[:-1]]
      agreed = hosts.broadcast_from_host0(any(known))
      if agreed or len(results) == TRIES:
        break
      del new, out
    if len(results) > 2 or not agreed:
      self._explain(step, state, before, results, batches, agreed=agreed)
    jax.tree.map(lambda x: x.delete(), state)
    self._passed = step
    return new, out

  def _explain(
    self,
    step: int,
    state: TrainState,
    before: np.ndarray,
    results: list[np.ndarray],
    batches: list[np.ndarray],
    *,
    agreed: bool,
  ) -> None:
    """Reports runs of one step of which some differ.

    Raises:
      GoBack: the state from which they started changed meanwhile.
      FailedError: no two are alike.
    """
    now = device_prints(state, self._parts.mesh)
    changed = self._arrays(now != before)
    inputs = self._unlike(batches)
    devices = inputs or self._unlike(results)
    what = 'its batch' if inputs else 'its result'
    file = self._write(
      step,
      'state' if changed else 'batch' if inputs else 'step',
      devices,
      runs=[_digest(x) for x in results],
      batches=[_digest(x) for x in batches],
      arrays=changed,
    )
    if changed:
      devices = np.flatnonzero(np.any(now != before, axis=1)).tolist()
      self._go_back(
        step,
        f'step {step}: {_some(changed)} of the state changed in the memory of '
        f'{self._named(devices)}',
        file,
      )
    said = f'step {step}: {what} differs between runs'
    if devices:
      said += f', on {self._named(devices)}'
    if not agreed:
      raise FailedError(f'{said}, and no two of {TRIES} agree; evidence: {file}; {self._remedy()}')
    log.warning('%s; two of %d agree, and their result is used; evidence: %s', said, TRIES, file)

  def before_save(self, step: int, state: TrainState) -> None:
    """Compares the copies of a state: see `check_copies`."""
    self.check_copies(step, state)

  def check_copies(self, step: int, state: TrainState) -> np.ndarray:
    """Compares the copies of a state; returns its prints.

    Args:
      step: done.

    Raises:
      GoBack: they differ.
    """
    prints = device_prints(state, self._parts.mesh)
    found = hosts.broadcast_from_host0([*differing(prints, self._first).items()])
    if found:
      devices = sorted({device for _, group in found for device in group})
      arrays = [self._names[array] for array, _ in found]
      file = self._write(step, 'copies', devices, arrays=arrays)
      self._go_back(
        step,
        f'step {step}: the copies of {_some(arrays)} of the state differ, on '
        f'{self._named(devices)}',
        file,
      )
    return prints

  def _check_replicas(self, step: int, state: TrainState, arrays: Any, shape: Shape) -> None:
    """Compares the gradients of the same rows on different replicas.

    Raises:
      FailedError: a device computes other ones, every time.
    """
    size = self._parts.mesh.shape[sharding.REPLICAS]
    call = self._programs[shape].call

    def run(places: int) -> Moved:
      rows = moved(arrays, self._parts, shape, places)
      prints = np.asarray(call(state, rows))
      watchdog.enter('step')
      return Moved(places, prints)

    runs = [run(0), run(1)]
    if hosts.broadcast_from_host0(not judged(runs).replicas):
      self._alike = True
      return
    runs += [run(0), run(1)] + [run(2)] * (size > 2)
    verdict = Verdict(*hosts.broadcast_from_host0(judged(runs)))
    grid = np.arange(self._parts.mesh.size).reshape(size, -1)
    devices = grid[verdict.replicas].flatten().tolist()
    # A replica of one device adds nothing up; and once alike, always alike.
    exact = self._alike or self._parts.mesh.size == size
    if verdict.again and verdict.undecided and not exact:
      log.warning(
        'step %d: gradients of the same rows differ between groups of devices, '
        'always in the same way, and no majority is alike: sums within a group '
        'depend on the place here. They are not compared from now on',
        step,
      )
      self._programs = {}
      return
    file = self._write(
      step,
      'gradients',
      devices,
      runs=[{'places': run.places, 'replicas': [_digest(x) for x in run.prints]} for run in runs],
    )
    said = (
      f'step {step}: gradients of the same rows and parameters differ between '
      f'devices, on {self._named(devices)}'
    )
    if verdict.again:
      raise FailedError(f'{said}, and did so again; evidence: {file}; {self._remedy()}')
    log.warning('%s, but not always; evidence: %s', said, file)

  def _remedy(self) -> str:
    return (
      'replace it, and give the same command again: it goes on from the newest '
      'checkpoint; those of up to step '
      f'{self._passed} were saved before the last check that passed'
    )

  # Spikes.

  def spike(self, step: int, output: dict[str, Any]) -> bool:
    """Whether a spike must be repeated before it counts.

    Raises:
      FailedError: it had other figures each time.
    """
    figures = {name: float(output[name]) for name in ('loss', 'grad_norm')}
    seen = self._spikes.setdefault(step, [])
    known = any(_same(figures, other) for other in seen)
    seen.append(figures)
    if known:
      return False
    if len(seen) == TRIES:
      file = self._write(step, 'spike', [], runs=seen)
      losses = ', '.join(f'{figures["loss"]:.6g}' for figures in seen)
      raise FailedError(
        f'step {step}: {TRIES} runs had other losses each, {losses}; evidence: '
        f'{file}; some device is often wrong: replay.every_steps=1 may name it'
      )
    log.warning(
      'step %d: loss %.6g and gradient norm %.6g: going back to the newest '
      'checkpoint, to see whether they recur',
      step,
      figures['loss'],
      figures['grad_norm'],
    )
    return True

  def checked(self, last: int, outputs: Sequence[dict[str, Any]]) -> None:
    """Reports spikes that did not recur in the steps up to `last`."""
    for step, output in enumerate(outputs, start=last - len(outputs) + 1):
      if not (seen := self._spikes.get(step)):
        continue
      figures = {name: float(output[name]) for name in ('loss', 'grad_norm')}
      if any(_same(figures, other) for other in seen):
        continue
      del self._spikes[step]
      file = self._write(step, 'spike', [], runs=[*seen, figures])
      log.warning(
        'step %d: loss %.6g, where it had %.6g before: some device was wrong; '
        'the run goes on with the former; evidence: %s',
        step,
        figures['loss'],
        seen[0]['loss'],
        file,
      )

  # What is found.

  def _go_back(self, step: int, said: str, file: str) -> None:
    self._backs[step] += 1
    if self._backs[step] == TRIES:
      raise FailedError(f'{said}, {TRIES} times; evidence: {file}; {self._remedy()}')
    log.warning('%s: going back to the newest checkpoint; evidence: %s', said, file)
    raise GoBack(said)

  def _unlike(self, prints: list[np.ndarray]) -> list[int]:
    """The devices that differ between runs; none if all do, as after a sum."""
    unlike = [x != prints[0] for x in prints[1:]]
    devices = np.flatnonzero(np.any(unlike, axis=(0, 2)))
    return [] if len(devices) == self._parts.mesh.size else devices.tolist()

  def _arrays(self, unlike: np.ndarray) -> list[str]:
    found = np.flatnonzero(np.any(unlike, axis=0))
    return [self._names[array] for array in found]

  def _named(self, devices: Sequence[int]) -> str:
    found = [self._parts.mesh.devices.flat[i] for i in devices]
    names = [f'device {x.id} (host {x.process_index})' for x in found]
    return _some(names)

  def _write(self, step: int, kind: str, devices: Sequence[int], **found: Any) -> str:
    """Writes what is found, with the devices; returns the file's path."""
    flat = self._parts.mesh.devices.flat
    named = [
      {
        'id': flat[i].id,
        'host': flat[i].process_index,
        'kind': flat[i].device_kind,
        'coords': getattr(flat[i], 'coords', None),
      }
      for i in devices
    ]
    about = {'devices': named, 'last_check_passed': self._passed}
    path = f'replays/{step}_{kind}.json'
    return self._write_step(path, step, {'kind': kind, **about, **found})


def _same(figures: dict[str, float], other: dict[str, float]) -> bool:
  """Equal, where a NaN is equal to itself."""
  return all(np.array_equal(x, other[n], True) for n, x in figures.items())


def _digest(prints: np.ndarray) -> str:
  return f'{zlib.crc32(prints.tobytes()):08x}'


def _some(names: Sequence[str]) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more
