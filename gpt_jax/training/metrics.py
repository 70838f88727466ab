# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics: JSON lines are the truth, trackers and the progress bar views."""

import contextlib
import datetime
import importlib
import json
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import rich.progress
from tensorboardX import SummaryWriter

from gpt_jax import config as config_lib
from gpt_jax.config import Config, log_trackers
from gpt_jax.files import buckets
from gpt_jax.nn.build import period
from gpt_jax.runtime.log import console, log, seconds_since_start
from gpt_jax.spec import UsageError, install
from gpt_jax.training import goodput

# The key of the held-out loss; other held-out sets have their own.
HELD_OUT = 'eval/validation/loss'
_LOSS = re.compile('eval/([^/]+)/loss')


def read(workdir: str) -> list[dict[str, Any]]:
  """All whole lines of `WORKDIR/metrics.jsonl`, in order."""
  path = os.path.join(workdir, 'metrics.jsonl')
  try:
    with open(path, 'rb') as f:
      lines = f.read().split(b'\n')
  except FileNotFoundError:
    return []
  # What follows the last newline was cut off by a crash. Zeros were not: a
  # file system that lost data leaves them.
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
      'delete that line: checkpoints hold what training needs of it'
    ) from e
  return line


def held_out_losses(values: dict[str, Any]) -> dict[str, float]:
  """The losses of the held-out sets by name, that of the split first."""
  found = {
    m[1]: x for name, x in values.items() if (m := _LOSS.fullmatch(name))
  }
  return dict(sorted(found.items(), key=lambda item: item[0] != 'validation'))


# JSON has no number for these: they are written as texts.
_NOT_FINITE = ('nan', 'inf', '-inf')


def to_json(values: Any, **options: Any) -> str:
  """JSON as the standard has it: NaN and infinite numbers become texts.

  Args:
    values: dictionaries, lists, texts and numbers.
    **options: of `json.dumps`.
  """
  return json.dumps(as_texts(values), allow_nan=False, **options)


def from_json(text: str) -> Any:
  """Reads what `to_json` wrote: those texts are numbers again."""
  values = json.loads(text)
  if any(f'"{word}"' in text for word in _NOT_FINITE):
    return as_numbers(values)
  return values


def as_texts(values: Any) -> Any:
  """The values, with texts for numbers that JSON does not have."""
  if isinstance(values, dict):
    return {name: as_texts(x) for name, x in values.items()}
  if isinstance(values, list | tuple):
    return [as_texts(x) for x in values]
  if isinstance(values, float) and not math.isfinite(values):
    return str(float(values))
  return values


def as_numbers(values: Any) -> Any:
  """The values, with numbers for what `as_texts` wrote."""
  if isinstance(values, dict):
    return {name: as_numbers(x) for name, x in values.items()}
  if isinstance(values, list):
    return [as_numbers(x) for x in values]
  return float(values) if values in _NOT_FINITE else values


def _now() -> float:
  """Unix time, to the millisecond."""
  return round(time.time(), 3)


class Tracker(Protocol):
  """What shows the metrics of a run; see `trackers`."""

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    ...

  def close(self) -> None:
    """Waits until all is written."""
    ...


class Metrics:
  """Writes `WORKDIR/metrics.jsonl`, and passes numbers on to trackers.

  Opened at a step, it drops the lines after it: a resumed run logs those
  steps again. What their time was is kept in the event `start`. Only the first
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
      **start: goes into the event.
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

    Trackers get the numbers too, as far as they are finite.
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
      # A full disk: the lines wait in memory for room.
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
    """Waits until the lines are on the disk, as far as it has room.

    To be called before a checkpoint of their steps is saved, which is on the
    disk when it counts: a power cut leaves no steps without their lines.
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


class Progress:
  """A live bar on a terminal; elsewhere a line every ten seconds."""

  def __init__(self, *, total: int, done: int, active: bool):
    """Starts at `done` of `total` steps."""
    self._total, self._done = total, done
    self._start = self._last = time.monotonic()
    self._bar = rich.progress.Progress(
      rich.progress.TextColumn('step'),
      rich.progress.MofNCompleteColumn(),
      rich.progress.BarColumn(),
      rich.progress.TextColumn('{task.fields[text]}'),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn('left'),
      rich.progress.TimeRemainingColumn(),
      console=console,
      disable=not (active and console.is_terminal),
    )
    self._lines = active and not console.is_terminal
    self._task = self._bar.add_task('', total=total, completed=done, text='')

  def __enter__(self):
    """Shows the bar."""
    self._bar.start()
    return self

  def __exit__(self, *_):
    """Leaves the bar as it is."""
    self._bar.stop()

  def advance(self, step: int) -> None:
    """Moves the bar to `step`."""
    self._bar.update(self._task, completed=step)

  def show(self, step: int, text: str) -> None:
    """Shows the newest figures."""
    self._bar.update(self._task, completed=step, text=text)
    now = time.monotonic()
    if self._lines and now - self._last > 10:
      self._last = now
      per_step = (now - self._start) / (step - self._done)
      left = datetime.timedelta(seconds=round(per_step * (self._total - step)))
      log.info('step %d/%d %s | %s left', step, self._total, text, left)


# What the routers of a run did: metrics of each layer with experts.
#
# The names are `router/STACK/layer_N/NAME`; N counts all layers of the stack
# from 0. NAME is one of `nn.moe.Stats`, with `load_E` as the list `load`, or
# `dead`: how many experts got no token.


# Of the experts that a warning names; it counts the others.
NAMED = 8


def layers(config: Config, stack: str) -> list[int]:
  """Which layers of `decoder` or `encoder` have experts."""
  model = config.model
  if stack == 'decoder':
    pattern, count = period(model.attention, model.ffn), model.num_layers
  else:
    pattern = period('bidirectional', model.encoder_ffn or model.ffn)
    count = model.num_encoder_layers
  return [
    layer
    for layer in range(count)
    if pattern[layer % len(pattern)].ffn.router is not None
  ]


def metrics(
  config: Config, outputs: Sequence[dict[str, Any]]
) -> dict[str, float | list[float]]:
  """The means over some steps; none where no layer has experts.

  Args:
    config: resolved.
    outputs: of `step.train_step`, one for each step since the last log line.
      Arrays `router/STACK/NAME` have a leading axis of layers with experts.
  """
  found = {}
  for name in outputs[0] if outputs else ():
    if not name.startswith('router/'):
      continue
    _, stack, statistic = name.split('/')
    # In float64, so that the smallest load of one step is not lost.
    steps = np.array([out[name] for out in outputs], np.float64)
    pooled = np.asarray(np.mean(steps, axis=0))
    for layer, value in zip(layers(config, stack), pooled, strict=True):
      place = f'router/{stack}/layer_{layer}'
      if statistic == 'load_E':
        found[f'{place}/load'] = [_short(load) for load in value]
        found[f'{place}/dead'] = int(np.sum(value == 0))
      else:
        found[f'{place}/{statistic}'] = float(value)
  return found


def plain(output: dict[str, Any]) -> dict[str, Any]:
  """What routers did in one step, as JSON: `metrics` takes it as well."""
  return {
    name: np.asarray(value, np.float64).tolist()
    for name, value in output.items()
    if name.startswith('router/')
  }


def dead_experts(values: dict[str, Any]) -> str:
  """A warning that names the experts without a token; '' if there are none.

  Args:
    values: of one log line, with those of `metrics`.
  """
  dead = [
    (*name.split('/')[1:3], expert)
    for name, loads in values.items()
    if is_load(name)
    for expert, load in enumerate(loads)
    if load == 0
  ]
  if not dead:
    return ''
  named = [
    f'{stack} {layer.replace("_", " ")} expert {expert}'
    for stack, layer, expert in dead[:NAMED]
  ]
  if len(dead) > NAMED:
    named.append(f'and {len(dead) - NAMED} more')
  return 'dead experts, which no token chose since the last log line: ' + (
    ', '.join(named)
  )


def is_load(name: str) -> bool:
  """Whether a metric is the load of a layer's experts."""
  return name.startswith('router/') and name.endswith('/load')


def _short(load: float) -> float:
  """Four digits: there may be thousands of them in a line."""
  return float(f'{load:.4g}')


# Trackers at work: TensorBoard and Weights & Biases get a run's metrics.
#
# Only process 0 opens them. None of them is needed by the run: one that fails
# once training has begun is dropped with a warning.


def check(config: Config) -> None:
  """Looks whether the trackers can be opened; quick, and opens none."""
  if jax.process_index() != 0:
    return
  for tracker in log_trackers.load(config.log.trackers):
    if isinstance(tracker, log_trackers.WandB):
      _check_wandb(tracker)


def open_all(config: Config, workdir: str, step: int) -> list[Tracker]:
  """Opens the trackers of `log.trackers`; `step` steps are done."""
  opened: list[Tracker] = []
  for tracker in log_trackers.load(config.log.trackers):
    if isinstance(tracker, log_trackers.WandB):
      opened.append(WandB(tracker, config, workdir))
    else:
      opened.append(TensorBoard(workdir, step))
  return opened


class TensorBoard:
  """Writes event files; those of later steps are hidden on opening."""

  def __init__(self, workdir: str, step: int):
    """Opens a file; `step` steps are done."""
    self._board: Any = SummaryWriter(
      os.path.join(workdir, 'tensorboard'), purge_step=step + 1
    )

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    for name, value in values.items():
      if self._works():
        self._board.add_scalar(name, value, step)

  def close(self) -> None:
    """Waits until all is written."""
    if self._works():
      self._board.close()

  def _works(self) -> bool:
    """False once its thread died of a full disk: its queue would block."""
    if self._board is None:
      return False
    if not self._board.file_writer.event_writer._worker.is_alive():
      log.warning('TensorBoard events cannot be written; metrics.jsonl has all')
      self._board = None
      return False
    return True


class WandB:
  """Logs to one run of Weights & Biases, whose id is kept in the workdir.

  wandb's own step only grows, and it drops what comes with a smaller one. A
  resumed or rewound run goes back, so our step is a metric, on whose axis the
  others are drawn.
  """

  def __init__(self, tracker: log_trackers.WandB, config: Config, workdir: str):
    """Starts the run, or goes on with it."""
    wandb = importlib.import_module('wandb')
    self._run: Any = None
    try:
      self._run = wandb.init(
        project=tracker.project,
        entity=tracker.entity or None,
        name=tracker.name or os.path.basename(os.path.abspath(workdir)),
        id=_run_id(workdir),
        resume='allow',
        mode=tracker.mode or None,
        dir=workdir,
        config=config_lib.unlocked(config).to_dict(),
        allow_val_change=True,
        # The log of the run stays ours, and the code where it is.
        settings=wandb.Settings(console='off', silent=True, save_code=False),
      )
      self._run.define_metric('step')
      self._run.define_metric('*', step_metric='step')
    except wandb.errors.Error as e:
      self._fail(e)
    else:
      log.info('wandb: run %s in %s', self._run.id, self._run.url or workdir)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the numbers of a step."""
    if self._run and values:
      try:
        self._run.log({'step': step, **values})
      # Its service may die in ways that it does not declare.
      except Exception as e:
        self._fail(e)

  def close(self) -> None:
    """Waits until all is written, or uploaded."""
    if self._run:
      try:
        self._run.finish()
      except Exception as e:
        self._fail(e)

  def _fail(self, error: Exception):
    log.warning('wandb cannot be written (%s); metrics.jsonl has all', error)
    self._run = None


def _check_wandb(tracker: log_trackers.WandB):
  try:
    wandb = importlib.import_module('wandb')
  except ImportError as e:
    raise UsageError(
      f'{log_trackers.FIELD}: wandb(...) needs the package wandb; run '
      + install('wandb')
    ) from e
  mode = tracker.mode or os.environ.get('WANDB_MODE') or 'online'
  if mode == 'online' and not wandb.login(prompt=False):
    raise UsageError(
      f'{log_trackers.FIELD}: wandb(...) has no API key; run wandb login, set '
      "WANDB_API_KEY, or give mode='offline'"
    )


def _run_id(workdir: str) -> str:
  """The id of the workdir's run, made once."""
  path = os.path.join(workdir, 'wandb', 'run_id')
  try:
    with open(path, encoding='utf-8') as f:
      return f.read().strip()
  except FileNotFoundError:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    made = uuid.uuid4().hex[:8]
    buckets.write_atomically(path, made + '\n')
    return made
