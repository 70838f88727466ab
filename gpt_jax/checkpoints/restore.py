# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint, and believes nothing of it that it does not prove."""

import re
from typing import Any, NamedTuple

import orbax.checkpoint as ocp
from etils import epath

from gpt_jax.checkpoints.fingerprints import (
  arrays,
  difference,
  fingerprint,
  verified,
)
from gpt_jax.data import buckets
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts
from gpt_jax.spec import UsageError


class Restored(NamedTuple):
  """Which checkpoint was read, and what was recorded with it."""

  step: int
  record: Any  # of the run's past, plain JSON; None: it has none


class Found(NamedTuple):
  """What `read` found."""

  state: TrainState | None = None
  reason: str = ''  # what is wrong, where there is no state
  record: Any = None


def folder_of(workdir: str) -> epath.Path:
  """The checkpoints of a run: on a disk, or in the bucket that it is in."""
  return epath.Path(buckets.home(workdir)) / 'checkpoints'


def absolute(path: epath.Path) -> epath.Path:
  """As Orbax wants a path; a URL is one, which etils does not know."""
  return path if '://' in str(path) else path.absolute()


def newest(workdir: str) -> Restored | None:
  """The newest checkpoint whose record is sound; reads no arrays."""
  folder = folder_of(workdir)
  if not folder.is_dir():
    return None
  steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
  for step in sorted(steps, reverse=True):
    if not committed(folder / str(step)):
      continue
    text = (folder / str(step) / 'checksums/metadata').read_text()
    try:
      return Restored(step, verified(text).record)
    except (ValueError, KeyError, TypeError):
      continue  # damaged: `read` will say so
  return None


def read(folder: epath.Path, abstract: TrainState) -> Found:
  """Reads the checkpoint in `folder`; all processes do it together.

  Args:
    folder: its name is the step.
    abstract: `jax.ShapeDtypeStruct`s with shardings.

  Returns:
    The state; or what is wrong with the checkpoint.

  Raises:
    UsageError: it holds other arrays than `abstract`.
  """
  saved, record, state, reason = {}, None, None, ''
  try:
    if not committed(folder):
      raise ValueError('half-written: it has no commit_success.txt')
    saved, record = verified((folder / 'checksums/metadata').read_text())
  except Exception as e:
    reason = reason_of(e)
  if not hosts.all_agree(not reason):
    return Found(reason=reason or 'another host cannot read it')
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
    reason = reason_of(e)
  if not hosts.all_agree(state is not None):
    return Found(reason=reason or 'another host cannot read it')
  assert state is not None
  wrong = [
    name
    for (name, array), found in zip(
      saved.items(), fingerprint(state), strict=True
    )
    if array.fingerprint != found
  ]
  if wrong:
    return Found(reason=f'fingerprint differs in {", ".join(wrong)}')
  if str(int(state.step)) != folder.name:
    return Found(reason=f'it is of step {int(state.step)}')
  return Found(state, record=record)


def committed(folder: epath.Path) -> bool:
  """Whether the save of `folder` came to its end."""
  return (folder / 'commit_success.txt').exists()


def reason_of(error: Exception) -> str:
  """One line of at most 200 characters."""
  # TensorStore says what the system said last, after long paths and before
  # figures of its own in brackets, of which the system's may come later.
  system = re.search(r": ([^:\[]+) \[\w+='", str(error))
  if system and '[os_error_code=' in str(error):
    return system[1]
  line = str(error).strip().partition('\n')[0][:200]
  return f'{type(error).__name__}: {line}'
