# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved in the background by Orbax, verified when restored.

Each `WORKDIR/checkpoints/STEP` holds

- `state/`: the arrays, in TensorStore, each file synced to disk;
- `checksums/`: name, shape, dtype and fingerprint of every array, computed on
  the devices at that step, and the run's history (see `training.past`), with a
  checksum over both;
- `commit_success.txt`, written last: the commit marker. On a local disk Orbax
  writes all into `STEP.orbax-checkpoint-tmp` and then renames that folder; on
  gs://, which cannot rename, a folder without the marker does not count.

First, a checkpoint's list of arrays is compared with the config's state: a
difference is the user's error (`UsageError`). After that, an array that cannot
be read or has another fingerprint is damage, and the next older checkpoint is
used.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.restore import (
  BoundedHandler,
  CheckpointContents,
  Restored,
  StepNames,
  arrays,
  fingerprint,
  registry,
  signed,
)
from gpt_jax.core.optim.train_state import TrainState, trained
from gpt_jax.core.runtime import hosts
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import FailedError

# Retention: which checkpoints are kept, as preservation policies of Orbax.


class Best(NamedTuple):
  """Keeps the `n` checkpoints with the lowest loss."""

  n: int
  losses: dict[int, float]  # by step; a checkpoint without one is not kept

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for each checkpoint to keep; on a tie, the older."""
    del context
    judged = [c.step for c in checkpoints if c.step in self.losses]
    steps = [step for step in judged if math.isfinite(self.losses[step])]
    best = sorted(steps, key=lambda step: (self.losses[step], step))[: self.n]
    return [c.step in best for c in checkpoints]


class Regular(NamedTuple):
  """Keeps an irregular checkpoint only while it is the newest.

  A preemption saves one, and so do `checkpoint.every_minutes` and the retry of a
  failed save. The others are the same as in an undisturbed run, so a rewind goes
  back to the same one too.
  """

  every: int  # regular checkpoints are at its multiples
  policy: Any  # decides which regular ones stay

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for each checkpoint to keep."""
    regular = [c for c in checkpoints if c.step % self.every == 0]
    preserved = self.policy.should_preserve(regular, context=context)
    stay = {c.step for c, keep in zip(regular, preserved, strict=True) if keep}
    stay.update(sorted(c.step for c in checkpoints)[-1:])
    return [c.step in stay for c in checkpoints]


def retention_policy(
  losses: dict[int, float], *, keep: int, every_steps: int, keep_every_steps: int, keep_best: int
) -> Regular:
  """The policy of the section `checkpoint` of a config.

  Args:
    losses: held-out, by step; may grow.
    keep: number of newest checkpoints to keep.
    every_steps: steps between saves.
    keep_every_steps: checkpoints at its multiples stay for good; 0: none.
    keep_best: number of checkpoints with the lowest loss to keep.
  """
  policies: list[Any] = [checkpoint_managers.LatestN(keep)]
  if keep_every_steps:
    policies.append(checkpoint_managers.EveryNSteps(keep_every_steps))
  if keep_best:
    policies.append(Best(keep_best, losses))
  return Regular(every_steps, checkpoint_managers.AnyPreservationPolicy(policies))


def rewind_target(steps: Sequence[int], *, spike: int, before: int, every: int) -> int:
  """The checkpoint to go back to; 0 is the start of the run.

  The newest at least `before` steps before the spike; if retention left none
  that old, the oldest before the spike. Only regular ones count, so that the
  result does not depend on preemptions.

  Args:
    spike: its step, counted from 1.
    before: steps to go back, at least.
    every: regular checkpoints are at its multiples.
  """
  sound = [step for step in steps if step < spike]
  regular = [step for step in sound if step % every == 0]
  if not regular and spike > every:
    regular = sound  # the run was saved with another every_steps
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


# Waits before a failed save is retried: during the run, and at its end.
RETRY_SECONDS = 60.0
FINAL_WAITS = (1.0, 5.0, 15.0, 60.0)


class DamageError(FailedError):
  """There are checkpoints, but none is sound."""


class Tier(Protocol):
  """More frequent checkpoints: `local.LocalCheckpoints` says what each does."""

  def save(self, state: TrainState, record: Any) -> None:
    """Starts to save a state, with what `record` of `Checkpointer` gives."""
    ...

  def restore(
    self, abstract: TrainState, *, at_least: int, at_most: int | None = None
  ) -> tuple[TrainState, Restored] | None:
    """The newest complete save of these steps; None: there is none."""
    ...

  def keep_only(self, step: int) -> None:
    """Removes all but the step that a run goes on from."""
    ...

  def forget_after(self, step: int) -> None:
    """Removes later steps."""
    ...

  def close(self, *, remove: bool = False) -> None:
    """Waits for the running save; with `remove`, none is needed any more."""
    ...


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
    unsaved: Collection[str] = (),
    local: Tier | None = None,
  ):
    """Opens the folder; creates it unless `read_only`.

    Args:
      keep: number of newest checkpoints to keep.
      every_steps: steps between saves; see `retention_policy`.
      keep_every_steps: checkpoints at its multiples stay for good; 0: none.
      keep_best: number with the lowest loss to keep; see `evaluated`.
      record: from a step to the JSON that its checkpoint holds besides arrays.
      read_only: nothing is written, moved or deleted.
      unsaved: names in `params['parts']` that the checkpoints leave out; what
        `restore` returns lacks them.
      local: more frequent checkpoints, of which the newest counts too.
    """
    self._unsaved, self._local = unsaved, local
    self._folder = restore.folder_of(workdir)
    self._losses: dict[int, float] = {}
    self._read_only = read_only
    self._record = record
    self.restored: Restored | None = None  # by the last `restore`
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
      step_name_format=StepNames(),
    )
    self._pending: int | None = None  # the step that is being saved
    self._raised: Exception | None = None  # at the start of its save
    self.error = ''  # why the last save failed
    self._retry_at = 0.0
    self._open()

  def _open(self):
    self._manager = ocp.CheckpointManager(
      restore.absolute(self._folder),
      options=self._options,
      handler_registry=registry(BoundedHandler()),
    )

  def steps(self) -> list[int]:
    """Steps of the checkpoints, oldest first; one being saved counts."""
    return sorted(self._manager.all_steps())

  # Saving ------------------------------------------------------------------

  def evaluated(self, step: int, loss: float) -> None:
    """Records the held-out loss of a step, which `keep_best` compares."""
    self._losses[step] = loss

  def save(self, state: TrainState) -> None:
    """Starts to save; waits only until the previous save is done.

    A failed save, as on a full disk, is logged, and the run continues: see
    `retry_due`.

    Args:
      state: copied before this returns, so that a step may donate it.
    """
    self._collect()
    state = self._saved(state)
    step = int(state.step)
    if step in self.steps():
      return
    record = self._record(step) if self._record else None
    checksums = signed(CheckpointContents(arrays(state, fingerprint(state)), record))
    self._pending = step
    restore.quiet_late_futures()
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state), checksums=ocp.args.JsonSave(checksums)
        ),
      )
    except Exception as e:
      # This host may be the only one that failed; `_collect` makes all agree.
      self._raised = e

  def save_local(self, state: TrainState) -> None:
    """Starts to save into the hosts' memory or disks: see `local`.

    Args:
      state: copied before this returns, so that a step may donate it.
    """
    assert self._local
    state = self._saved(state)
    record = self._record(int(state.step)) if self._record else None
    self._local.save(state, record)

  def saving(self) -> bool:
    """Whether a save is still running in the background."""
    return self._pending is not None and self._manager.is_saving_in_progress()

  def wait(self) -> None:
    """Waits for the running save, if any."""
    self._collect()

  def forget_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps, after a rewind."""
    self._collect()
    if self._local:
      self._local.forget_after(step)
    for later in self.steps():
      if later > step:
        self._manager.delete(later)
        self._losses.pop(later, None)

  def retry_due(self) -> bool:
    """True if a save failed and a retry is due; does not wait.

    On several hosts, whose clocks differ, the next regular save is the retry.
    """
    if jax.process_count() > 1:
      return False
    if self._pending is not None and not self._manager.is_saving_in_progress():
      self._collect()
    return bool(self.error) and time.monotonic() >= self._retry_at

  def finish(self, state: TrainState, *, within: float = math.inf) -> None:
    """Waits until `state` is saved, and closes; retries failed saves.

    Args:
      within: seconds that bound the waits between attempts. They set the number
        of attempts, without a clock, so that all hosts make as many.

    Raises:
      FailedError: the state could not be saved.
    """
    sums = zip(FINAL_WAITS, itertools.accumulate(FINAL_WAITS), strict=True)
    for wait in (*(wait for wait, sum in sums if sum < within), None):
      self.save(state)
      self._collect()
      if not self.error:
        self._manager.close()
        if self._local:
          self._local.close(remove=True)
        return
      if wait is not None:
        time.sleep(wait)
    have = self.steps()
    older = f'from step {have[-1]}' if have else 'from the start'
    raise FailedError(
      f'the checkpoint of step {int(state.step)} could not be written to '
      f'{self._folder} ({self.error}); mend that (make room), and the same '
      f'command goes on {older}'
    )

  def close(self) -> None:
    """Waits for the running save, if any, and closes."""
    self._collect()
    self._manager.close()
    if self._local:
      self._local.close()

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
    if self.error:
      log.info('step %d: checkpoints are written again', self._pending)
    self._pending, self.error = None, ''
    remove(self._folder)

  def _failed(self, error: Exception) -> None:
    self.error = restore.reason_of(error)
    self._retry_at = time.monotonic() + RETRY_SECONDS
    log.warning(
      'the checkpoint of step %d was not written (%s); the run goes on from '
      'memory, the older checkpoints stay; it will be tried again',
      self._pending,
      self.error,
    )
    self._pending = None
    # Already reported above; closing may raise it again.
    with contextlib.suppress(Exception):
      self._manager.close()
    # Reopen: the old manager has already forgotten the checkpoints that the
    # failed save would have replaced.
    self._open()
    remove(self._folder)

  # Restoring ---------------------------------------------------------------

  def restore(
    self, abstract: TrainState, *, at_most: int | None = None, moments: bool = True
  ) -> TrainState | None:
    """Restores the newest sound checkpoint onto the shardings of `abstract`.

    Newer, damaged ones are moved to `WORKDIR/checkpoints_damaged`. A complete
    local one of the same step or a newer one comes first.

    Args:
      abstract: `jax.ShapeDtypeStruct`s with shardings.
      at_most: the last acceptable step; None: any.
      moments: False leaves the optimizer's state out, to use the model alone.

    Returns:
      The state, or None if there is no checkpoint yet.

    Raises:
      UsageError: the arrays of a checkpoint differ from the config's state.
      DamageError: there are checkpoints, and every one is damaged. Nothing
        was moved or deleted.
    """
    self._collect()
    abstract = self._saved(abstract)
    for path in find(self._folder):
      log.warning('%s is half-written; it is not used', path)
    damaged, self.restored = {}, None
    steps = [s for s in self.steps() if at_most is None or s <= at_most]
    for step in reversed([-1, *steps]):
      state = self._restored_locally(abstract, step, at_most)
      if state is not None:
        self._set_aside(list(damaged))
        return state
      if step < 0:
        break
      folder = restore.absolute(self._folder) / str(step)
      state, reason, record = restore.read(folder, abstract, moments=moments)
      if state is None:
        damaged[step] = reason
        log.warning('checkpoint %s is damaged (%s)', self._folder / str(step), reason)
        continue
      if damaged:
        self._set_aside(list(damaged))
        log.warning('going on from the older checkpoint of step %d', step)
      self.restored = Restored(step, record)
      if self._local:
        self._local.keep_only(step)
      return state
    if damaged:
      step, reason = max(damaged.items())
      raise DamageError(
        f'{self._folder / str(step)}: damaged ({reason}), and no older '
        'checkpoint is sound; nothing was deleted: restore the folder from a '
        'copy, or start again with another --workdir'
      )
    return None

  def _restored_locally(
    self, abstract: TrainState, at_least: int, at_most: int | None
  ) -> TrainState | None:
    local = None
    if self._local:
      local = self._local.restore(abstract, at_least=at_least, at_most=at_most)
    if local is None:
      return None
    state, self.restored = local
    return state

  def _saved(self, state: TrainState) -> TrainState:
    """The part of a state that checkpoints hold."""
    return state._replace(params=trained(state.params, self._unsaved))

  def _set_aside(self, steps: list[int]) -> None:
    """Moves damaged checkpoints away, which frees their steps for new saves."""
    if self._read_only or not steps:
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
