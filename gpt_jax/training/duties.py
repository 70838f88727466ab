# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the training loop does besides training: log, evaluate, save, stop."""

import time
from typing import Any, NoReturn

import jax

from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import phases, preemption
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.training import cadence, rewind, routers, spikes
from gpt_jax.training.cadence import Due
from gpt_jax.training.compiled import Stages
from gpt_jax.training.meter import Meter, summary
from gpt_jax.training.metrics import Metrics, Progress
from gpt_jax.training.saver import Saver
from gpt_jax.training.training_run import Past, TrainingRun, gave_up


class Duties:
  """Made once, before the first step; `begin` starts them, and after a rewind.

  When each is due, `cadence` says; the loop calls them in their order.
  """

  def __init__(
    self, training: TrainingRun, state: TrainState, train_steps: Stages
  ):
    """Compiles the evaluation, and measures the device where it must.

    Args:
      training: what is trained, and from which data.
      state: the loop starts from.
      train_steps: compiled, by the shape of the batch.
    """
    parts, config = training.parts, training.parts.config
    self._training = training
    self._cadence = cadence.of(config, patience=training.patience)
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
    self._guard = spikes.Guard(policy, past.losses, past.skipped)
    self._held_out = [*past.held_out]
    rewind.log_events(self._training, metrics, done)

  def catch_up(self, done: int, state: TrainState) -> None:
    """Evaluates where an interruption left it undone.

    Raises:
      Preempted: it was told to stop meanwhile.
    """
    owed = done and not self._past.evaluated(done)
    owed = owed and self._cadence.due(done).evaluate
    if owed and not self.evaluate(done, state):
      raise Preempted('preempted while evaluating; start again to continue')

  def note(self, step: int, out: dict[str, Any]) -> Due:
    """Keeps the outputs of a step; says what is due after it."""
    self.meter.add(out)
    if self.meter.taken == 1:
      jax.block_until_ready(out)
      seconds = seconds_since_start()
      log.info('first step done %.1f s after the start', seconds)
      self._metrics.write(step, event='first_step', seconds=seconds)
    phases.enter('step')
    self._saver.poll()
    due = self._cadence.due(step, stop=preemption.reached())
    return due._replace(save=due.save or self._saver.retry_due())

  def check(self, step: int) -> None:
    """Looks at the outputs of all steps since it last did.

    Raises:
      Spike: the run cannot go on as it is.
    """
    for skipped in self._guard.check(step, self.meter.fetch()):
      rewind.log_skipped(self._training, self._metrics, *skipped)

  def log(self, step: int, progress: Progress) -> None:
    """Writes and shows the figures of the steps since it last did."""
    values = self.meter.read(step)
    epochs = self._training.data.epochs(self._training.unskipped_rows(step))
    self._metrics.write(step, **values, **epochs)
    self._guard.logged(values['loss'])
    progress.show(step, summary(values))
    if dead := routers.dead_experts(values):
      log.warning('step %d: %s', step, dead)

  def evaluate(self, step: int, state: TrainState) -> bool:
    """Measures the state; False if it was told to stop meanwhile."""
    if not self._evaluation:
      return True
    started = time.perf_counter()
    with phases.during('evaluation'):
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
    """Whether the run ends early: see `TrainingRun.patience`."""
    return gave_up(self._held_out, self._training.patience)

  def save(self, step: int, state: TrainState, out: dict[str, Any]) -> None:
    """Starts to save a state whose last step gave `out`.

    Raises:
      Spike: it is not finite.
    """
    spikes.check_state(step, state, out)
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
