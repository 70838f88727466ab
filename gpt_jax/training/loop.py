# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import jax

from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.optim.rounding import NEVER
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import preemption, watchdog
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.spec import UsageError
from gpt_jax.training import fitting
from gpt_jax.training import metrics as metrics_lib
from gpt_jax.training.compiled import Stages, compile_stages
from gpt_jax.training.metrics import Metrics
from gpt_jax.training.past import Guard, Spike, check_state
from gpt_jax.training.replay import GoBack, Replay
from gpt_jax.training.report import Meter, Progress, dead_experts, summary
from gpt_jax.training.run import Past, Run, gave_up

# Cadence: the steps after which the loop logs, saves, evaluates and stops.


class Due(NamedTuple):
  """What the loop does after a step."""

  log: bool
  save: bool
  evaluate: bool
  stop: bool  # SIGTERM was received
  save_local: bool = False


class Cadence(NamedTuple):
  """Intervals in steps; 0: after the last step only."""

  last: int
  log_every: int
  save_every: int
  eval_every: int
  # For runs that any evaluation may end: their last step is logged.
  log_evaluations: bool = False
  local_every: int = 0  # saves to the hosts' memory or disks; 0: never

  def due(self, step: int, *, stop: bool = False) -> Due:
    """The actions due after `step`, counted from 1.

    Args:
      stop: whether SIGTERM was received. The other actions stay due; only an
        evaluation may be left for the next start.
    """
    evaluate = should(step, self.eval_every, self.last)
    log = should(step, self.log_every, self.last)
    return Due(
      log=log or (evaluate and self.log_evaluations),
      save=should(step, self.save_every, self.last),
      evaluate=evaluate,
      stop=stop,
      save_local=self.local_every > 0 and step % self.local_every == 0,
    )


def of(config: Config, *, patience: int) -> Cadence:
  """The cadence of a config; `patience` is the training run's."""
  return Cadence(
    last=config.schedule.num_steps,
    log_every=config.log.every_steps,
    save_every=config.checkpoint.every_steps,
    eval_every=config.eval.every_steps,
    log_evaluations=patience > 0,
    local_every=config.checkpoint.local_every_steps,
  )


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)


# Saving from the loop.


class Saver:
  """Saves in the background; warns of saves too slow for a preemption."""

  def __init__(self, checkpointer: Checkpointer, *, grace_seconds: float):
    """`grace_seconds` is the time between SIGTERM and SIGKILL."""
    self._checkpointer = checkpointer
    self._grace = grace_seconds
    self._started = None

  def save(self, state: TrainState) -> float:
    """Starts to save; waits only until the previous save is done.

    Returns:
      The seconds for which it blocked.
    """
    with watchdog.during('save'):
      self._started = time.monotonic()
      self._checkpointer.save(state)
      return time.monotonic() - self._started

  def save_local(self, state: TrainState) -> float:
    """Like `save`, into the hosts' memory or disks."""
    with watchdog.during('save'):
      started = time.monotonic()
      self._checkpointer.save_local(state)
      return time.monotonic() - started

  def retry_due(self) -> bool:
    """Whether a save failed and a retry is due."""
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
      preempted: gives up within the grace period, so that the reason of a
        failure is still logged.

    Raises:
      RuntimeError: the state cannot be saved.
    """
    with watchdog.during('save'):
      started = time.monotonic()
      # Half of the grace period for waiting: the attempts take time too.
      within = self._grace / 2 if preempted else math.inf
      self._checkpointer.finish(state, within=within)
      self.poll()
      return time.monotonic() - started


# What the training loop does now and then: log, evaluate, save, stop.


class Callbacks:
  """The callbacks of a run; `Cadence` says when each is due.

  Built once, before the first step; `begin` is called then and after a rewind.
  """

  def __init__(self, training: Run, state: TrainState, train_steps: Stages):
    """Compiles the evaluation; measures the device's peak if unknown.

    Args:
      state: from which the loop starts.
      train_steps: compiled, by batch shape.
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
    self.replay = (
      Replay(parts, training.write_replay)
      if config.replay.every_steps
      else None
    )

  def begin(self, metrics: Metrics, past: Past, done: int) -> None:
    """Continues from the past at step `done`, and writes to `metrics`."""
    self._metrics, self._past = metrics, past
    self.meter.resume(past.unlogged)
    policy = self._training.parts.spike_policy
    self._guard = Guard(policy, past.losses, past.skipped)
    self._held_out = [*past.held_out]
    self._set_average_start()
    if self.replay:
      self.replay.begin(done)
    lines = metrics_lib.read(self._training.workdir)
    for skip in self._training.history.skips.skips:
      event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
      known = any(event.items() <= line.items() for line in lines)
      if skip.step <= done and not known:
        metrics.write(**event, rows_skipped=skip.rows)

  def catch_up(self, done: int, state: TrainState) -> None:
    """Runs the evaluation that an interruption left undone.

    Raises:
      Preempted: SIGTERM came meanwhile.
    """
    owed = done and not self._past.evaluated(done)
    owed = owed and self._cadence.due(done).evaluate
    if owed and not self.evaluate(done, state):
      raise Preempted('preempted while evaluating; start again to continue')

  def note(self, step: int, out: dict[str, Any]) -> Due:
    """Records the outputs of a step; returns what is due after it."""
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
      Spike: by the policy, the run may not simply continue.
      GoBack: a step would be skipped, and must be repeated first.
    """
    outputs = self.meter.fetch()
    for skipped, out in self._guard.check(step, outputs):
      if self.replay and self.replay.is_new(skipped, out):
        raise GoBack
      file = self._training.write_spike(skipped, out)
      file = os.path.relpath(file, self._training.workdir)
      self._metrics.write(skipped, event='skipped', spike=file)
    if self.replay:
      self.replay.taken(step, outputs)

  def log(self, step: int, progress: Progress) -> None:
    """Writes and shows the metrics of the steps since the last call."""
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
    if self._set_average_start() == step:
      log.info('step %d: averaging the weights from here on', step)
    self._training.checkpointer.evaluated(step, judged)
    log.info('step %d: %s', step, self._evaluation.summary(values))
    self.meter.restart()
    return True

  def _set_average_start(self) -> int:
    """Sets `average_start`, which follows from the evaluations so far."""
    parts, start = self._training.parts, NEVER
    if parts.average:
      start = parts.average.start_of(self._held_out)
    self.average_start = parts.average_start(start)
    return start

  @property
  def gave_up(self) -> bool:
    """Whether the run ends early: see `Run.patience`."""
    return gave_up(self._held_out, self._training.patience)

  def save(
    self,
    step: int,
    state: TrainState,
    out: dict[str, Any],
    *,
    local: bool = False,
  ) -> None:
    """Starts to save a state; `out` is the output of its last step.

    Args:
      local: into the hosts' memory or disks, not into the workdir.

    Raises:
      Spike: the state is not finite.
      GoBack: devices hold copies of it that differ.
    """
    check_state(step, state, *self.meter.pooled([out]))
    if self.replay:
      self.replay.check_copies(step, state)
    if unlogged := self.meter.unlogged():
      self._metrics.write(step, event='unlogged', routers=unlogged)
    self._metrics.sync()
    if local:
      seconds = self._saver.save_local(state)
      self._metrics.write(step, event='saved', tier='local', seconds=seconds)
    else:
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
      f'stopped; saved step {step} of {self._cadence.last} in {seconds:.1f} '
      's; start again to continue'
    )

  def finish(self, state: TrainState) -> None:
    """Waits until the last state is saved."""
    step = int(state.step)
    if self.gave_up:
      log.info(
        'step %d: ending early, %d evaluations brought nothing better',
        *(step, self._training.patience),
      )
    seconds = self._saver.finish(state)
    self._metrics.write(step, event='saved', seconds=seconds)


def fit(training: Run, state: TrainState) -> TrainState:
  """Takes the run from `state` to its end: logs, evaluates and saves.

  Args:
    training: of `Run.open`.
    state: of `Run.open`, or some steps later.

  Returns:
    The state after the last step.

  Raises:
    UsageError: data that the model generates cannot be judged.
    Preempted: SIGTERM came; the state is saved.
    Spike: a spike at which `optim.on_spike` stops the run.
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
    compile_stages(
      training.parts, done, train_steps, metrics, training.programs
    )
    callbacks = Callbacks(training, state, train_steps)
    replay = callbacks.replay
    if replay:
      replay.compile(train_steps)
  while True:
    spike = None
    with contextlib.closing(metrics):
      try:
        callbacks.begin(metrics, past, int(state.step))
        return loop(training, train_steps, callbacks, state)
      except GoBack:
        pass
      except Spike as e:
        if not replay or not replay.is_new(e.step, e.output):
          spike = e
          metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = training.rewind(spike) if spike else training.go_back()
    past = training.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = training.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with watchdog.during('compile'):
      compile_stages(training.parts, int(state.step), train_steps, metrics)
      if replay:
        replay.compile(train_steps)


def _until_refused(
  batches: Iterator[Any], refused: list[UsageError]
) -> Iterator[Any]:
  """Yields batches until the user must mend their source, such as a reward.

  Several processes cannot save when one of them fails.
  """
  try:
    yield from batches
  except UsageError as e:
    if jax.process_count() > 1:
      raise
    refused.append(e)


def loop(
  training: Run,
  train_steps: Stages,
  callbacks: Callbacks,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  parts, done = training.parts, int(state.step)
  last = parts.config.schedule.num_steps
  # The first step may still compile; until it ends nothing new can be saved.
  watchdog.enter('compile')
  with (
    contextlib.closing(training.batches(done, lambda: state)) as batches,
    Progress(total=last, done=done, active=training.active) as progress,
  ):
    callbacks.catch_up(done, state)
    step, out = done, None
    refused: list[UsageError] = []
    given = callbacks.meter.waiting(_until_refused(batches, refused))
    for step, batch in enumerate(given, start=done + 1):
      shape = parts.ramp.shape(step - 1)
      train_step = train_steps[shape]
      replay, start = callbacks.replay, callbacks.average_start
      with fitting.explaining(parts, train_step, shape):
        if replay and replay.due(step):
          state, out = replay.step(step, state, batch, shape, train_step, start)
        else:
          arrays = parts.put(batch, shape.rows)
          state, out = train_step.call(state, arrays, *start)
        due = callbacks.note(step, out)
        if any(due):
          callbacks.check(step)
      if due.log:
        callbacks.log(step, progress)
      progress.advance(step)
      stop = due.stop or (due.evaluate and not callbacks.evaluate(step, state))
      if due.save or stop or callbacks.gave_up:
        callbacks.save(step, state, out)
      elif due.save_local:
        callbacks.save(step, state, out, local=True)
      if stop:
        callbacks.stop(step, state)
      if callbacks.gave_up:
        break
    if refused:
      if out is not None:
        callbacks.save(step, state, out)
        callbacks.finish(state)
        log.info('saved step %d of %d', step, last)
      raise refused[0]
    if step < last and not callbacks.gave_up:  # SIGTERM came in a rollout
      if out is None:
        raise Preempted('preempted before a step; start again to continue')
      callbacks.save(step, state, out)
      callbacks.stop(step, state)
    callbacks.finish(state)
  return state
