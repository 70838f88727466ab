# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

import contextlib
import time

from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import phases
from gpt_jax.runtime.log import log
from gpt_jax.training import rewind, spikes
from gpt_jax.training.compiled import Stages, compile_stages
from gpt_jax.training.duties import Duties
from gpt_jax.training.metrics import Progress
from gpt_jax.training.training_run import TrainingRun, gave_up


def fit(training: TrainingRun, state: TrainState) -> TrainState:
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
  with phases.during('compile'):
    compile_stages(training.parts, done, train_steps, metrics)
    duties = Duties(training, state, train_steps)
  while True:
    with contextlib.closing(metrics):
      try:
        duties.begin(metrics, past, int(state.step))
        return loop(training, train_steps, duties, state)
      except spikes.Spike as e:
        spike = e
        metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = rewind.rewind(training, spike)
    past = training.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = training.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with phases.during('compile'):
      compile_stages(training.parts, int(state.step), train_steps, metrics)


def loop(
  training: TrainingRun,
  train_steps: Stages,
  duties: Duties,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  parts, done = training.parts, int(state.step)
  last = parts.config.schedule.num_steps
  # The first step may still compile, and there is nothing new to save.
  phases.enter('compile')
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
