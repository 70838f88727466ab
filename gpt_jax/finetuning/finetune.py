# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained model on a task, or on several, and predicts."""

import os
from typing import Any

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.finetuning import one_task, several_tasks, transfer
from gpt_jax.finetuning.plan import Plan
from gpt_jax.finetuning.predictions import RESULT
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts, phases, preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.training import device_check, loop, metrics, opening
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.metrics import to_json, write_atomically
from gpt_jax.training.models import Pretrained
from gpt_jax.training.training_run import TrainingRun


def finetune(
  config: Config, source: Pretrained, workdir: str, predict: str | None = None
) -> dict[str, Any]:
  """Fine-tunes to the end, and predicts; see the module's docstring.

  Args:
    config: with a section `finetune`, not resolved.
    source: what is fine-tuned.
    workdir: of the run.
    predict: a further table.

  Returns:
    What result.json holds.
  """
  phases.enter('start')
  config = several_tasks.wanted(config)
  tuned = config.get('finetune')
  kind = several_tasks if tuned and tuned.get('tasks') else one_task
  plan = kind.plan(config, source, workdir, predict)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with (
    workdir_lib.locked(workdir),
    watchdog.watching(watchdog.deadlines(plan.config), stacks),
  ):
    training, state = start(plan, workdir)
    state = loop.fit(training, state)
    phases.enter('end')
    preemption.check()
    state = selected(training, state)
    result = plan.finish(training, state)
    if training.active:
      path = os.path.join(workdir, RESULT)
      write_atomically(path, to_json(result, indent=2) + '\n')
    return result


def start(plan: Plan, workdir: str) -> tuple[TrainingRun, TrainState]:
  """Opens the run; gives its newest state, or the first."""
  config, data = plan.config, plan.data
  tuned = config.finetune
  workdir_lib.check_same_run(config, workdir)
  device_check.check_devices(config)
  metrics.check(config)
  if note := config_lib.warm_up_note(config):
    log.warning('%s', note)
  with workdir_lib.untouched_if_refused(workdir):
    parts = parts_lib.build(config)

    def first() -> TrainState:
      params = plan.params() if plan.params else None
      amount = spec.build(
        'finetune.transfer', tuned.transfer, transfer.TRANSFERS
      )
      return transfer.init_state(parts, params, amount)

    last = config.schedule.num_steps
    epochs = parts.ramp.offset(last) / data.rows_per_epoch
    return opening.open_run(
      parts,
      workdir,
      data,
      tokenizer=plan.tokenizer,
      first=first,
      about=f'{config.objective.name} of {tuned.init}: '
      f'{plan.examples:,} examples, {epochs:.2f} epochs, {last} steps; '
      f'transfer {tuned.transfer}, {tuned.freeze} layers frozen',
      evaluation=plan.evaluation,
      criterion=plan.criterion,
      patience=tuned.patience,
    )


def selected(training: TrainingRun, state: TrainState) -> TrainState:
  """The state that predicts: the last, or the best of those saved."""
  if training.parts.config.finetune.select == 'last':
    return state
  done = int(state.step)
  judged = dict(training.past(done).held_out)
  checkpointer = Checkpointer(training.workdir, read_only=True)
  steps = [step for step in checkpointer.steps() if step in judged]
  best = min(steps, key=lambda step: (judged[step], step))
  if best != done:
    found = checkpointer.restore(
      parts_lib.abstract_state(training.parts), at_most=best
    )
    if found is not None and int(found.step) == best:
      log.info('predicting with step %d, the best', best)
      state = found
  checkpointer.close()
  return state
