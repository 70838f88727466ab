# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saved in the background by Orbax, verified when restored.

Each `WORKDIR/checkpoints/STEP` holds

- `state/`: the arrays, in TensorStore, each file synced to disk;
- `checksums/`: name, shape, dtype and fingerprint of every array, computed on
  the devices at that step, and the held-out loss where that step was
  evaluated, under a checksum of their own;
- `commit_success.txt`, written last: the commit marker. On a local disk Orbax
  writes all into `STEP.orbax-checkpoint-tmp` and then renames that folder; on
  gs://, which cannot rename, a folder without the marker does not count.

What a checkpoint says of its arrays is compared with the config's state first:
a difference is the user's (`UsageError`). After that whatever cannot be read,
or gives another fingerprint, is damage; the next older checkpoint is used.
"""

import contextlib
import math
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from gpt_jax.checksums import Checksums, arrays, difference, fingerprint
from gpt_jax.command import log
from gpt_jax.spec import UsageError
from gpt_jax.state import TrainState

# Waits before a failed save is tried again: during the run, and at its end.
RETRY_SECONDS = 60.0
FINAL_WAITS = (1.0, 5.0, 15.0, 60.0)


class DamageError(RuntimeError):
  """There are checkpoints, and none is sound."""


class Best(NamedTuple):
  """A preservation policy of Orbax: the `n` with the least loss stay."""

  n: int
  losses: dict[int, float]  # by step; one without is none of the best

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for those that stay; of equal ones the older."""
    del context
    steps = [c.step for c in checkpoints if c.step in self.losses]
    best = sorted(steps, key=lambda step: (self.losses[step], step))[: self.n]
    return [c.step in best for c in checkpoints]


class Checkpointer:
  """The checkpoints of one workdir, in `WORKDIR/checkpoints/STEP`."""

  def __init__(
    self,
    workdir: str,
    *,
    keep: int = 1,
    keep_every_steps: int = 0,
    keep_best: int = 0,
    read_only: bool = False,
  ):
    """Opens the folder; creates it unless `read_only`.

    Args:
      workdir: of the run.
      keep: so many of the newest stay.
      keep_every_steps: those of its multiples stay for good; 0: none.
      keep_best: so many with the least held-out loss stay, of those whose
        step was evaluated.
      read_only: nothing is written, moved or deleted.
    """
    self._folder = epath.Path(workdir) / 'checkpoints'
    self._losses: dict[int, float] = {}
    policies: list[Any] = [checkpoint_managers.LatestN(keep)]
    if keep_every_steps:
      policies.append(checkpoint_managers.EveryNSteps(keep_every_steps))
    if keep_best:
      policies.append(Best(keep_best, self._losses))
    self._read_only = read_only
    self._options = ocp.CheckpointManagerOptions(
      preservation_policy=None
      if read_only
      else checkpoint_managers.AnyPreservationPolicy(policies),
      read_only=read_only,
      create=not read_only,
    )
    self._pending: int | None = None  # the step that is being saved
    self._error = ''  # why the last save failed
    self._retry_at = 0.0
    self._open()
    if keep_best:
      self._losses.update(self._read_losses())

  def _open(self):
    self._manager = ocp.CheckpointManager(
      self._folder.absolute(), options=self._options
    )

  def _read_losses(self) -> dict[int, float]:
    found = {}
    for step in self.steps():
      # Of a damaged one `restore` tells; here it has no loss.
      with contextlib.suppress(Exception):
        loss = self._read_checksums(step).loss
        if loss is not None and math.isfinite(loss):
          found[step] = loss
    return found

  def _read_checksums(self, step: int) -> Checksums:
    path = self._folder / str(step) / 'checksums/metadata'
    return Checksums.verified(path.read_text())

  def steps(self) -> list[int]:
    """Steps of the checkpoints, oldest first; one being saved counts."""
    return sorted(self._manager.all_steps())

  # Saving ------------------------------------------------------------------

  def save(self, state: TrainState, loss: float | None = None) -> None:
    """Starts to save; waits only until the previous save is done.

    A save that fails (a full disk) is said, and the run goes on: see
    `retry_due`.

    Args:
      state: copied before this returns, so that a step may take its memory.
      loss: held-out loss at this step, if it was evaluated.
    """
    self._collect()
    step = int(state.step)
    if step in self.steps():
      return
    if loss is not None and math.isfinite(loss):
      self._losses[step] = loss
    checksums = Checksums(arrays(state, fingerprint(state)), loss)
    self._pending = step
    try:
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          checksums=ocp.args.JsonSave(checksums.signed()),
        ),
      )
    except Exception as e:
      self._failed(e)

  def saving(self) -> bool:
    """Whether a save is still going on in the background."""
    return self._pending is not None and self._manager.is_saving_in_progress()

  def wait(self) -> None:
    """Waits for the save under way, if any."""
    self._collect()

  def forget_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps: that history was given up."""
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

  def finish(self, state: TrainState) -> None:
    """Waits until `state` is saved, and closes; tries again where it fails.

    Raises:
      RuntimeError: it could not be saved.
    """
    for wait in (*FINAL_WAITS, None):
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
    """Waits for the save under way, if any, and closes."""
    self._collect()
    self._manager.close()

  def _collect(self) -> None:
    """Waits for the save under way, and sees to how it ended."""
    if self._pending is None:
      return
    try:
      self._manager.wait_until_finished()
      error = None
    except Exception as e:
      error = e
    if not _on_all_hosts(error is None):
      self._failed(error or OSError('another host failed'))
      return
    if self._error:
      log.info('step %d: checkpoints are written again', self._pending)
    self._pending, self._error = None, ''
    self._remove_unfinished()

  def _failed(self, error: Exception) -> None:
    self._error = _reason(error)
    self._retry_at = time.monotonic() + RETRY_SECONDS
    log.warning(
      'the checkpoint of step %d was not written (%s); the run goes on from '
      'memory, the older checkpoints stay; it will be tried again',
      self._pending,
      self._error,
    )
    self._pending = None
    # It was said above; closing may say it again.
    with contextlib.suppress(Exception):
      self._manager.close()
    # Anew: the old one has crossed off what a newer one was to replace.
    self._open()
    self._remove_unfinished()

  def _unfinished(self) -> list[epath.Path]:
    """Folders of saves that did not come to their end."""
    in_place = str(self._folder).startswith('gs://')
    return [
      path
      for path in self._folder.iterdir()
      if 'orbax-checkpoint-tmp' in path.name
      or (in_place and path.name.isdigit() and not _committed(path))
    ]

  def _remove_unfinished(self) -> None:
    """Makes room; called when nothing is being saved."""
    if jax.process_index() == 0:
      for path in self._unfinished():
        # Other writes of a save that failed may still be under way; what they
        # leave goes after the next save.
        with contextlib.suppress(OSError):
          path.rmtree(missing_ok=True)

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
    if self._folder.exists():
      for path in self._unfinished():
        log.warning('%s is half-written; it is not used', path)
    damaged = {}
    for step in reversed(self.steps()):
      if at_most is not None and step > at_most:
        continue
      state, reason = self._restore(step, abstract)
      if state is None:
        damaged[step] = reason
        log.warning(
          'checkpoint %s is damaged (%s)', self._folder / str(step), reason
        )
        continue
      if damaged:
        self._set_aside(list(damaged))
        log.warning('going on from the older checkpoint of step %d', step)
      return state
    if damaged:
      step, reason = max(damaged.items())
      raise DamageError(
        f'{self._folder / str(step)}: damaged ({reason}), and no older '
        'checkpoint is sound; nothing was deleted: restore the folder from a '
        'copy, or start again with another --workdir'
      )
    return None

  def _restore(
    self, step: int, abstract: TrainState
  ) -> tuple[TrainState | None, str]:
    """The state, or None and what is wrong with the checkpoint."""
    folder = self._folder.absolute() / str(step)
    saved, state, reason = {}, None, ''
    try:
      if not _committed(folder):
        raise ValueError('half-written: it has no commit_success.txt')
      saved = self._read_checksums(step).arrays
    except Exception as e:
      reason = _reason(e)
    if not _on_all_hosts(not reason):
      return None, reason or 'another host cannot read it'
    if differs := difference(saved, arrays(abstract)):
      raise UsageError(
        f'{folder}: holds another state than the config describes: it '
        f'{differs}; give the config of that run, or another --workdir'
      )
    try:
      # The handler alone: the manager would wait for hosts that failed.
      state = TrainState(
        *ocp.StandardCheckpointHandler().restore(
          folder / 'state', args=ocp.args.StandardRestore(abstract)
        )
      )
    except Exception as e:
      # Whatever a damaged file makes the readers raise; it is reported, and
      # nothing is ever used that does not match its fingerprint.
      reason = _reason(e)
    if not _on_all_hosts(state is not None):
      return None, reason or 'another host cannot read it'
    assert state is not None
    wrong = [
      name
      for (name, array), found in zip(
        saved.items(), fingerprint(state), strict=True
      )
      if array.fingerprint != found
    ]
    if wrong:
      return None, f'fingerprint differs in {", ".join(wrong)}'
    if int(state.step) != step:
      return None, f'it is of step {int(state.step)}'
    return state, ''

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


def _committed(folder: epath.Path) -> bool:
  return (folder / 'commit_success.txt').exists()


def _on_all_hosts(good: bool) -> bool:
  """True if it is on every process: they must go the same way."""
  if jax.process_count() == 1:
    return good
  return bool(np.all(multihost_utils.process_allgather(np.array(good))))


def _reason(error: Exception) -> str:
  """One line of at most 200 characters."""
  # TensorStore says what the system said last, after long paths.
  if system := re.search(r": ([^:]+) \[os_error_code='", str(error)):
    return system[1]
  line = str(error).strip().partition('\n')[0][:200]
  return f'{type(error).__name__}: {line}'
