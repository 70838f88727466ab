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
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.history import write_skips
from gpt_jax.training.spikes import Spike
from gpt_jax.training.training_run import TrainingRun


def rewind(training: TrainingRun, spike: Spike) -> TrainState:
  """Goes back before a spike, where the policy says so.

  Every process calls it after the same step.

  Returns:
    The state to go on from; the data order is another one from there.

  Raises:
    Spike: the policy is to stop, or it has rewound often enough.
  """
  policy, parts = training.parts.spike_policy, training.parts
  known = training.history.skips
  file = write_spike(training, spike.step, spike.output)
  limit = policy.at_most or math.inf
  if policy.action != 'rewind' or len(known.skips) >= limit:
    training.checkpointer.wait()
    raise Spike(
      f'{spike}; its rows: gpt-jax inspect --spike {file}; the checkpoints are '
      'from before; lower the learning rate, or go on with '
      '--config.optim.on_spike=skip, or rewind',
      step=spike.step,
      output=spike.output,
    ) from spike
  training.checkpointer.wait()
  step = rewind_target(
    training.checkpointer.steps(),
    spike=spike.step,
    before=policy.before,
    every=parts.config.checkpoint.every_steps,
  )
  new = known.add(
    training.unskipped_rows, step=step, spike=spike.step, batches=policy.batches
  )
  log.warning(
    '%s: going back to step %d, and leaving out %d rows from there; rows of '
    'the spike: %s',
    *(spike, step, new.skips[-1].rows, file),
  )
  _write(training, new)
  finish(training)
  state = training.checkpointer.restore(
    parts_lib.abstract_state(parts), at_most=step
  )
  training.history.restart(training.checkpointer.restored)
  return parts_lib.init_state(parts) if state is None else state


def finish(training: TrainingRun) -> None:
  """Gives up the states after the last rewind's step, if one is not done."""
  known = training.history.skips
  if known.pending:
    training.checkpointer.forget_after(known.skips[-1].step)
    _write(training, known._replace(pending=False))


def log_events(training: TrainingRun, log: metrics.Metrics, done: int) -> None:
  """Writes an event for each rewind up to step `done` that has none yet."""
  lines = metrics.read(training.workdir)
  for skip in training.history.skips.skips:
    event = {'step': skip.step, 'event': 'rewind', 'spike_step': skip.spike}
    known = any(event.items() <= line.items() for line in lines)
    if skip.step <= done and not known:
      log.write(**event, rows_skipped=skip.rows)


def log_skipped(
  training: TrainingRun, log: metrics.Metrics, step: int, output: dict[str, Any]
) -> None:
  """Writes down a step whose update was left out."""
  file = write_spike(training, step, output)
  log.write(
    step, event='skipped', spike=os.path.relpath(file, training.workdir)
  )


def write_spike(
  training: TrainingRun, step: int, output: dict[str, Any]
) -> str:
  """Writes the file of a spike; returns its path."""
  rows = training.rows()(step - 1)
  return spikes.write(
    training.parts,
    training.data,
    training.workdir,
    step=step,
    rows=rows,
    output=output,
  )


def _write(training: TrainingRun, new: skips.Skips) -> None:
  if training.active:
    write_skips(training.workdir, new)
  hosts.broadcast_from_host0(None)  # no process goes on before it is written
  training.history.skips = new
