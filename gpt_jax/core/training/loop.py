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

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import RETRY_SECONDS, Checkpointer
from gpt_jax.core.config import Config
from gpt_jax.core.optim.rounding import NEVER
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import hosts, preemption, watchdog
from gpt_jax.core.runtime.log import log, seconds_since_start
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.training import fitting
from gpt_jax.core.training import metrics as metrics_lib
from gpt_jax.core.training.compiled import Compiled, Stages, compile_stages
from gpt_jax.core.training.events import GoBack, Listener
from gpt_jax.core.training.metrics import Metrics
from gpt_jax.core.training.past import Spike, SpikeGuard, check_state
from gpt_jax.core.training.report import Meter, Progress, dead_experts, summary
from gpt_jax.core.training.run import Past, Run, gave_up
from gpt_jax.core.training.step import NORMS

# What listens to a run, by the field that asks for it: see `training.events`.
LISTENERS = Table({}, 'listener')


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
    log.info('evaluating and sampling the average of the weights, optim.ema=%s', config.optim.ema)
  for step, loss in past.held_out:
    training.checkpointer.evaluated(step, loss)
  metrics = training.open_metrics(done)
  train_steps: Stages = {}
  with watchdog.during('compile'):
    compile_stages(training.parts, done, train_steps, metrics, training.programs)
    callbacks = Callbacks(training, state, train_steps)
    callbacks.compiled(train_steps)
  while True:
    with contextlib.closing(metrics):
      callbacks.begin(metrics, past, int(state.step))
      outcome = attempt(training, train_steps, callbacks, state)
    if outcome.state is not None:
      return outcome.state
    started, spike = time.perf_counter(), outcome.spike
    state = training.rewind(spike) if spike else training.go_back()
    past = training.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = training.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with watchdog.during('compile'):
      # Steps of an earlier stage may come again.
      compile_stages(training.parts, int(state.step), train_steps, metrics)
      callbacks.compiled(train_steps)


class LoopEnd(NamedTuple):
  """How the loop ended: after the last step, or the run goes back."""

  state: TrainState | None = None  # after the last step; None: it goes back
  spike: Spike | None = None  # to before it; None: to the newest checkpoint


def attempt(
  training: Run, train_steps: Stages, callbacks: 'Callbacks', state: TrainState
) -> LoopEnd:
  """Runs the loop, until it ends or the run has to go back."""
  try:
    return LoopEnd(loop(training, train_steps, callbacks, state))
  except GoBack:
    return LoopEnd()
  except Spike as spike:
    if callbacks.must_recur(spike.step, spike.output):
      return LoopEnd()
    callbacks.write(spike.step, event='spike')
    return LoopEnd(spike=spike)


def loop(
  training: Run, train_steps: Stages, callbacks: 'Callbacks', state: TrainState
) -> TrainState:
  """The training loop, from the state's step to the last.

  Raises:
    GoBack: the run has to go back to its newest checkpoint.
    Spike: by the policy, the run may not simply continue.
  """
  parts, done = training.parts, int(state.step)
  last = parts.config.schedule.num_steps
  # The first step may still compile; until it ends nothing new can be saved.
  watchdog.enter('compile')
  callbacks.catch_up(done, state)
  with (
    contextlib.closing(training.batches(done, lambda: state)) as batches,
    Progress(total=last, done=done, active=training.active) as progress,
  ):
    step, out = done, None
    refused: list[UsageError] = []
    arriving = callbacks.meter.waiting(_until_refused(batches, refused))
    for step, batch in enumerate(arriving, start=done + 1):
      shape = parts.ramp.shape(step - 1)
      train_step = train_steps[shape]
      with fitting.explaining(parts, train_step, shape):
        state, out = callbacks.step(step, state, batch, shape, train_step)
        due = callbacks.note(step, out)
        progress.advance(step - callbacks.meter.under_way())
        # Until now the step may still run: only what is due waits for it.
        if any(due):
          for under_way in callbacks.meter.finishing():
            progress.advance(step - under_way)
          callbacks.check(step)
      # Before an evaluation and a save, so that neither is in its speeds.
      if due.log:
        callbacks.log(step, progress)
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


def _until_refused(batches: Iterator[Any], refused: list[UsageError]) -> Iterator[Any]:
  """Yields batches until the user must mend their source, such as a reward.

  Several processes cannot save when one of them fails.
  """
  try:
    yield from batches
  except UsageError as e:
    if jax.process_count() > 1:
      raise
    refused.append(e)


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
    self._cadence = cadence_of(config, patience=training.patience)
    self._evaluation = training.evaluation(parts) if training.evaluation else None
    self.meter = Meter(parts, state.params, train_steps)
    self._saver = Saver(
      training.checkpointer,
      grace_seconds=config.checkpoint.grace_seconds,
      every_minutes=config.checkpoint.every_minutes,
    )
    self._norms_every = config.log.norms_every_steps
    fields = config_lib.flatten(config)
    self.listeners: list[Listener] = [
      LISTENERS[field](parts, training.write_step) for field in LISTENERS if fields[field]
    ]

  def begin(self, metrics: Metrics, past: Past, done: int) -> None:
    """Continues from the past at step `done`, and writes to `metrics`."""
    self._metrics, self._past = metrics, past
    self.meter.resume(past.unlogged)
    policy = self._training.parts.spike_policy
    self._guard = SpikeGuard(policy, past.losses, past.skipped)
    self._held_out = [*past.held_out]
    self._shown: dict[str, Any] = {}  # the newest
    self._set_average_start()
    for listener in self.listeners:
      listener.begin(done)
    lines = metrics_lib.read(self._training.workdir)
    for skip in self._training.history.skips.skips:
      event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
      logged = any(event.items() <= line.items() for line in lines)
      if skip.step <= done and not logged:
        metrics.write(**event, rows_skipped=skip.rows)

  def write(self, step: int, **values: Any) -> None:
    """Writes a line of metrics.jsonl."""
    self._metrics.write(step, **values)

  def compiled(self, train_steps: Stages) -> None:
    """Tells the listeners of the steps that are compiled."""
    for listener in self.listeners:
      listener.compiled(train_steps)

  def step(
    self, step: int, state: TrainState, batch: dict[str, Any], shape: Shape, program: Compiled
  ) -> tuple[TrainState, dict[str, Any]]:
    """Takes a step, unless a listener does; the arguments are a listener's."""
    start = self.average_start
    for listener in self.listeners:
      result = listener.step(step, state, batch, shape, program, start)
      if result is not None:
        return result
    arrays = self._training.parts.put(batch, shape.rows)
    return program.call(state, arrays, *start)

  def catch_up(self, done: int, state: TrainState) -> None:
    """Runs the evaluation that an interruption left undone.

    Raises:
      Preempted: SIGTERM came meanwhile.
    """
    owed = done and not self._past.evaluated(done)
    owed = owed and self._cadence.due(done).evaluate
    if owed and not self.evaluate(done, state):
      raise Preempted('preempted while evaluating; start again to continue')

  def note(self, step: int, out: dict[str, Any]) -> 'Due':
    """Records the outputs of a step; returns what is due after it."""
    self.meter.add(out)
    if self.meter.taken == 1:
      jax.block_until_ready(out)
      seconds = seconds_since_start()
      log.info('first step done %.1f s after the start', seconds)
      self._metrics.write(step, event='first_step', seconds=seconds)
      preemption.before_step(step)
    watchdog.enter('step')
    self._saver.poll()
    due = self._cadence.due(step, stop=preemption.reached())
    preemption.before_step(step + 1)
    saver = self._saver
    return due._replace(save=due.save or saver.retry_due() or (due.log and saver.overdue()))

  def check(self, step: int) -> None:
    """Checks the outputs of all steps since the last call.

    Raises:
      Spike: by the policy, the run may not simply continue.
      GoBack: a step would be skipped, and must be repeated first.
    """
    outputs = self.meter.fetch()
    # Before a spike may end the run: it is what they are for.
    if every := self._norms_every:
      for measured, values in NORMS['lines'](step, outputs, every):
        self._metrics.write(measured, **values)
    for skipped, out in self._guard.check(step, outputs):
      if self.must_recur(skipped, out):
        raise GoBack
      file = self._training.write_spike(skipped, out)
      file = os.path.relpath(file, self._training.workdir)
      self._metrics.write(skipped, event='skipped', spike=file)
    for listener in self.listeners:
      listener.checked(step, outputs)

  def must_recur(self, step: int, output: dict[str, Any]) -> bool:
    """Whether a spike counts only once it recurs: see `Listener.spike`."""
    return any([x.spike(step, output) for x in self.listeners])

  def log(self, step: int, progress: Progress) -> None:
    """Writes and shows the metrics of the steps since the last call."""
    values = self.meter.read(step)
    epochs = self._training.data.epochs(self._training.unskipped_rows(step))
    self._metrics.write(step, **values, **epochs)
    self._guard.logged(values['loss'])
    # A step within a window of updates has no rollout of its own.
    shown = self._training.shown
    self._shown |= {n: x for n, x in (values | epochs).items() if n in shown}
    progress.show(step, summary(self._shown | values, shown))
    if dead := dead_experts(values):
      log.warning('step %d: %s', step, dead)

  def evaluate(self, step: int, state: TrainState) -> bool:
    """Evaluates the state; False if SIGTERM came meanwhile."""
    if not self._evaluation:
      return True
    started = time.perf_counter()
    ahead = f'ending the evaluation of step {step}, then saving'
    with watchdog.during('evaluation'), preemption.with_ahead(ahead):
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

  def save(self, step: int, state: TrainState, out: dict[str, Any], *, local: bool = False) -> None:
    """Starts to save a state; `out` is the output of its last step.

    Args:
      local: into the hosts' memory or disks, not into the workdir.

    Raises:
      Spike: the state is not finite.
      GoBack: devices hold copies of it that differ.
    """
    check_state(step, state, *self.meter.pooled([out]))
    for listener in self.listeners:
      listener.before_save(step, state)
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
        step,
        self._training.patience,
      )
    seconds = self._saver.finish(state)
    self._metrics.write(step, event='saved', seconds=seconds)


# Saving from the loop.


class Saver:
  """Saves in the background; warns of saves too slow for a preemption."""

  def __init__(
    self, checkpointer: Checkpointer, *, grace_seconds: float, every_minutes: float | None = None
  ):
    """`grace_seconds` is the time between SIGTERM and SIGKILL; the rest as in a config."""
    self._checkpointer = checkpointer
    self._grace = grace_seconds
    self._every = every_minutes
    self._started = None
    self._last = time.monotonic()  # when the newest save began

  def save(self, state: TrainState) -> float:
    """Starts to save; waits only until the previous save is done.

    Returns:
      The seconds for which it blocked.
    """
    with watchdog.during('save'):
      self._started = self._last = time.monotonic()
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

  def overdue(self) -> bool:
    """Whether the last save is done, and `every_minutes` have passed since it began.

    A collective of all processes, whose clocks and disks differ: the last decides.
    """
    if self._every is None:
      return False
    wait = 60 * self._every
    if self._checkpointer.error:
      wait = max(wait, RETRY_SECONDS)
    passed = time.monotonic() - self._last >= wait
    return hosts.all_agree(passed and not self._checkpointer.saving())

  def poll(self) -> None:
    """Checks whether the save is done; call it after each step."""
    if self._started is not None and not self._checkpointer.saving():
      seconds = time.monotonic() - self._started
      self._started = None
      if seconds > self._grace:
        log.warning(
          'a save took %.1f s, longer than checkpoint.grace_seconds=%g: a '
          'preemption would end the process before it is done',
          seconds,
          self._grace,
        )

  def finish(self, state: TrainState, *, preempted: bool = False) -> float:
    """Waits until `state` is saved, and closes; returns the seconds it took.

    Args:
      preempted: gives up within the grace period, so that the reason of a
        failure is still logged.

    Raises:
      RuntimeError: the state cannot be saved.
    """
    with watchdog.during('save'), preemption.with_ahead('saving'):
      started = time.monotonic()
      # Half of the grace period for waiting: the attempts take time too.
      within = self._grace / 2 if preempted else math.inf
      self._checkpointer.finish(state, within=within)
      self.poll()
      return time.monotonic() - started


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


def cadence_of(config: Config, *, patience: int) -> Cadence:
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
