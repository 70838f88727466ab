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
from typing import Annotated, Any, Protocol, Required, TypedDict

from gpt_jax.core import ranges
from gpt_jax.core.files import buckets, schema
from gpt_jax.core.runtime.log import log, seconds_since_start
from gpt_jax.core.spec import UsageError

# The key of the held-out loss; other held-out sets have their own.
HELD_OUT = 'eval/validation/loss'
_LOSS = re.compile('eval/([^/]+)/loss')
# A norm: its kind, part of the model and layer; see `training.norm_lines`.
NORM = re.compile(
  r'(gradient_norm|parameter_norm|update_norm|activation_rms|largest_logit)'
  r'/([^/]+)(?:/layer_(\d+))?'
)
_REMEDY = (
  'restore the file from a copy, or delete that line: checkpoints hold all that a resume needs'
)
# Up to the end of the year 9999, which is the last that a date can have.
_Time = Annotated[float, ranges.number(0, 253_402_300_799)]
_Whole = Annotated[int, ranges.whole(0, ranges.INT64)]
_Count = Annotated[int, ranges.whole(1, ranges.INT64)]


class Line(TypedDict, total=False):
  """The kinds of the fields that commands compute with."""

  step: Required[_Whole]
  time: _Time
  event: str
  seconds: ranges.Seconds
  # Of training and evaluation.
  loss: float
  tokens: _Whole
  rows: _Whole
  row_tokens: _Count
  batch_rows: _Whole
  grad_norm: float
  learning_rate: float
  tokens_per_second: float
  step_seconds: ranges.Seconds
  data_wait_seconds: ranges.Seconds
  eval_seconds: ranges.Seconds
  # Of starts.
  lost_steps: _Whole
  lost_seconds: ranges.Seconds
  previous_time: _Time
  context_length: _Count
  rows_per_epoch: _Count
  parameters: _Whole
  device: str
  devices: _Count
  processes: _Count
  slices: _Count | None
  jax: str
  mesh: dict[str, int]
  micro_rows: _Whole | None
  command: str
  overrides: list[str]
  filled: list[str]


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
  except IsADirectoryError as e:
    raise UsageError(f'{path}: is a folder; {_REMEDY}') from e
  # A crash may truncate the last line. One with zero bytes is kept, to be
  # reported: file systems leave those where they lost data.
  whole = lines if b'\0' in lines[-1] else lines[:-1]
  return [_parsed(path, i, line) for i, line in enumerate(whole, start=1)]


def _parsed(path: str, number: int, text: bytes) -> dict[str, Any]:
  try:
    line = from_json(text.decode())
  except (ValueError, RecursionError) as e:
    raise damaged(path, number, 'is not JSON') from e
  said = schema.problem(line, Line)
  for name, value in line.items() if not said else ():
    said = said or schema.problem(value, _kind(name), name)
  if said:
    raise damaged(path, number, said)
  return line


def damaged(path: str, number: int, said: str) -> UsageError:
  """The error of a line, counted from 1; `said`: what is wrong with it."""
  return UsageError(f'{path}: line {number} is damaged ({said}); {_REMEDY}')


def _kind(name: str) -> Any:
  """The kind of a field whose name has a part that varies."""
  if name.startswith('router/'):
    return list[float] if name.endswith('/load') else float
  is_number = _LOSS.fullmatch(name) or NORM.fullmatch(name) or name.startswith('epochs')
  return float if is_number else Any


def held_out_losses(values: dict[str, Any]) -> dict[str, float]:
  """The losses of the held-out sets by name, `validation` first."""
  losses = {m[1]: x for name, x in values.items() if (m := _LOSS.fullmatch(name))}
  return dict(sorted(losses.items(), key=lambda item: item[0] != 'validation'))


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
    before = [m for m in lines if m['step'] <= step]
    dropped = [m for m in lines if m['step'] > step]
    started = {
      'step': step,
      'event': 'start',
      'time': _now(),
      'seconds': round(seconds_since_start(), 3),
      **_lost(before, dropped, step),
      **start,
    }
    path = os.path.join(workdir, 'metrics.jsonl')
    text = ''.join(to_json(m) + '\n' for m in [*before, started])
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


def _lost(before: list[dict], dropped: list[dict], step: int) -> dict[str, float]:
  """The fields of an event `start` about the lines that it drops.

  All time after the last line that is kept is lost, whatever it was spent on.
  `step` steps are done.
  """
  if not before and not dropped:
    return {}
  last = (before + dropped)[-1]
  since = before[-1]['time'] if before else dropped[0]['time'] - dropped[0].get('seconds', 0.0)
  return {
    'lost_steps': max((m['step'] for m in dropped), default=step) - step,
    'lost_seconds': max(0.0, last['time'] - since),
    'previous_time': last['time'],
  }
