# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on several tasks at once: `finetune.tasks` (MT-DNN).

Each task is read and encoded as if it were alone. Its classes, the hash of its
examples and their length stand in a section of its own, `finetune.each.NAME`.
"""

import functools
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config, lengths
from gpt_jax.finetuning import examples as task_examples
from gpt_jax.finetuning import fields, predictions, setup, transfer
from gpt_jax.finetuning.plan import Plan, once
from gpt_jax.finetuning.setup import Prepared
from gpt_jax.finetuning.task_data import Split, TaskEvaluation
from gpt_jax.objectives.task import OF_TASKS
from gpt_jax.optim.train_state import TrainState
from gpt_jax.rows import pipeline
from gpt_jax.rows.taken import Taken, TakenAt
from gpt_jax.rows.task_order import TaskOrder
from gpt_jax.spec import UsageError
from gpt_jax.tasks.glue import GLUE
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.models import Pretrained
from gpt_jax.training.parts import Parts
from gpt_jax.training.training_run import TrainingRun

# The examples of several tasks, as a run consumes and is measured by them.


# What judges a run: the mean of each task's first metric.
AVERAGE = 'eval/validation/average'


class TasksData:
  """Batches of one task each; `task_order` says of which."""

  def __init__(
    self, splits: Mapping[str, Split], order: TaskOrder, batch_size: int
  ):
    """Makes the data of a run.

    Args:
      splits: of each task, what is trained on.
      order: of the steps.
      batch_size: rows of a batch.
    """
    self._splits, self._order = splits, order
    self._batch_size = batch_size
    # The last batch of a task's pass may have rows that do not count.
    self.rows_per_epoch = order.steps_per_epoch * batch_size

  def row_numbers(self, taken: Taken) -> list[int]:
    """Which examples of its task are the rows of a step, those that count."""
    return self._order.examples(self._order.step(self._number(taken)))

  def epochs(self, taken: Taken) -> dict[str, float]:
    """Passes before some rows of the run, over all tasks and over each."""
    return self._order.epochs(self._number(taken))

  def batch(self, number: int) -> pipeline.Batch:
    """All rows of a step, from 0; those that fill it up have weight 0."""
    step = self._order.step(number)
    found = self._order.examples(step)
    missing = self._batch_size - len(found)
    batch = self._splits[step.task].batch(
      np.array([*found, *[found[-1]] * missing])
    )
    counts = np.arange(self._batch_size) < len(found)
    return {**batch, 'weights': np.where(counts, batch['weights'], 0)}

  def batches(
    self, parts: Parts, start: int, rows: TakenAt
  ) -> Generator[pipeline.Batch]:
    """See `training_run.Data`."""

    def batch(step: int) -> pipeline.Batch:
      taken = rows(step)
      own = parts.host_rows(taken.count)
      whole = self.batch(self._number(taken))
      return {name: x[own] for name, x in whole.items()}

    stop = parts.config.schedule.num_steps
    return pipeline.prefetch(batch, start, stop)

  def _number(self, taken: Taken) -> int:
    """Of the step; all have as many rows."""
    return taken.offset // self._batch_size


class TasksEvaluation:
  """The dev splits of all tasks, measured whenever it is called."""

  def __init__(self, parts: Parts, *, splits: Mapping[str, Split]):
    """Compiles what the outputs of each task need."""
    self.of = {
      name: TaskEvaluation(parts, split=split, task=name)
      for name, split in splits.items()
    }
    self._judges = {n: split.task.metrics[0] for n, split in splits.items()}

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Measures as `eval/TASK/...`, and `AVERAGE`; see `training_run`."""
    values = {}
    for name, one in self.of.items():
      found = one.measured(params, stop)
      if found is None:
        return None
      values |= {f'eval/{name}/{key}': x for key, x in found.items()}
    judged = [values[f'eval/{n}/{key}'] for n, key in self._judges.items()]
    return {**values, AVERAGE: float(np.mean(judged))}

  def summary(self, values: dict[str, float]) -> str:
    """A line for people on each task, after one on all."""
    lines = [f'average {values[AVERAGE]:.4f} of {len(self.of)} tasks']
    lines += [f'{n}: {x.summary(values, n)}' for n, x in self.of.items()]
    return '\n  '.join(lines)


_FIELD = 'finetune.tasks'


class Several(NamedTuple):
  """Tasks, ready for one model.

  Attributes:
    config: of the run.
    tokenizer: of the model.
    each: by name, as it would be alone.
  """

  config: Config
  tokenizer: Tokenizer
  each: dict[str, Prepared]


def plan(
  config: Config, source: Pretrained, workdir: str, predict: str | None
) -> Plan:
  """Reads and encodes the tasks; see `finetune.finetune` for the arguments."""
  if predict:
    raise UsageError(
      f'--predict={predict}: which of the tasks is it of? Give the table as '
      "test='FILE' of its task"
    )
  several = prepare(config, source, workdir)
  config, read = several.config, source.params
  splits = {n: one.splits['train'] for n, one in several.each.items()}
  dev = {n: one.splits['dev'] for n, one in several.each.items()}
  evaluation = once(functools.partial(TasksEvaluation, splits=dev))

  def params() -> Any:
    assert read is not None
    same = _goes_on(several.each, source)
    return transfer.with_heads(read(), same, alone=False)

  return Plan(
    config,
    several.tokenizer,
    TasksData(splits, lengths.order_of_tasks(config), config.batch.size),
    sum(len(split.rows) for split in splits.values()),
    evaluation,
    f'-{AVERAGE}',
    params if read else None,
    functools.partial(finish, evaluation=evaluation, several=several),
  )


def finish(
  training: TrainingRun,
  state: TrainState,
  *,
  evaluation: Callable[[Parts], TasksEvaluation],
  several: Several,
) -> dict[str, Any]:
  """Predictions for all splits, and what result.json is to hold."""
  compiled, found = evaluation(training.parts), {}
  for name, one in several.each.items():
    splits = {n: s for n, s in one.splits.items() if n != 'train'}
    found[name] = predictions.measured(
      training,
      state,
      compiled.of[name],
      one.splits['train'],
      splits,
      folder=name,
    )
  judged = [x['dev'][x['metrics'][0]] for x in found.values()]
  tuned = several.config.finetune
  return {
    'init': tuned.init,
    'step': int(state.step),
    'average': sum(judged) / len(judged),
    'tasks': found,
  }


def prepare(config: Config, init: Pretrained, workdir: str) -> Several:
  """Reads and encodes all splits of all tasks; writes nothing."""
  config_lib.check_ranges(config)
  config = config_lib.unlocked(config)
  fields.set_order(config, workdir)
  calls = named(config.finetune.tasks)
  _check(config)
  alone, read = {}, {}
  for name, call in calls.items():
    alone[name] = config_lib.unlocked(config)
    alone[name].finetune.task = call
    read[name] = task_examples.read(alone[name])
    kind = read[name][0].kind
    if kind not in OF_TASKS:
      raise UsageError(
        f'{_FIELD}: {call}: {kind} is not among several tasks; fine-tune on '
        'it alone, with finetune.task'
      )
  texts: dict[str, list] = {}
  for _, found in read.values():
    for split, of_split in found.items():
      texts.setdefault(split, []).extend(of_split)
  tokenizer = init.tokenizer or setup.own_tokenizer(config, texts, workdir)
  each = {
    name: setup.of_task(alone[name], init, task, found, tokenizer)
    for name, (task, found) in read.items()
  }
  return Several(_whole(config, init, each), tokenizer, each)


def in_folder(text: str, glue: str) -> str:
  """A list of tasks, those of GLUE without arguments from their folders.

  Args:
    text: such as `finetune.tasks`.
    glue: holds a folder of each task, as GLUE calls them.
  """
  found = []
  for call in spec.parse(_FIELD, text):
    if call.name in GLUE and not (call.args or call.kwargs):
      call = call._replace(args=(os.path.join(glue, GLUE[call.name].folder),))
    found.append(spec.written(call))
  return ', '.join(found)


def wanted(config: Config) -> Config:
  """The config, with the only one of the tasks as the task."""
  tuned = config.get('finetune')
  if not tuned or not tuned.get('tasks'):
    return config
  calls = spec.parse(_FIELD, tuned.tasks)
  if len(calls) > 1:
    return config
  config = config_lib.unlocked(config)
  config.finetune.update(task=spec.written(calls[0]), tasks='')
  return config.lock()


def named(text: str) -> dict[str, str]:
  """The calls of a list of tasks by their names; a second one is `NAME_2`."""
  found: dict[str, str] = {}
  for call in spec.parse(_FIELD, text):
    written = spec.written(call)
    if written in found.values():
      raise UsageError(f'{_FIELD}: {written} is given twice; leave one out')
    same = [n for n in found if n.rpartition('_')[0] == call.name]
    again = call.name in found
    found[f'{call.name}_{len(same) + 2}' if again else call.name] = written
  return found


def _check(config: Config) -> None:
  """Refuses what is not done with several tasks."""
  tuned = config.finetune
  for field in ('freeze', 'features', 'head'):
    if tuned[field]:
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: is not done with several tasks; '
        f'leave it {"at 0" if field == "freeze" else "empty"}'
      )
  if config.optim.ema != 'none':
    raise UsageError(
      f'optim.ema={config.optim.ema!r}: no average of heads is kept that step '
      "by turns; give 'none'"
    )
  if config.optim.on_spike.startswith('rewind'):
    raise UsageError(
      f'optim.on_spike={config.optim.on_spike!r}: leaves out batches, and the '
      "order of tasks is one of steps; give 'skip' or 'stop'"
    )


def _goes_on(each: dict[str, Prepared], init: Pretrained) -> list[str]:
  """The tasks whose heads `init` has, under the same names."""
  found = {
    n: transfer.head_of(one.config.finetune, init) for n, one in each.items()
  }
  return [name for name, other in found.items() if name == other]


def _whole(
  config: Config, init: Pretrained, each: dict[str, Prepared]
) -> Config:
  """The run's config, resolved."""
  tuned, first = config.finetune, next(iter(each.values())).config
  config.model, config.tokenizer = first.model, first.tokenizer
  for field in ('pooler', 'vocab_size', 'auxiliary'):
    tuned[field] = first.finetune[field]
  tuned.task, tuned.sequences, tuned.init = '', 1, init.name
  if kept := _goes_on(each, init):
    tuned.init += f', heads of {", ".join(kept)}'
  for name, one in each.items():
    of_one, rows = one.config.finetune, one.splits['train'].rows
    tuned.each[name] = {
      'task': of_one.task,
      'examples': len(rows),
      'tokens': of_one.length * of_one.sequences,
      'labels': of_one.labels,
      'data': of_one.data,
    }
  tuned.length = max(section.tokens for section in tuned.each.values())
  objectives = [f'{n}:{x.config.objective.name!r}' for n, x in each.items()]
  config.objective.name = f'tasks({", ".join(objectives)})'
  fields.set_schedule(config, lengths.order_of_tasks(config).steps_per_epoch)
  resolved = config_lib.resolve(config)
  fields.check_layers(resolved)
  return resolved
