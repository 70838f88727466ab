# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The task that the section `finetune` of a config names, and its examples."""

import hashlib
import json

import numpy as np

from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.finetuning.task_data import CLASS_WEIGHTS
from gpt_jax.finetuning.transfer import TRANSFERS
from gpt_jax.spec import UsageError
from gpt_jax.tasks import metrics
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.known import TASKS
from gpt_jax.tasks.task import Example, Task


def task_of(config: Config) -> Task:
  """The task of a config, with the names of its classes."""
  tuned = config.get('finetune')
  if tuned is None:
    raise UsageError(
      '--config: has no section finetune; start it from '
      'configs/finetune/base.py, as configs/finetune/sst2.py does'
    )
  task = spec.build('finetune.task', tuned.task, TASKS)
  spec.build('finetune.transfer', tuned.transfer, TRANSFERS)
  spec.build('finetune.class_weights', tuned.class_weights, CLASS_WEIGHTS)
  for field, names in (
    ('too_long', ('cut', 'refuse')),
    ('select', ('last', 'best')),
    ('scores', ('standard', 'raw')),
  ):
    if tuned[field] not in names:
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: unknown; one of '
        + ', '.join(names)
      )
  for field, least in (
    ('freeze', 0),
    ('patience', 0),
    ('epochs', 0),
    ('warmup', 0),
    ('examples', 1),
    ('length', 1),
  ):
    if tuned[field] is not None and tuned[field] < least:
      raise UsageError(
        f'finetune.{field}={tuned[field]}: must be at least {least}'
      )
  if not task.paths.get('train') or not task.paths.get('dev'):
    raise UsageError(
      f'finetune.task={tuned.task!r}: needs a table to train on and one that '
      "judges: classification('train.tsv', 'dev.tsv', ...)"
    )
  task = tasks.with_labels(task)
  metrics.check(task, tuned.task)
  return task


def read(config: Config) -> tuple[Task, dict[str, list[Example]]]:
  """The task and the examples of each split; `finetune.examples` of the first.

  Fills in what tells a run's data from others: `finetune.labels` and `.data`.
  """
  task = task_of(config)
  tuned = config.finetune
  examples = {split: tasks.read(task, split) for split in task.paths}
  if tuned.examples and tuned.examples < len(examples['train']):
    order = np.random.default_rng(config.seed).permutation(
      len(examples['train'])
    )
    kept = order[: tuned.examples]
    examples['train'] = [examples['train'][i] for i in kept]
  tuned.labels = [*task.labels]
  tuned.data = digest(examples)
  return task, examples


def digest(examples: dict[str, list[Example]]) -> str:
  """The numbers of examples to train on and to judge by, and their hash."""
  found, sizes = hashlib.sha256(), []
  for split in ('train', 'dev'):
    for example in examples[split]:
      line = json.dumps([split, example.texts, example.label])
      found.update(line.encode())
    sizes.append(f'{len(examples[split])} {split}')
  return f'{", ".join(sizes)}, sha256 {found.hexdigest()[:16]}'
