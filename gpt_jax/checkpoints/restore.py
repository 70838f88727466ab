# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint, and believes nothing of it that it does not prove."""

import contextlib
import re
from typing import Any, NamedTuple

import orbax.checkpoint as ocp
from etils import epath

from gpt_jax.checkpoints import handlers
from gpt_jax.checkpoints.fingerprints import (
  Contents,
  arrays,
  difference,
  fingerprint,
  verified,
)
from gpt_jax.data import buckets, files
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
  home = buckets.home(workdir)
  files.check_path(home)
  return epath.Path(home) / 'checkpoints'


def absolute(path: epath.Path) -> epath.Path:
  """As Orbax wants a path; a URL is one, which etils does not know."""
  return path if handlers.is_url(path) else path.absolute()


def steps(folder: epath.Path) -> list[int]:
  """The steps of the checkpoints in `folder`, newest first, sound or not."""
  if not folder.is_dir():
    return []
  names = [path.name for path in folder.iterdir()]
  found = [int(name) for name in names if name.isdecimal()]
  return sorted((n for n in found if str(n) in names), reverse=True)


def newest(workdir: str) -> Restored | None:
  """The newest checkpoint whose record is sound; reads no arrays."""
  folder = folder_of(workdir)
  for step in steps(folder):
    with contextlib.suppress(Exception):  # damaged: `read` will say so
      return Restored(step, contents(folder / str(step)).record)
  return None


def contents(folder: epath.Path) -> Contents:
  """What the checkpoint in `folder` says of itself.

  Raises:
    Exception: it is half-written or damaged; whatever reading the file raises.
  """
  if not committed(folder):
    raise ValueError('half-written: it has no commit_success.txt')
  return verified((folder / 'checksums/metadata').read_text(encoding='utf-8'))


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
    saved, record = contents(folder)
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
        handlers.literal(folder / 'state'),
        args=ocp.args.StandardRestore(abstract),
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
