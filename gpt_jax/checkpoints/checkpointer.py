# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved in the background by Orbax, verified when restored.

Each `WORKDIR/checkpoints/STEP` holds

- `state/`: the arrays, in TensorStore, each file synced to disk;
- `checksums/`: name, shape, dtype and fingerprint of every array, computed on
  the devices at that step, and what is recorded of the run's past (see
  `training.past`), under a checksum of their own;
- `commit_success.txt`, written last: the commit marker. On a local disk Orbax
  writes all into `STEP.orbax-checkpoint-tmp` and then renames that folder; on
  gs://, which cannot rename, a folder without the marker does not count.

What a checkpoint says of its arrays is compared with the config's state first:
a difference is the user's (`UsageError`). After that whatever cannot be read,
or gives another fingerprint, is damage; the next older checkpoint is used.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from gpt_jax.checkpoints import restore
from gpt_jax.checkpoints.restore import (
  Contents,
  Handler,
  Names,
  Restored,
  arrays,
  fingerprint,
  registry,
  signed,
)
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log

# Orbax's preservation policies: which checkpoints are kept.


class Best(NamedTuple):
  """Keeps the `n` checkpoints with the lowest loss."""

  n: int
  losses: dict[int, float]  # by step; one without is none of the best

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for those that are kept; on a tie, the older."""
    del context
    found = [c.step for c in checkpoints if c.step in self.losses]
    steps = [step for step in found if math.isfinite(self.losses[step])]
    best = sorted(steps, key=lambda step: (self.losses[step], step))[: self.n]
    return [c.step in best for c in checkpoints]


class Regular(NamedTuple):
  """Checkpoints made in between stay only while they are the newest.

  A preemption makes one, and so does the retry of a save that failed. The
  others are those of a run that was left alone, so that what a rewind finds to
  go back to is the same too.
  """

  every: int  # the steps of the others are its multiples
  policy: Any  # says which of them stay

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for those that are kept."""
    regular = [c for c in checkpoints if c.step % self.every == 0]
    preserved = self.policy.should_preserve(regular, context=context)
    stay = {c.step for c, keep in zip(regular, preserved, strict=True) if keep}
    stay.update(sorted(c.step for c in checkpoints)[-1:])
    return [c.step in stay for c in checkpoints]


def retention_policy(
  losses: dict[int, float],
  *,
  keep: int,
  every_steps: int,
  keep_every_steps: int,
  keep_best: int,
) -> Regular:
  """The policy of the section `checkpoint` of a config.

  Args:
    losses: held-out, by step; may grow.
    keep: how many of the newest stay.
    every_steps: steps between saves.
    keep_every_steps: those of its multiples stay for good; 0: none.
    keep_best: how many of the least loss stay.
  """
  policies: list[Any] = [checkpoint_managers.LatestN(keep)]
  if keep_every_steps:
    policies.append(checkpoint_managers.EveryNSteps(keep_every_steps))
  if keep_best:
    policies.append(Best(keep_best, losses))
  return Regular(
    every_steps, checkpoint_managers.AnyPreservationPolicy(policies)
  )


def rewind_target(
  steps: Sequence[int], *, spike: int, before: int, every: int
) -> int:
  """The checkpoint to go back to; 0 is the start of the run.

  The newest at least `before` steps before the spike; where retention left
  none so old, the oldest before the spike. Of the regular ones, so that it does
  not depend on preemptions.

  Args:
    steps: of the checkpoints.
    spike: its step, counted from 1.
    before: steps to go back, at least.
    every: the regular ones are its multiples.
  """
  sound = [step for step in steps if step < spike]
  regular = [step for step in sound if step % every == 0]
  if not regular and spike > every:
    regular = sound  # every_steps was another number before
  old = [step for step in regular if step <= spike - before]
  return max(old) if old else min(regular, default=0)


# Folders of unfinished saves.


def find(folder: epath.Path) -> list[epath.Path]:
  """The unfinished saves in `folder`, which may be missing."""
  if not folder.exists():
    return []
  in_place = str(folder).startswith('gs://')
  return [
    path
    for path in folder.iterdir()
    if 'orbax-checkpoint-tmp' in path.name
    or (in_place and path.name.isdecimal() and not restore.committed(path))
  ]


def remove(folder: epath.Path) -> None:
  """Deletes unfinished saves; call it while nothing is being saved."""
  if jax.process_index() == 0:
    for path in find(folder):
      # Other writes of a failed save may still be running; what they leave
      # is deleted after the next save.
      with contextlib.suppress(OSError):
        path.rmtree(missing_ok=True)


# Waits before a failed save is tried again: during the run, and at its end.
RETRY_SECONDS = 60.0
FINAL_WAITS = (1.0, 5.0, 15.0, 60.0)


class DamageError(RuntimeError):
  """There are checkpoints, but none is sound."""


class Checkpointer:
  """The checkpoints of one workdir, in `WORKDIR/checkpoints/STEP`."""

  def __init__(
    self,
    workdir: str,
    *,
    keep: int = 1,
    every_steps: int = 1,
    keep_every_steps: int = 0,
    keep_best: int = 0,
    record: Callable[[int], Any] | None = None,
    read_only: bool = False,
  ):
    """Opens the folder; creates it unless `read_only`.

    Args:
      keep: how many of the newest stay.
      every_steps: steps between saves; see `retention`.
      keep_every_steps: those of its multiples stay for good; 0: none.
      keep_best: how many of the least loss stay; see `evaluated`.
      record: gives what the checkpoint of a step holds besides its arrays,
        plain JSON.
      read_only: nothing is written, moved or deleted.
    """
    self._folder = restore.folder_of(workdir)
    self._losses: dict[int, float] = {}
    self._read_only = read_only
    self._record = record
    self.restored: Restored | None = None  # by `restore`, last
    policy = retention_policy(
      self._losses,
      keep=keep,
      every_steps=every_steps,
      keep_every_steps=keep_every_steps,
      keep_best=keep_best,
    )
    self._options = ocp.CheckpointManagerOptions(
      preservation_policy=None if read_only else policy,
      read_only=read_only,
      create=not read_only,
      step_name_format=Names(),
    )
    self._pending: int | None = None  # the step that is being saved
    self._raised: Exception | None = None  # when its save was started
    self._error = ''  # why the last save failed
    self._retry_at = 0.0
    self._open()

  def _open(self):
    self._manager = ocp.CheckpointManager(
      restore.absolute(self._folder),
      options=self._options,
      handler_registry=registry(Handler()),
    )

  def steps(self) -> list[int]:
    """Steps of the checkpoints, oldest first; one being saved counts."""
    return sorted(self._manager.all_steps())

  # Saving ------------------------------------------------------------------

  def evaluated(self, step: int, loss: float) -> None:
    """Records the held-out loss of a step, by which `keep_best` decides."""
    self._losses[step] = loss

  def save(self, state: TrainState) -> None:
    """Starts to save; waits only until the previous save is done.

    A save that fails (a full disk) is said, and the run goes on: see
    `retry_due`.

    Args:
      state: copied before this returns, so that a step may take its memory.
    """
    self._collect()
    step = int(state.step)
    if step in self.steps():
      return
    record = self._record(step) if self._record else None
    checksums = signed(Contents(arrays(state, fingerprint(state)), record))
    self._pending = step
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state),
          checksums=ocp.args.JsonSave(checksums),
        ),
      )
    except Exception as e:
      # This host may be the only one that failed; `_collect` makes all agree.
      self._raised = e

  def saving(self) -> bool:
    """Whether a save is still running in the background."""
    return self._pending is not None and self._manager.is_saving_in_progress()

  def wait(self) -> None:
    """Waits for the running save, if any."""
    self._collect()

  def forget_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps, after a rewind."""
    self._collect()
    for later in self.steps():
      if later > step:
        self._manager.delete(later)
        self._losses.pop(later, None)

  def retry_due(self) -> bool:
    """True if a save failed and it is time to try again; does not wait.

    On several hosts, whose clocks differ, the next save is the retry.
    """
    if jax.process_count() > 1:
      return False
    if self._pending is not None and not self._manager.is_saving_in_progress():
      self._collect()
    return bool(self._error) and time.monotonic() >= self._retry_at

  def finish(self, state: TrainState, *, within: float = math.inf) -> None:
    """Waits until `state` is saved, and closes; tries again where it fails.

    Args:
      within: seconds of which the waits between the tries leave some over; a
        number of tries, not a clock, so that all hosts make the same.

    Raises:
      RuntimeError: it could not be saved.
    """
    sums = zip(FINAL_WAITS, itertools.accumulate(FINAL_WAITS), strict=True)
    for wait in (*(wait for wait, sum in sums if sum < within), None):
      self.save(state)
      self._collect()
      if not self._error:
        self._manager.close()
        return
      if wait is not None:
        time.sleep(wait)
    have = self.steps()
    older = f'from step {have[-1]}' if have else 'from the start'
    raise RuntimeError(
      f'the checkpoint of step {int(state.step)} could not be written to '
      f'{self._folder} ({self._error}); mend that (make room), and the same '
      f'command goes on {older}'
    )

  def close(self) -> None:
    """Waits for the running save, if any, and closes."""
    self._collect()
    self._manager.close()

  def _collect(self) -> None:
    """Waits for the running save, and handles its failure."""
    if self._pending is None:
      return
    error, self._raised = self._raised, None
    try:
      self._manager.wait_until_finished()
    except Exception as e:
      error = e
    if not hosts.all_agree(error is None):
      self._failed(error or OSError('another host failed'))
      return
    if self._error:
      log.info('step %d: checkpoints are written again', self._pending)
    self._pending, self._error = None, ''
    remove(self._folder)

  def _failed(self, error: Exception) -> None:
    self._error = restore.reason_of(error)
    self._retry_at = time.monotonic() + RETRY_SECONDS
    log.warning(
      'the checkpoint of step %d was not written (%s); the run goes on from '
      'memory, the older checkpoints stay; it will be tried again',
      self._pending,
      self._error,
    )
    self._pending = None
    # Already reported above; closing may raise it again.
    with contextlib.suppress(Exception):
      self._manager.close()
    # Reopen: the old manager already dropped what the failed save would
    # have replaced.
    self._open()
    remove(self._folder)

  # Restoring ---------------------------------------------------------------

  def restore(
    self, abstract: TrainState, *, at_most: int | None = None
  ) -> TrainState | None:
    """Restores the newest sound checkpoint onto the shardings of `abstract`.

    Damaged ones that are newer are moved to `WORKDIR/checkpoints_damaged`.

    Args:
      abstract: `jax.ShapeDtypeStruct`s with shardings.
      at_most: the last step that will do.

    Returns:
      The state, or None where there is no checkpoint yet.

    Raises:
      UsageError: a checkpoint holds other arrays than the config's state.
      DamageError: there are checkpoints, and every one is damaged. Nothing
        was moved or deleted.
    """
    self._collect()
    for path in find(self._folder):
      log.warning('%s is half-written; it is not used', path)
    damaged, self.restored = {}, None
    for step in reversed(self.steps()):
      if at_most is not None and step > at_most:
        continue
      folder = restore.absolute(self._folder) / str(step)
      state, reason, record = restore.read(folder, abstract)
      if state is None:
        damaged[step] = reason
        log.warning(
          'checkpoint %s is damaged (%s)', self._folder / str(step), reason
        )
        continue
      if damaged:
        self._set_aside(list(damaged))
        log.warning('going on from the older checkpoint of step %d', step)
      self.restored = Restored(step, record)
      return state
    if damaged:
      step, reason = max(damaged.items())
      raise DamageError(
        f'{self._folder / str(step)}: damaged ({reason}), and no older '
        'checkpoint is sound; nothing was deleted: restore the folder from a '
        'copy, or start again with another --workdir'
      )
    return None

  def _set_aside(self, steps: list[int]) -> None:
    """Moves damaged checkpoints away, so that their steps can be saved."""
    if self._read_only:
      return
    aside = self._folder.parent / 'checkpoints_damaged'
    self._manager.close()
    if jax.process_index() == 0:
      aside.mkdir(exist_ok=True)
      for step in steps:
        (aside / str(step)).rmtree(missing_ok=True)
        (self._folder / str(step)).rename(aside / str(step))
    if jax.process_count() > 1:
      ocp.multihost.sync_global_processes('gpt_jax_set_aside')
    self._open()
