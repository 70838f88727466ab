# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training reports: the figures of a log line, the progress bar, trackers."""

import contextlib
import datetime
import functools
import importlib
import math
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import rich.progress
import rich.table
from tensorboardX import SummaryWriter

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config, log_trackers
from gpt_jax.core.costs import flops
from gpt_jax.core.files import buckets
from gpt_jax.core.files.progress import console, drawn
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.runtime import peaks
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError, install
from gpt_jax.core.training.compiled import Stages
from gpt_jax.core.training.metrics import Tracker
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.past import FIGURES

# A longer step hides all of Python's time alone: only one more is started while
# it runs. A run that is told to stop has to finish whatever it started.
SLOW_SECONDS = 0.1


class Meter:
  """Turns the outputs of steps into the metrics of a log line."""

  def __init__(self, parts: Parts, params: Any, train_steps: Stages):
    """Measures the device's peak FLOP/s if no table lists it.

    Args:
      params: real or abstract.
      train_steps: compiled; a rewind may add to them.
    """
    self._parts, self._train_steps = parts, train_steps
    self._pool = lambda outputs: outputs
    if parts.outer:
      whole = sharding.replicated(parts.mesh)
      self._pool = jax.jit(parts.outer.pooled, out_shardings=whole)
    # A fine-tuned example is counted as if it filled the context.
    tuned = parts.config.get('finetune')
    params = jax.eval_shape(parts.objective.full, params)
    # FLOPs of one token, by the length of its row.
    self._flops = {
      length: tuple(
        count(parts.config, params, None if tuned else length)
        for count in (flops.per_token, flops.per_token_causal)
      )
      for length in {stage.length for stage in parts.ramp.stages}
    }
    peak, source = peaks.of_device(parts.mesh.devices.flat[0])
    self._peak = peak * parts.mesh.size
    largest = max(train_steps, key=lambda shape: shape.tokens)
    log.info(
      'MFU: %.4g FLOPs a token, at most %.3g FLOP/s (%s)',
      self._per_token(largest)['mfu'],
      self._peak,
      source,
    )
    self.taken = 0  # steps of this process
    self._most = 1  # steps under way, until their speed is known
    self.resume([])

  def resume(self, unlogged: list[dict[str, Any]]) -> None:
    """Drops steps not read yet, and restores the output of `unlogged`."""
    self._outputs, self._fetched = [], [*unlogged]
    self._done = 0  # of `_outputs`, known without waiting
    self.restart()

  def unlogged(self) -> list[dict[str, Any]]:
    """Router metrics of each step fetched since the last log line, as JSON.

    Saved with a checkpoint, so that after a resume the next line has the same
    means. Empty without experts.
    """
    outputs = [plain(output) for output in self._fetched]
    return outputs if any(outputs) else []

  def restart(self) -> None:
    """Restarts the clock, to leave out time not spent training."""
    self._start, self._wait, self._steps = time.perf_counter(), 0.0, 0

  def waiting(self, batches: Iterable) -> Iterator:
    """Yields the batches, and measures the time spent waiting for them."""
    batches = iter(batches)
    while True:
      start = time.perf_counter()
      batch = next(batches, None)
      self._wait += time.perf_counter() - start
      if batch is None:
        return
      yield batch

  def add(self, output: dict[str, Any]) -> None:
    """Adds the outputs of a step; waits for those of some steps before."""
    self._outputs.append(output)
    sharding.wait_for_earlier(self._outputs, self._most)
    self._steps += 1
    self.taken += 1

  def under_way(self) -> int:
    """The number of steps that were started and are not done."""
    while self._done < len(self._outputs) and all(
      x.is_ready() for x in jax.tree.leaves(self._outputs[self._done])
    ):
      self._done += 1
    return len(self._outputs) - self._done

  def finishing(self) -> Iterator[int]:
    """Waits for one step after another; yields how many are under way."""
    for output in self._outputs[self._done :]:
      jax.block_until_ready(output)
      yield self.under_way()

  def fetch(self) -> list[dict[str, Any]]:
    """The outputs of the steps since the last call; waits for them."""
    outputs, self._outputs, self._done = self.pooled(self._outputs), [], 0
    outputs = jax.device_get(outputs)
    self._fetched += outputs
    return outputs

  def pooled(self, outputs: list[Any]) -> list[dict[str, Any]]:
    """The outputs of steps; of replicas, their means."""
    return self._pool(outputs)

  def read(self, step: int) -> dict[str, Any]:
    """The metrics of the last fetched step, and speeds since `restart`.

    Router metrics are means over all steps since the last call.
    """
    outputs, self._fetched = self._fetched, []
    ramp = self._parts.ramp
    seconds = time.perf_counter() - self._start
    by_shape = ramp.tokens_by_shape(step - self._steps, step)
    values = {
      'tokens': ramp.tokens(step),
      'loss': float(outputs[-1]['loss']),
      'grad_norm': float(outputs[-1]['grad_norm']),
      'learning_rate': float(self._parts.schedule(step - 1)),
      'batch_rows': ramp.rows(step - 1),
      **self._rows(step),
      **self._task(step),
      'tokens_per_second': sum(by_shape.values()) / seconds,
      'data_wait_seconds': self._wait / max(self._steps, 1),
      'step_seconds': seconds / max(self._steps, 1),
      **self._utilisation(by_shape, seconds),
      **{
        name: float(value)
        for name, value in outputs[-1].items()
        if name not in (*FIGURES, 'norms') and not name.startswith('router/')
      },
      **of_routers(self._parts.config, outputs),
    }
    slow = values['step_seconds'] > SLOW_SECONDS
    self._most = 1 if slow else sharding.MOST_STARTED
    self.restart()
    return values

  def _per_token(self, shape: Shape) -> dict[str, float]:
    """FLOPs per token in a batch of this shape, counted in three ways."""
    model, causal = self._flops[shape.length]
    compiler = self._train_steps[shape].flops / shape.tokens
    return {'mfu': model, 'mfu_causal': causal, 'mfu_compiler': compiler}

  def _utilisation(self, by_shape: dict[Shape, int], seconds: float) -> dict[str, float]:
    """Three kinds of MFU, from the number of tokens by batch shape."""
    shares: dict[str, float] = {}
    for shape, tokens in by_shape.items():
      for name, per_token in self._per_token(shape).items():
        part = flops.mfu(tokens / seconds, per_token, self._peak)
        shares[name] = shares.get(name, 0.0) + part
    return shares

  def _rows(self, step: int) -> dict[str, int]:
    """Row length and number of rows so far, if the length varies."""
    ramp = self._parts.ramp
    if len(self._flops) == 1:
      return {}
    return {'row_tokens': ramp.shape(step - 1).length, 'rows': ramp.offset(step)}

  def _task(self, step: int) -> dict[str, str]:
    """The task whose loss this is, if there are several."""
    task = self._parts.ramp.shape(step - 1).task
    return {'task': task} if task else {}


def summary(values: Mapping[str, Any], shown: Sequence[str] = ()) -> str:
  """A log line for people; metrics in `shown` come before the loss."""
  task = f' of {values["task"]}' if 'task' in values else ''
  judged = named(values, [name for name in shown if name != 'loss'])
  return (
    f'{judged}{" | " * bool(judged)}loss {figure(values["loss"])}{task} | '
    f'{values["tokens_per_second"]:,.0f} tokens/s | '
    f'MFU {flops.both_mfu(values["mfu"], values["mfu_causal"])}'
  )


# Metrics that people know by another name than TRL gives them.
_PLAIN_NAMES = {'objective/scores': 'reward', 'objective/kl': 'KL'}


def named(values: Mapping[str, Any], names: Sequence[str], decimals: int = 3) -> str:
  """Those of some metrics that are there: 'reward 0.125, KL 0.031'."""
  return ', '.join(
    f'{_PLAIN_NAMES.get(name, name)} {figure(values[name], decimals)}'
    for name in names
    if name in values
  )


def figure(value: float, decimals: int = 3) -> str:
  """A number for people; a small one keeps two digits: 0.125, 2.3e-09."""
  text = f'{value:.{decimals}f}'
  if abs(value) >= 10 ** (1 - decimals) or not math.isfinite(value):
    return text
  return f'{value:.2g}' if value else text.removeprefix('-')


# Cells that the figures leave to the bar, so that it can be seen to grow.
_LEAST_BAR = 6


class Progress:
  """A live bar on a terminal; elsewhere a line every ten seconds.

  The time that is left follows from all steps since the start. On a narrow
  terminal the last figures are left out: the step and the times are not.
  """

  def __init__(self, *, total: int, done: int, active: bool):
    """Starts at `done` of `total` steps."""
    self._total, self._done = total, done
    self._start = self._last = time.monotonic()
    whole = functools.partial(rich.table.Column, no_wrap=True)
    self._bar = rich.progress.Progress(
      rich.progress.TextColumn('step'),
      rich.progress.MofNCompleteColumn(table_column=whole()),
      rich.progress.BarColumn(),
      rich.progress.TextColumn('{task.fields[text]}'),
      rich.progress.TimeElapsedColumn(table_column=whole()),
      rich.progress.TextColumn('{task.fields[left]}'),
      console=console,
      disable=not (active and console.is_terminal),
    )
    self._lines = active and not console.is_terminal
    self._task = self._bar.add_task('', total=total, completed=done, text='', left='')

  def __enter__(self):
    """Shows the bar."""
    self._shown = contextlib.ExitStack()
    self._shown.enter_context(drawn(self._bar))
    return self

  def __exit__(self, *_):
    """Leaves the bar as it is."""
    self._shown.close()

  def advance(self, step: int) -> None:
    """Moves the bar to `step`."""
    self._bar.update(self._task, completed=step, left=self._left(step))

  def show(self, step: int, text: str) -> None:
    """Shows the newest figures."""
    self.advance(step)
    left = self._left(step)
    self._bar.update(self._task, text=self._fitting(text, left))
    now = time.monotonic()
    if self._lines and now - self._last > 10:
      self._last = now
      log.info('step %d/%d %s | %s', step, self._total, text, left)

  def _fitting(self, text: str, left: str) -> str:
    """As many of the figures as the line has room for, the first ones."""
    beside = f'step {self._total}/{self._total}   0:00:00 {left}'
    room = console.width - len(beside) - _LEAST_BAR
    figures = text.split(' | ')
    while len(figures) > 1 and len(' | '.join(figures)) > room:
      figures.pop()
    return ' | '.join(figures)

  def _left(self, step: int) -> str:
    """The time for the steps after `step`; '' before the first."""
    if step == self._done:
      return ''
    per_step = (time.monotonic() - self._start) / (step - self._done)
    left = datetime.timedelta(seconds=round(per_step * (self._total - step)))
    return f'{left} left'


# Router metrics, for each layer with experts.
#
# Their names are `router/STACK/layer_N/NAME`; N counts all layers of the stack
# from 0. NAME is a field of `RouterStats` (`load_E` as the list `load`) or
# `dead`, the number of experts that got no token.


# How many dead experts a warning names; the others are counted.
NAMED = 8


def layers(config: Config, stack: str) -> list[int]:
  """The layers of `decoder` or `encoder` with experts."""
  model, choices = config.model, ModelChoices.of(config.model)
  ffns, count = choices.ffn, model.num_layers
  if stack == 'encoder':
    ffns, count = choices.encoder_ffn, model.num_encoder_layers
  return [i for i in range(count) if ffns[i % len(ffns)].router is not None]


def of_routers(config: Config, outputs: Sequence[dict[str, Any]]) -> dict[str, float | list[float]]:
  """Router metrics: means over some steps; empty without experts.

  Args:
    config: resolved.
    outputs: of `step.train_step`, for each step since the last log line.
      Arrays `router/STACK/NAME` have a leading axis of layers with experts.
  """
  metrics = {}
  for name in outputs[0] if outputs else ():
    if not name.startswith('router/'):
      continue
    _, stack, statistic = name.split('/')
    # float64 keeps the smallest load of a single step.
    steps = np.array([out[name] for out in outputs], np.float64)
    pooled = np.asarray(np.mean(steps, axis=0))
    for layer, value in zip(layers(config, stack), pooled, strict=True):
      place = f'router/{stack}/layer_{layer}'
      if statistic == 'load_E':
        # Rounded to four digits: a line may hold thousands of loads.
        metrics[f'{place}/load'] = [float(f'{load:.4g}') for load in value]
        metrics[f'{place}/dead'] = int(np.sum(value == 0))
      else:
        metrics[f'{place}/{statistic}'] = float(value)
  return metrics


def plain(output: dict[str, Any]) -> dict[str, Any]:
  """The router metrics of one step as JSON, which `of_routers` accepts."""
  return {
    name: np.asarray(value, np.float64).tolist()
    for name, value in output.items()
    if name.startswith('router/')
  }


def dead_experts(values: dict[str, Any]) -> str:
  """A warning that names the experts without a token; '' if there are none.

  Args:
    values: one log line, including the output of `of_routers`.
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
    f'{stack} {layer.replace("_", " ")} expert {expert}' for stack, layer, expert in dead[:NAMED]
  ]
  if len(dead) > NAMED:
    named.append(f'and {len(dead) - NAMED} more')
  return 'dead experts, which no token chose since the last log line: ' + (', '.join(named))


def is_load(name: str) -> bool:
  """Whether a metric is the load of a layer's experts."""
  return name.startswith('router/') and name.endswith('/load')


# Trackers: copies of a run's metrics for TensorBoard and Weights & Biases.
#
# Only process 0 opens them. They are optional: a tracker that fails during
# training is dropped with a warning.


def check_trackers(config: Config) -> None:
  """Checks that the trackers can be opened, without opening any."""
  if jax.process_index() != 0:
    return
  for tracker in log_trackers.load(config.log.trackers):
    if not isinstance(tracker, log_trackers.WandB):
      continue
    try:
      wandb = importlib.import_module('wandb')
    except ImportError as e:
      raise UsageError(
        f'{log_trackers.FIELD}: wandb(...) needs the package wandb; run ' + install('wandb')
      ) from e
    mode = tracker.mode or os.environ.get('WANDB_MODE') or 'online'
    if mode == 'online' and not wandb.login(prompt=False):
      raise UsageError(
        f'{log_trackers.FIELD}: wandb(...) has no API key; run wandb login, '
        "set WANDB_API_KEY, or give mode='offline'"
      )


def open_trackers(config: Config, workdir: str, step: int) -> list[Tracker]:
  """Opens the trackers of `log.trackers`; `step` steps are done."""
  opened: list[Tracker] = []
  for tracker in log_trackers.load(config.log.trackers):
    if isinstance(tracker, log_trackers.WandB):
      opened.append(WandBTracker(tracker, config, workdir))
    else:
      opened.append(TensorBoardTracker(workdir, step))
  return opened


class TensorBoardTracker:
  """Writes event files; opening one hides the events of later steps."""

  def __init__(self, workdir: str, step: int):
    """Opens a file; `step` steps are done."""
    self._board: Any = SummaryWriter(os.path.join(workdir, 'tensorboard'), purge_step=step + 1)

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
    """False once its thread died, as on a full disk: its queue would block."""
    if self._board is None:
      return False
    if not self._board.file_writer.event_writer._worker.is_alive():
      log.warning('TensorBoard events cannot be written; metrics.jsonl has all')
      self._board = None
      return False
    return True


class WandBTracker:
  """Logs to one run of Weights & Biases, whose id is kept in the workdir.

  wandb's own step must grow: values with a smaller one are dropped. A resumed
  or rewound run goes back, so we log our step as a metric and plot the others
  against it.
  """

  def __init__(self, tracker: log_trackers.WandB, config: Config, workdir: str):
    """Starts the run, or resumes it."""
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
        # Upload neither the console output nor the code.
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
      # The wandb service may fail with undocumented exceptions.
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


def _run_id(workdir: str) -> str:
  """The id of the workdir's run, created on first use."""
  path = os.path.join(workdir, 'wandb', 'run_id')
  try:
    with open(path, encoding='utf-8') as f:
      return f.read().strip()
  except FileNotFoundError:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    run_id = uuid.uuid4().hex[:8]
    buckets.write_atomically(path, run_id + '\n')
    return run_id
