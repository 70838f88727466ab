# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on one task: `finetune.task`."""

import functools
import os
from collections.abc import Callable
from typing import Any

from gpt_jax.config import Config
from gpt_jax.finetuning import predictions, setup, transfer
from gpt_jax.finetuning.plan import Plan, once
from gpt_jax.finetuning.predictions import RESULT
from gpt_jax.finetuning.setup import Prepared
from gpt_jax.finetuning.task_data import Split, TaskData, TaskEvaluation
from gpt_jax.optim.train_state import TrainState
from gpt_jax.spec import UsageError
from gpt_jax.training.models import Pretrained
from gpt_jax.training.parts import Parts
from gpt_jax.training.training_run import TrainingRun


def plan(
  config: Config, source: Pretrained, workdir: str, predict: str | None
) -> Plan:
  """Reads and encodes the task; see `finetune.finetune` for the arguments."""
  prepared = setup.prepare(config, source, workdir)
  config, task = prepared.config, prepared.task
  splits = {n: s for n, s in prepared.splits.items() if n != 'train'}
  if predict:
    name = os.path.basename(predict).partition('.')[0]
    if name in (*prepared.splits, 'task', 'init', 'step', 'metrics'):
      raise UsageError(
        f'--predict={predict}: {name} is the name of something else in '
        f'{RESULT}; rename the file'
      )
    splits[name] = setup.encoded(prepared, predict)
  read = source.params
  evaluation = once(
    functools.partial(TaskEvaluation, split=prepared.splits['dev'])
  )

  def params() -> Any:
    assert read is not None
    head = transfer.head_of(config.finetune, source)
    return transfer.with_heads(read(), [head] * bool(head), alone=True)

  return Plan(
    config,
    prepared.tokenizer,
    TaskData(prepared.splits['train'], seed=config.seed),
    len(prepared.splits['train'].rows),
    evaluation,
    f'-eval/validation/{task.metrics[0]}',
    params if read else None,
    functools.partial(
      finish, evaluation=evaluation, prepared=prepared, splits=splits
    ),
  )


def finish(
  training: TrainingRun,
  state: TrainState,
  *,
  evaluation: Callable[[Parts], TaskEvaluation],
  prepared: Prepared,
  splits: dict[str, Split],
) -> dict[str, Any]:
  """Predictions for some splits, and what result.json is to hold."""
  tuned = prepared.config.finetune
  return {
    'task': tuned.task,
    'init': tuned.init,
    'step': int(state.step),
    **predictions.measured(
      training,
      state,
      evaluation(training.parts),
      prepared.splits['train'],
      splits,
    ),
  }
