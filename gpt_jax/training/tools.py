# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the training loop calls, made once: compiled steps, meter, saver."""

from typing import NamedTuple

from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.training import run as run_lib
from gpt_jax.training.job import Evaluation, Job
from gpt_jax.training.meter import Meter
from gpt_jax.training.metrics import Metrics
from gpt_jax.training.run import Run
from gpt_jax.training.saver import Saver


class Tools(NamedTuple):
  """What is made once, before the first step."""

  train_steps: dict[int, run_lib.Compiled]  # by the rows of the batch
  evaluation: Evaluation | None  # None where nothing measures the run
  meter: Meter
  saver: Saver


def prepare(job: Job, state: TrainState, metrics: Metrics) -> Tools:
  """Compiles what the loop calls, and measures the device where it must.

  Args:
    job: what is trained, and from which data.
    state: the loop starts from.
    metrics: to write down what was compiled.
  """
  run, config = job.run, job.run.config
  train_steps: dict[int, run_lib.Compiled] = {}
  compile_stages(run, int(state.step), train_steps, metrics)
  rows, compiled = max(train_steps.items())
  return Tools(
    train_steps,
    job.evaluation(run) if job.evaluation else None,
    Meter(run, state.params, compiled.flops / (rows * run.ramp.row_tokens)),
    Saver(job.checkpointer, grace_seconds=config.checkpoint.grace_seconds),
  )


def compile_stages(
  run: Run, done: int, compiled: dict[int, run_lib.Compiled], metrics: Metrics
) -> None:
  """Compiles the training step for each batch size that is to come.

  All of them before the first step: a stage that does not fit, or a compiler
  that fails, shows now and not after days. `gpt-jax plan` compiles the same.

  Args:
    run: what is trained.
    done: steps done.
    compiled: by rows; what it lacks is added.
    metrics: to write it down.
  """
  for rows in run.stage_rows(done):
    if rows in compiled:
      continue
    step = compiled[rows] = run_lib.compile_train_step(run, rows)
    log.info(
      'compiled the training step for %d rows in %.1f s', rows, step.seconds
    )
    metrics.write(done, event='compiled', rows=rows, seconds=step.seconds)
