# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

import contextlib
import math
import os
import time
from typing import Any, NamedTuple, NoReturn

import jax

from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import preemption, watchdog
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.training import metrics as metrics_lib
from gpt_jax.training.compiled import Stages, compile_stages
from gpt_jax.training.metrics import Metrics
from gpt_jax.training.past import Guard, Spike, check_state
from gpt_jax.training.report import Meter, Progress, dead_experts, summary
from gpt_jax.training.run import Past, Run, gave_up

# Cadence: after which steps the loop logs, saves, evaluates and stops.


class Due(NamedTuple):
  """The duties that are due after a step."""

  log: bool
  save: bool
  evaluate: bool
  stop: bool  # SIGTERM was received


class Cadence(NamedTuple):
  """Intervals in steps; 0: after the last step only."""

  last: int
  log_every: int
  save_every: int
  eval_every: int
  # An evaluation may be the last, and the last step is logged.
  log_evaluations: bool = False

  def due(self, step: int, *, stop: bool = False) -> Due:
    """What is due after `step`, counted from 1.

    Args:
      stop: whether the process was told to stop. That changes nothing else:
        whatever is due is done or, of the evaluation, left for the next start.
    """
    evaluate = should(step, self.eval_every, self.last)
    log = should(step, self.log_every, self.last)
    return Due(
      log=log or (evaluate and self.log_evaluations),
      save=should(step, self.save_every, self.last),
      evaluate=evaluate,
      stop=stop,
    )


def of(config: Config, *, patience: int) -> Cadence:
  """The cadence of a config; `patience` as of the training run."""
  return Cadence(
    last=config.schedule.num_steps,
    log_every=config.log.every_steps,
    save_every=config.checkpoint.every_steps,
    eval_every=config.eval.every_steps,
    log_evaluations=patience > 0,
  )


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)


# Saves checkpoints from the training loop, and times them.


class Saver:
  """Saves in the background, and warns of saves too slow for a preemption."""

  def __init__(self, checkpointer: Checkpointer, *, grace_seconds: float):
    """Saves to `checkpointer`; `grace_seconds` is what SIGTERM leaves."""
    self._checkpointer = checkpointer
    self._grace = grace_seconds
    self._started = None

  def save(self, state: TrainState) -> float:
    """Starts to save; waits only until the previous save is done.

    Returns:
      The seconds that this took.
    """
    with watchdog.during('save'):
      self._started = time.monotonic()
      self._checkpointer.save(state)
      return time.monotonic() - self._started

  def retry_due(self) -> bool:
    """Whether a save failed, and it is time to try again."""
    return self._checkpointer.retry_due()

  def poll(self) -> None:
    """Checks whether the save is done; call it after each step."""
    if self._started is not None and not self._checkpointer.saving():
      seconds = time.monotonic() - self._started
      self._started = None
      if seconds > self._grace:
        log.warning(
          'a save took %.1f s, longer than checkpoint.grace_seconds=%g: a '
          'preemption would end the process before it is done',
          *(seconds, self._grace),
        )

  def finish(self, state: TrainState, *, preempted: bool = False) -> float:
    """Waits until `state` is saved, and closes; returns the seconds it took.

    Args:
      preempted: gives up within the grace, to end with the reason said.

    Raises:
      RuntimeError: it cannot be saved.
    """
    with watchdog.during('save'):
      started = time.monotonic()
      # Half of it for the waits: the tries take time too.
      within = self._grace / 2 if preempted else math.inf
      self._checkpointer.finish(state, within=within)
      self.poll()
      return time.monotonic() - started


# Duties of the training loop: log, evaluate, save, stop.


class Duties:
  """Made once, before the first step; `begin` starts them, and after a rewind.

  When each is due, `cadence` says; the loop calls them in their order.
  """

  def __init__(self, training: Run, state: TrainState, train_steps: Stages):
    """Compiles the evaluation, and measures the device where it must.

    Args:
      training: what is trained, and from which data.
      state: the loop starts from.
      train_steps: compiled, by the shape of the batch.
    """
    parts, config = training.parts, training.parts.config
    self._training = training
    self._cadence = of(config, patience=training.patience)
    self._evaluation = (
      training.evaluation(parts) if training.evaluation else None
    )
    self.meter = Meter(parts, state.params, train_steps)
    self._saver = Saver(
      training.checkpointer, grace_seconds=config.checkpoint.grace_seconds
    )

  def begin(self, metrics: Metrics, past: Past, done: int) -> None:
    """Goes on from the past at step `done`, and writes to `metrics`."""
    self._metrics, self._past = metrics, past
    self.meter.resume(past.unlogged)
    policy = self._training.parts.spike_policy
    self._guard = Guard(policy, past.losses, past.skipped)
    self._held_out = [*past.held_out]
    lines = metrics_lib.read(self._training.workdir)
    for skip in self._training.history.skips.skips:
      event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
      known = any(event.items() <= line.items() for line in lines)
      if skip.step <= done and not known:
        metrics.write(**event, rows_skipped=skip.rows)

  def catch_up(self, done: int, state: TrainState) -> None:
    """Runs the evaluation that an interruption left undone.

    Raises:
      Preempted: it was told to stop meanwhile.
    """
    owed = done and not self._past.evaluated(done)
    owed = owed and self._cadence.due(done).evaluate
    if owed and not self.evaluate(done, state):
      raise Preempted('preempted while evaluating; start again to continue')

  def note(self, step: int, out: dict[str, Any]) -> Due:
    """Keeps the outputs of a step; returns the duties after it."""
    self.meter.add(out)
    if self.meter.taken == 1:
      jax.block_until_ready(out)
      seconds = seconds_since_start()
      log.info('first step done %.1f s after the start', seconds)
      self._metrics.write(step, event='first_step', seconds=seconds)
    watchdog.enter('step')
    self._saver.poll()
    due = self._cadence.due(step, stop=preemption.reached())
    return due._replace(save=due.save or self._saver.retry_due())

  def check(self, step: int) -> None:
    """Checks the outputs of all steps since the last call.

    Raises:
      Spike: the run cannot go on as it is.
    """
    for skipped, out in self._guard.check(step, self.meter.fetch()):
      file = self._training.write_spike(skipped, out)
      file = os.path.relpath(file, self._training.workdir)
      self._metrics.write(skipped, event='skipped', spike=file)

  def log(self, step: int, progress: Progress) -> None:
    """Writes and shows the figures of the steps since the last call."""
    values = self.meter.read(step)
    epochs = self._training.data.epochs(self._training.unskipped_rows(step))
    self._metrics.write(step, **values, **epochs)
    self._guard.logged(values['loss'])
    progress.show(step, summary(values))
    if dead := dead_experts(values):
      log.warning('step %d: %s', step, dead)

  def evaluate(self, step: int, state: TrainState) -> bool:
    """Evaluates the state; False if SIGTERM came meanwhile."""
    if not self._evaluation:
      return True
    started = time.perf_counter()
    with watchdog.during('evaluation'):
      values = self._evaluation(state.eval_params, stop=preemption.reached)
    if values is None:
      return False
    seconds = time.perf_counter() - started
    self._metrics.write(step, **values, eval_seconds=seconds)
    judged = self._training.judged(values)
    assert judged is not None
    self._held_out.append((step, judged))
    self._training.checkpointer.evaluated(step, judged)
    log.info('step %d: %s', step, self._evaluation.summary(values))
    self.meter.restart()
    return True

  @property
  def gave_up(self) -> bool:
    """Whether the run ends early: see `Run.patience`."""
    return gave_up(self._held_out, self._training.patience)

  def save(self, step: int, state: TrainState, out: dict[str, Any]) -> None:
    """Starts to save a state whose last step gave `out`.

    Raises:
      Spike: it is not finite.
    """
    check_state(step, state, out)
    if unlogged := self.meter.unlogged():
      self._metrics.write(step, event='unlogged', routers=unlogged)
    self._metrics.sync()
    seconds = self._saver.save(state)
    self._metrics.write(step, event='saved', seconds=seconds)
    self.meter.restart()

  def stop(self, step: int, state: TrainState) -> NoReturn:
    """Waits until the state is saved, and ends the run for now.

    Raises:
      Preempted: always.
    """
    seconds = self._saver.finish(state, preempted=True)
    self._metrics.write(step, event='saved', seconds=seconds)
    raise Preempted(
      f'preempted; saved step {step} of {self._cadence.last} in {seconds:.1f} '
      's; start again to continue'
    )

  def finish(self, state: TrainState) -> None:
    """Waits until the last state is saved."""
    step = int(state.step)
    if self.gave_up:
      log.info(
        'step %d: ending early, %d evaluations were not better than one before',
        *(step, self._training.patience),
      )
    seconds = self._saver.finish(state)
    self._metrics.write(step, event='saved', seconds=seconds)


def fit(training: Run, state: TrainState) -> TrainState:
  """Takes the run from `state` to its end, and saves.

  Raises:
    Preempted: it was told to stop, and has saved.
    Spike: the run met one, and `optim.on_spike` is to stop there.
  """
  config, done = training.parts.config, int(state.step)
  past = training.past(done)
  owed = training.evaluation and not past.evaluated(done)
  over = gave_up(past.held_out, training.patience)
  if (done >= config.schedule.num_steps or over) and not owed:
    training.checkpointer.close()
    return state
  if state.ema is not None:
    log.info(
      'evaluating and sampling the average of the weights, optim.ema=%s',
      config.optim.ema,
    )
  for step, loss in past.held_out:
    training.checkpointer.evaluated(step, loss)
  metrics = training.open_metrics(done)
  train_steps: Stages = {}
  with watchdog.during('compile'):
    compile_stages(training.parts, done, train_steps, metrics)
    duties = Duties(training, state, train_steps)
  while True:
    with contextlib.closing(metrics):
      try:
        duties.begin(metrics, past, int(state.step))
        return loop(training, train_steps, duties, state)
      except Spike as e:
        spike = e
        metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = training.rewind(spike)
    past = training.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = training.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with watchdog.during('compile'):
      compile_stages(training.parts, int(state.step), train_steps, metrics)


def loop(
  training: Run,
  train_steps: Stages,
  duties: Duties,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  parts, done = training.parts, int(state.step)
  last = parts.config.schedule.num_steps
  # The first step may still compile, and there is nothing new to save.
  watchdog.enter('compile')
  with (
    contextlib.closing(
      training.data.batches(parts, done, training.rows())
    ) as batches,
    Progress(total=last, done=done, active=training.active) as progress,
  ):
    duties.catch_up(done, state)
    for step, batch in enumerate(duties.meter.waiting(batches), start=done + 1):
      shape = parts.ramp.shape(step - 1)
      train_step = train_steps[shape].call
      state, out = train_step(state, parts.put(batch, shape.rows))
      due = duties.note(step, out)
      if any(due):
        duties.check(step)
      if due.log:
        duties.log(step, progress)
      progress.advance(step)
      stop = due.stop or (due.evaluate and not duties.evaluate(step, state))
      if due.save or stop or duties.gave_up:
        duties.save(step, state, out)
      if stop:
        duties.stop(step, state)
      if duties.gave_up:
        break
    duties.finish(state)
  return state
