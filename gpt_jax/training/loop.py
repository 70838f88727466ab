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
from gpt_jax.training.job import Job, gave_up
from gpt_jax.training.metrics import Progress


def fit(job: Job, state: TrainState) -> TrainState:
  """Takes the run from `state` to its end, and saves.

  Raises:
    Preempted: it was told to stop, and has saved.
    Spike: the run met one, and `optim.on_spike` is to stop there.
  """
  config, done = job.run.config, int(state.step)
  past = job.past(done)
  owed = job.evaluation and not past.evaluated(done)
  over = gave_up(past.held_out, job.patience)
  if (done >= config.schedule.num_steps or over) and not owed:
    job.checkpointer.close()
    return state
  if state.ema is not None:
    log.info(
      'evaluating and sampling the average of the weights, optim.ema=%s',
      config.optim.ema,
    )
  for step, loss in past.held_out:
    job.checkpointer.evaluated(step, loss)
  metrics = job.open_metrics(done)
  train_steps: Stages = {}
  with phases.during('compile'):
    compile_stages(job.run, done, train_steps, metrics)
    duties = Duties(job, state, train_steps)
  while True:
    with contextlib.closing(metrics):
      try:
        duties.begin(metrics, past, int(state.step))
        return loop(job, train_steps, duties, state)
      except spikes.Spike as e:
        spike = e
        metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = rewind.rewind(job, spike)
    past = job.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = job.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with phases.during('compile'):
      compile_stages(job.run, int(state.step), train_steps, metrics)


def loop(
  job: Job,
  train_steps: Stages,
  duties: Duties,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  run, done = job.run, int(state.step)
  last = run.config.schedule.num_steps
  # The first step may still compile, and there is nothing new to save.
  phases.enter('compile')
  with (
    contextlib.closing(job.data.batches(run, done, job.rows())) as batches,
    Progress(total=last, done=done, active=job.active) as progress,
  ):
    duties.catch_up(done, state)
    for step, batch in enumerate(duties.meter.waiting(batches), start=done + 1):
      rows = run.ramp.rows(step - 1)
      state, out = train_steps[rows].call(state, run.put(batch, rows))
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
