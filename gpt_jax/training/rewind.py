# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaLM's cure of a loss spike: go back, and leave out the rows around it.

What is left out is kept in WORKDIR/skips.json (see `data.skips`), written
before anything is given up: killed at any moment, a run finishes the rewind
when it starts again.
"""

import math
import os
from typing import Any

from gpt_jax.checkpoints.retention import rewind_target
from gpt_jax.data import skips
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log
from gpt_jax.training import metrics, spikes
from gpt_jax.training import run as run_lib
from gpt_jax.training.history import write_skips
from gpt_jax.training.job import Job
from gpt_jax.training.spikes import Spike


def rewind(job: Job, spike: Spike) -> TrainState:
  """Goes back before a spike, where the policy says so.

  Every process calls it after the same step.

  Returns:
    The state to go on from; the data order is another one from there.

  Raises:
    Spike: the policy is to stop, or it has rewound often enough.
  """
  policy, run = job.run.spike_policy, job.run
  known = job.history.skips
  file = write_spike(job, spike.step, spike.output)
  limit = policy.at_most or math.inf
  if policy.action != 'rewind' or len(known.skips) >= limit:
    job.checkpointer.wait()
    raise Spike(
      f'{spike}; its rows: gpt-jax inspect --spike {file}; the checkpoints are '
      'from before; lower the learning rate, or go on with '
      '--config.optim.on_spike=skip, or rewind',
      step=spike.step,
      output=spike.output,
    ) from spike
  job.checkpointer.wait()
  step = rewind_target(
    job.checkpointer.steps(),
    spike=spike.step,
    before=policy.before,
    every=run.config.checkpoint.every_steps,
  )
  new = known.add(
    job.unskipped_rows, step=step, spike=spike.step, batches=policy.batches
  )
  log.warning(
    '%s: going back to step %d, and leaving out %d rows from there; rows of '
    'the spike: %s',
    *(spike, step, new.skips[-1].rows, file),
  )
  _write(job, new)
  finish(job)
  state = job.checkpointer.restore(run_lib.abstract_state(run), at_most=step)
  job.history.restart(job.checkpointer.restored)
  return run_lib.init_state(run) if state is None else state


def finish(job: Job) -> None:
  """Gives up the states after the last rewind's step, if one is not done."""
  known = job.history.skips
  if known.pending:
    job.checkpointer.forget_after(known.skips[-1].step)
    _write(job, known._replace(pending=False))


def log_events(job: Job, log: metrics.Metrics, done: int) -> None:
  """Writes an event for each rewind up to step `done` that has none yet."""
  lines = metrics.read(job.workdir)
  for skip in job.history.skips.skips:
    event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
    known = any(event.items() <= line.items() for line in lines)
    if skip.step <= done and not known:
      log.write(**event, rows_skipped=skip.rows)


def log_skipped(
  job: Job, log: metrics.Metrics, step: int, output: dict[str, Any]
) -> None:
  """Writes down a step whose update was left out."""
  file = write_spike(job, step, output)
  log.write(step, event='skipped', spike=os.path.relpath(file, job.workdir))


def write_spike(job: Job, step: int, output: dict[str, Any]) -> str:
  """Writes the file of a spike; returns its path."""
  rows = job.rows()(step - 1)
  return spikes.write(
    job.run, job.data, job.workdir, step=step, rows=rows, output=output
  )


def _write(job: Job, new: skips.Skips) -> None:
  if job.active:
    write_skips(job.workdir, new)
  hosts.broadcast_from_host0(None)  # no process goes on before it is written
  job.history.skips = new
