# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained model on a task, and predicts."""

import functools
import os
from typing import Any

from gpt_jax import spec
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config
from gpt_jax.finetuning import predictions, setup, transfer
from gpt_jax.finetuning.predictions import RESULT
from gpt_jax.finetuning.setup import Prepared
from gpt_jax.finetuning.task_data import Split, TaskData, TaskEvaluation
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts, phases, preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check, loop, opening, trackers
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.metrics import to_json, write_atomically
from gpt_jax.training.pretrained import Pretrained
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
  prepared = setup.prepare(config, source, workdir)
  config = prepared.config
  splits = {n: s for n, s in prepared.splits.items() if n != 'train'}
  if predict:
    name = os.path.basename(predict).partition('.')[0]
    if name in (*prepared.splits, 'task', 'init', 'step', 'metrics'):
      raise UsageError(
        f'--predict={predict}: {name} is the name of something else in '
        f'{RESULT}; rename the file'
      )
    splits[name] = setup.encoded(prepared, predict)
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with (
    workdir_lib.locked(workdir),
    watchdog.watching(watchdog.deadlines(config), stacks),
  ):
    training, state = start(prepared, source, workdir)
    state = loop.fit(training, state)
    phases.enter('end')
    preemption.check()
    state = selected(training, state)
    return predicted(training, state, prepared, splits)


def start(
  prepared: Prepared, source: Pretrained, workdir: str
) -> tuple[TrainingRun, TrainState]:
  """Opens the run; gives its newest state, or the first."""
  config, task = prepared.config, prepared.task
  tuned = config.finetune
  workdir_lib.check_same_run(config, workdir)
  device_check.check_devices(config)
  trackers.check(config)
  with workdir_lib.untouched_if_refused(workdir):
    parts = parts_lib.build(config)
    data = TaskData(prepared.splits['train'], seed=config.seed)

    def first() -> TrainState:
      params = source.params() if source.params else None
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
      tokenizer=prepared.tokenizer,
      first=first,
      about=f'{config.objective.name} of {tuned.init}: '
      f'{data.rows_per_epoch:,} examples, {epochs:.2f} epochs, {last} steps; '
      f'transfer {tuned.transfer}, {tuned.freeze} layers frozen',
      evaluation=functools.partial(
        TaskEvaluation, split=prepared.splits['dev']
      ),
      criterion=f'-eval/validation/{task.metrics[0]}',
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


def predicted(
  training: TrainingRun,
  state: TrainState,
  prepared: Prepared,
  splits: dict[str, Split],
) -> dict[str, Any]:
  """Predictions for some splits, and result.json, which is returned."""
  evaluation = TaskEvaluation(training.parts, split=splits['dev'])
  measured = {}
  for name, split in splits.items():
    found = evaluation.outputs(state.eval_params, split)
    assert found is not None  # nothing stopped it
    measured[name] = {'examples': split.num_examples, 'cut': split.rows.cut}
    measured[name] |= found.metrics
    path = os.path.join(training.workdir, 'predictions', f'{name}.tsv')
    if training.active:
      predictions.write(path, split, found)
      log.info('wrote %s', path)
  train_split = prepared.splits['train']
  task = prepared.task
  result = {
    'task': prepared.config.finetune.task,
    'init': prepared.config.finetune.init,
    'step': int(state.step),
    'train': {
      'examples': train_split.num_examples,
      'cut': train_split.rows.cut,
    },
    'metrics': [*task.metrics],
    **measured,
  }
  if training.active:
    path = os.path.join(training.workdir, RESULT)
    write_atomically(path, to_json(result, indent=2) + '\n')
  return result
