# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training reports: the figures of a log line, the progress bar, trackers."""

import datetime
import importlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import rich.progress
from tensorboardX import SummaryWriter

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config, log_trackers
from gpt_jax.costs import flops
from gpt_jax.files import buckets
from gpt_jax.nn.build import ModelChoices
from gpt_jax.optim.schedules import Shape
from gpt_jax.runtime import peaks
from gpt_jax.runtime.log import console, log
from gpt_jax.spec import UsageError, install
from gpt_jax.training import diloco
from gpt_jax.training.compiled import Stages
from gpt_jax.training.metrics import Tracker
from gpt_jax.training.parts import Parts
from gpt_jax.training.past import FIGURES


class Meter:
  """Turns the outputs of steps into the metrics of a log line."""

  def __init__(self, parts: Parts, params: Any, train_steps: Stages):
    """Measures the device's peak FLOP/s if no table lists it.

    Args:
      params: real or abstract.
      train_steps: compiled; a rewind may add to them.
    """
    self._parts, self._train_steps = parts, train_steps
    whole = sharding.replicated(parts.mesh)
    self._pool = jax.jit(diloco.pooled, out_shardings=whole)
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
      'MFU = tokens/s * %.4g FLOPs a token / %.3g FLOP/s (%s); gpt-jax inspect '
      '--mfu says how they are counted',
      self._per_token(largest)['mfu'],
      *(self._peak, source),
    )
    self.taken = 0  # steps of this process
    self.resume([])

  def resume(self, unlogged: list[dict[str, Any]]) -> None:
    """Drops steps not read yet, and restores the output of `unlogged`."""
    self._outputs, self._fetched = [], [*unlogged]
    self.restart()

  def unlogged(self) -> list[dict[str, Any]]:
    """Router metrics of each step fetched since the last log line, as JSON.

    Saved with a checkpoint, so that after a resume the next line has the same
    means. Empty without experts.
    """
    found = [plain(output) for output in self._fetched]
    return found if any(found) else []

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
    sharding.wait_for_earlier(self._outputs)
    self._steps += 1
    self.taken += 1

  def fetch(self) -> list[dict[str, Any]]:
    """The outputs of the steps since the last call; waits for them."""
    outputs, self._outputs = self.pooled(self._outputs), []
    outputs = jax.device_get(outputs)
    self._fetched += outputs
    return outputs

  def pooled(self, outputs: list[Any]) -> list[dict[str, Any]]:
    """The outputs of steps; of replicas, their means."""
    return self._pool(outputs) if self._parts.outer else outputs

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
        if name not in FIGURES and not name.startswith('router/')
      },
      **of_routers(self._parts.config, outputs),
    }
    self.restart()
    return values

  def _per_token(self, shape: Shape) -> dict[str, float]:
    """FLOPs per token in a batch of this shape, counted in three ways."""
    model, causal = self._flops[shape.length]
    compiler = self._train_steps[shape].flops / shape.tokens
    return {'mfu': model, 'mfu_causal': causal, 'mfu_compiler': compiler}

  def _utilisation(
    self, by_shape: dict[Shape, int], seconds: float
  ) -> dict[str, float]:
    """Three kinds of MFU, from the number of tokens by batch shape."""
    found: dict[str, float] = {}
    for shape, tokens in by_shape.items():
      for name, per_token in self._per_token(shape).items():
        part = flops.mfu(tokens / seconds, per_token, self._peak)
        found[name] = found.get(name, 0.0) + part
    return found

  def _rows(self, step: int) -> dict[str, int]:
    """Row length and number of rows so far, if the length varies."""
    ramp = self._parts.ramp
    if len(self._flops) == 1:
      return {}
    return {
      'row_tokens': ramp.shape(step - 1).length,
      'rows': ramp.offset(step),
    }

  def _task(self, step: int) -> dict[str, str]:
    """The task whose loss this is, if there are several."""
    task = self._parts.ramp.shape(step - 1).task
    return {'task': task} if task else {}


def summary(values: dict[str, Any]) -> str:
  """A log line for people."""
  task = f' of {values["task"]}' if 'task' in values else ''
  return (
    f'loss {values["loss"]:.3f}{task} | {values["tokens_per_second"]:,.0f} '
    f'tokens/s | MFU {flops.both_mfu(values["mfu"], values["mfu_causal"])}'
  )


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


# Router metrics, for each layer with experts.
#
# Their names are `router/STACK/layer_N/NAME`; N counts all layers of the stack
# from 0. NAME is a field of `nn.moe.Stats` (`load_E` as the list `load`) or
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


def of_routers(
  config: Config, outputs: Sequence[dict[str, Any]]
) -> dict[str, float | list[float]]:
  """Router metrics: means over some steps; empty without experts.

  Args:
    config: resolved.
    outputs: of `step.train_step`, for each step since the last log line.
      Arrays `router/STACK/NAME` have a leading axis of layers with experts.
  """
  found = {}
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
        found[f'{place}/load'] = [float(f'{load:.4g}') for load in value]
        found[f'{place}/dead'] = int(np.sum(value == 0))
      else:
        found[f'{place}/{statistic}'] = float(value)
  return found


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
        f'{log_trackers.FIELD}: wandb(...) needs the package wandb; run '
        + install('wandb')
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
      opened.append(WandB(tracker, config, workdir))
    else:
      opened.append(TensorBoard(workdir, step))
  return opened


class TensorBoard:
  """Writes event files; opening one hides the events of later steps."""

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
    """False once its thread died, as on a full disk: its queue would block."""
    if self._board is None:
      return False
    if not self._board.file_writer.event_writer._worker.is_alive():
      log.warning('TensorBoard events cannot be written; metrics.jsonl has all')
      self._board = None
      return False
    return True


class WandB:
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
