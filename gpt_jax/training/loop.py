# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop."""

import contextlib
import time

import jax

from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import phases, preemption
from gpt_jax.runtime.log import log, seconds_since_start
from gpt_jax.runtime.preemption import Preempted
from gpt_jax.training import rewind, routers, spikes
from gpt_jax.training import tools as tools_lib
from gpt_jax.training.job import Job, Past, gave_up
from gpt_jax.training.meter import summary
from gpt_jax.training.metrics import Metrics, Progress


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
  with phases.during('compile'):
    tools = tools_lib.prepare(job, state, metrics)
  while True:
    with contextlib.closing(metrics):
      try:
        return loop(job, tools, metrics, past, state)
      except spikes.Spike as e:
        spike = e
        metrics.write(spike.step, event='spike')
    started = time.perf_counter()
    state = rewind.rewind(job, spike)
    past = job.past(int(state.step))
    seconds = time.perf_counter() - started
    metrics = job.open_metrics(int(state.step), rewound=1, seconds=seconds)
    with phases.during('compile'):
      tools_lib.compile_stages(
        job.run, int(state.step), tools.train_steps, metrics
      )


def loop(
  job: Job,
  tools: tools_lib.Tools,
  metrics: Metrics,
  past: Past,
  state: TrainState,
) -> TrainState:
  """The training loop, from the state's step to the last."""
  run, config = job.run, job.run.config
  done, last = int(state.step), config.schedule.num_steps
  meter, saver = tools.meter, tools.saver
  meter.resume(past.unlogged)
  guard = spikes.Guard(run.spike_policy, past.losses, past.skipped)
  held_out = [*past.held_out]
  rewind.log_events(job, metrics, done)

  def evaluated(step: int) -> bool:
    """Evaluates where it is due; False if it was told to stop."""
    if not tools.evaluation or not should(step, config.eval.every_steps, last):
      return True
    started = time.perf_counter()
    with phases.during('evaluation'):
      values = tools.evaluation(state.eval_params, stop=preemption.reached)
    if values is None:
      return False
    seconds = time.perf_counter() - started
    metrics.write(step, **values, eval_seconds=seconds)
    judged = job.judged(values)
    assert judged is not None
    held_out.append((step, judged))
    job.checkpointer.evaluated(step, judged)
    log.info('step %d: %s', step, tools.evaluation.summary(values))
    meter.restart()
    return True

  # The first step may still compile, and there is nothing new to save.
  phases.enter('compile')
  with (
    contextlib.closing(job.batches(done)) as batches,
    Progress(total=last, done=done, active=job.active) as progress,
  ):
    # What an interruption left undone.
    if done and not past.evaluated(done) and not evaluated(done):
      raise Preempted('preempted while evaluating; start again to continue')
    for step, batch in enumerate(meter.waiting(batches), start=done + 1):
      rows = run.ramp.rows(step - 1)
      state, out = tools.train_steps[rows].call(state, run.put(batch, rows))
      meter.add(out)
      if meter.taken == 1:
        jax.block_until_ready(out)
        seconds = seconds_since_start()
        log.info('first step done %.1f s after the start', seconds)
        metrics.write(step, event='first_step', seconds=seconds)
      phases.enter('step')
      saver.poll()
      stop = preemption.reached()
      log_due = step % config.log.every_steps == 0 or step == last
      save_due = should(step, config.checkpoint.every_steps, last)
      save_due = save_due or saver.retry_due()
      eval_due = should(step, config.eval.every_steps, last)
      # Each of those may be the last.
      log_due = log_due or (eval_due and job.patience > 0)
      if log_due or save_due or eval_due or stop:
        for skipped in guard.check(step, meter.fetch()):
          rewind.log_skipped(job, metrics, *skipped)
      if log_due:
        values = meter.read(step)
        epochs = job.data.epochs(run.ramp.offset(step))
        metrics.write(step, **values, **epochs)
        guard.logged(values['loss'])
        progress.show(step, summary(values))
        if dead := routers.dead_experts(values):
          log.warning('step %d: %s', step, dead)
      progress.advance(step)
      stop = stop or not evaluated(step)
      over = gave_up(held_out, job.patience)
      if save_due or stop or over:
        spikes.check_state(step, state, out)
        if unlogged := meter.unlogged():
          metrics.write(step, event='unlogged', routers=unlogged)
        metrics.sync()
        seconds = saver.save(state)
        metrics.write(step, event='saved', seconds=seconds)
        meter.restart()
      if stop:
        seconds = saver.finish(state, preempted=True)
        metrics.write(step, event='saved', seconds=seconds)
        raise Preempted(
          f'preempted; saved step {step} of {last} in {seconds:.1f} s; start '
          'again to continue'
        )
      if over:
        log.info(
          'step %d: ending early, %d evaluations were not better than one '
          'before',
          *(step, job.patience),
        )
        break
    seconds = saver.finish(state)
    metrics.write(int(state.step), event='saved', seconds=seconds)
  return state


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)
