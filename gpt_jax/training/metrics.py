# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's metrics: JSON lines, which trackers and the progress bar mirror."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gpt_jax.files import buckets
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.spec import UsageError
from gpt_jax.training import goodput

# The key of the held-out loss; other held-out sets have their own.
HELD_OUT = 'eval/validation/loss'
_LOSS = re.compile('eval/([^/]+)/loss')


def read(workdir: str) -> list[dict[str, Any]]:
  """All whole lines of `WORKDIR/metrics.jsonl`, in order.

  Args:
    workdir: the run's folder.

  Returns:
    Each line's fields by name, with `step`; [] if the file is missing.

  Raises:
    UsageError: a line is damaged.
  """
  path = os.path.join(workdir, 'metrics.jsonl')
  try:
    with open(path, 'rb') as f:
      lines = f.read().split(b'\n')
  except FileNotFoundError:
    return []
  # A crash may truncate the last line. One with zero bytes is kept, to be
  # reported: file systems leave those where they lost data.
  whole = lines if b'\0' in lines[-1] else lines[:-1]
  return [_parsed(path, i, line) for i, line in enumerate(whole, start=1)]


def _parsed(path: str, number: int, text: bytes) -> dict[str, Any]:
  try:
    line = from_json(text.decode())
    if not isinstance(line['step'], int):
      raise TypeError('step')
  except (ValueError, KeyError, TypeError) as e:
    raise UsageError(
      f'{path}: line {number} is damaged; restore the file from a copy, or '
      'delete that line: checkpoints hold all that a resume needs'
    ) from e
  return line


def held_out_losses(values: dict[str, Any]) -> dict[str, float]:
  """The losses of the held-out sets by name, `validation` first."""
  found = {
    m[1]: x for name, x in values.items() if (m := _LOSS.fullmatch(name))
  }
  return dict(sorted(found.items(), key=lambda item: item[0] != 'validation'))


# JSON has no number for these: they are written as strings.
_NOT_FINITE = ('nan', 'inf', '-inf')


def to_json(values: Any, **options: Any) -> str:
  """Standard JSON: NaN and infinite numbers become strings.

  Args:
    values: dictionaries, lists, strings and numbers.
    **options: of `json.dumps`.
  """
  return json.dumps(as_texts(values), allow_nan=False, **options)


def from_json(text: str) -> Any:
  """Parses the output of `to_json`, NaN and infinities included."""
  values = json.loads(text)
  if any(f'"{word}"' in text for word in _NOT_FINITE):
    return as_numbers(values)
  return values


def as_texts(values: Any) -> Any:
  """The values, with NaN and infinities as strings."""
  if isinstance(values, dict):
    return {name: as_texts(x) for name, x in values.items()}
  if isinstance(values, list | tuple):
    return [as_texts(x) for x in values]
  if isinstance(values, float) and not math.isfinite(values):
    return str(float(values))
  return values


def as_numbers(values: Any) -> Any:
  """The inverse of `as_texts`."""
  if isinstance(values, dict):
    return {name: as_numbers(x) for name, x in values.items()}
  if isinstance(values, list):
    return [as_numbers(x) for x in values]
  return float(values) if values in _NOT_FINITE else values


def _now() -> float:
  """Unix time, to the millisecond."""
  return round(time.time(), 3)


class Tracker(Protocol):
  """A copy of the metrics elsewhere, such as TensorBoard: see `report`."""

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    ...

  def close(self) -> None:
    """Waits until all is written."""
    ...


class Metrics:
  """Writes `WORKDIR/metrics.jsonl`, and passes numbers on to trackers.

  Opened at a step, it drops the lines after it: a resumed run logs those
  steps again. The event `start` keeps the time that they took. Only the first
  process of a run writes.
  """

  def __init__(
    self,
    workdir: str,
    *,
    step: int,
    active: bool,
    keep: Callable[[dict[str, Any]], None] | None = None,
    trackers: Sequence[Tracker] = (),
    **start: Any,
  ):
    """Opens the file.

    Args:
      active: whether this process writes.
      keep: called with each new line, on every process.
      trackers: get the numbers too; closed with the file.
      **start: further fields of the event `start`.
    """
    self._active, self._keep, self._trackers = active, keep, trackers
    self._workdir = workdir
    if not active:
      return
    lines = read(workdir)
    kept = [m for m in lines if m['step'] <= step]
    dropped = [m for m in lines if m['step'] > step]
    started = {
      'step': step,
      'event': 'start',
      'time': _now(),
      'seconds': round(seconds_since_start(), 3),
      **goodput.lost(kept, dropped, step),
      **start,
    }
    path = os.path.join(workdir, 'metrics.jsonl')
    text = ''.join(to_json(m) + '\n' for m in [*kept, started])
    buckets.write_atomically(path, text)
    self._file = open(path, 'ab', buffering=0)  # noqa: SIM115
    self._unwritten = b''
    self._full = False

  def write(self, step: int, **values: Any) -> None:
    """Appends one line, with its time.

    Trackers get the finite numbers too.
    """
    line = {'step': step, 'time': _now(), **values}
    if self._keep:
      self._keep(line)
    if not self._active:
      return
    self._unwritten += to_json(line).encode() + b'\n'
    try:
      self._flush()
      self._full = False
    except OSError as e:
      # On a full disk the lines wait in memory for room.
      if not self._full:
        log.warning('metrics.jsonl cannot be written (%s); lines wait', e)
      self._full = True
    numbers = {
      name: value
      for name, value in values.items()
      if isinstance(value, int | float) and math.isfinite(value)
    }
    for tracker in self._trackers:
      tracker.write(step, numbers)

  def sync(self) -> None:
    """Flushes the lines to the disk, as far as it has room.

    Call it before saving a checkpoint of their steps: then a power cut never
    leaves a checkpoint without the lines of its steps.
    """
    if self._active:
      with contextlib.suppress(OSError):
        os.fsync(self._file.fileno())
      buckets.uploaded(self._workdir)

  def _flush(self) -> None:
    while self._unwritten:
      self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

  def close(self) -> None:
    """Closes the file and the trackers.

    Raises:
      OSError: lines that waited for room cannot be written.
    """
    if self._active:
      self._flush()
      self._file.close()
      for tracker in self._trackers:
        tracker.close()
