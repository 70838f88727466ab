# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config with a section `finetune` to its model and its data."""

import math
import os
from typing import NamedTuple

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.finetuning import examples as task_examples
from gpt_jax.finetuning import (
  fields,
  sequences,
  spans,
  tags,
  task_rows,
  transfer,
)
from gpt_jax.finetuning.sequences import Special
from gpt_jax.finetuning.task_data import CLASS_WEIGHTS, Scale, Split
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tasks.task import Example, Task, read
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.models import Pretrained


class Prepared(NamedTuple):
  """A task, ready for a model."""

  config: Config
  task: Task
  tokenizer: Tokenizer
  splits: dict[str, Split]


def prepare(config: Config, init: Pretrained, workdir: str) -> Prepared:
  """Reads and encodes all splits, and resolves the config; writes nothing."""
  config_lib.check_ranges(config)
  config = config_lib.unlocked(config)
  fields.set_order(config, workdir)
  task, examples = task_examples.read(config)
  tokenizer = init.tokenizer or own_tokenizer(config, examples, workdir)
  return of_task(config, init, task, examples, tokenizer)


def of_task(
  config: Config,
  init: Pretrained,
  task: Task,
  examples: dict[str, list[Example]],
  tokenizer: Tokenizer,
) -> Prepared:
  """Encodes the examples of a task, and resolves its config.

  Args:
    config: not resolved; is changed.
    init: what is fine-tuned.
    task: see `examples.read`, as for the examples.
    examples: of each split.
    tokenizer: of the model.
  """
  tokens = {
    split: task_rows.encode(found, tokenizer)
    for split, found in examples.items()
  }
  fields.set_dropout(config)
  reads = fields.forms(init.model or config.model)
  fields.check_head(config, task, reads)
  config.finetune.sequences = _num_sequences(config, task, examples, reads)
  decoder_head = reads == 'extract' and task.form != 'target'
  new = sequences.NUM_SPECIAL if decoder_head else 0
  fields.set_model(config, init, tokenizer, new)
  fields.set_length(config, task, _longest(config, task, tokens, tokenizer))
  tuned, splits = config.finetune, {}
  for name, found in examples.items():
    split = _split(config, task, found, tokens[name], tokenizer)
    splits[name] = split
    log.info(
      '%s: %s rows of %d x %d tokens, %s of them cut',
      *(task.paths[name], f'{len(split.rows):,}', tuned.sequences),
      *(tuned.length, f'{split.rows.cut:,}'),
    )
  splits = _weighted(config, task, splits)
  # A pass has the rows of the first batch where they grow.
  rows = config_lib.ramp(config).rows(0)
  fields.set_schedule(config, math.ceil(len(splits['train'].rows) / rows))
  config.objective.name = fields.objective(config, task)
  config.finetune.init = transfer.init_name(config.finetune, init)
  resolved = config_lib.resolve(config)
  fields.check_layers(resolved)
  return Prepared(resolved, task, tokenizer, splits)


def encoded(prepared: Prepared, path: str) -> Split:
  """Another file of a task's columns, with labels or without."""
  task, tuned = prepared.task, prepared.config.finetune
  found = read(task, '', path)
  reads = fields.forms(prepared.config.model)
  if sequences.num_sequences(task, found, reads) != tuned.sequences:
    raise UsageError(f'{path}: has another number of answers than the task')
  tokenizer = prepared.tokenizer
  tokens = task_rows.encode(found, tokenizer)
  split = _split(prepared.config, task, found, tokens, tokenizer)
  return split._replace(scale=prepared.splits['train'].scale)


def _num_sequences(
  config: Config, task: Task, examples: dict[str, list[Example]], reads: str
) -> int:
  """How many sequences each example of all splits is."""
  name = config.finetune.task
  counts = {
    sequences.num_sequences(task, found, reads) for found in examples.values()
  }
  if len(counts) > 1:
    raise UsageError(
      f'finetune.task={name!r}: its splits have {sorted(counts)} answers a '
      'question; give all the same number'
    )
  (count,) = counts
  if task.form == 'choice' and len(task.labels) not in (0, count):
    raise UsageError(
      f'finetune.task={name!r}: labels names {len(task.labels)} answers, a '
      f'question has {count}; name as many'
    )
  return count


def special_of(config: Config, tokenizer: Tokenizer) -> Special:
  """What stands around texts."""
  found = tokenizer.special
  reads = fields.forms(config.model)
  if reads != 'extract':
    return Special.of_encoder(found, reads)
  return Special.after(config.finetune.vocab_size, found.prompt_start)


def _longest(
  config: Config,
  task: Task,
  tokens: dict[str, list[list[np.ndarray]]],
  tokenizer: Tokenizer,
) -> int:
  """Tokens of the longest row, nothing cut."""
  if task.form == 'target':
    both = (sum(map(len, t)) for found in tokens.values() for t in found)
    return max(both) + len(tokenizer.special.prompt_start)
  special = special_of(config, tokenizer)
  return max(sequences.longest(task, x, special) for x in tokens.values())


def _split(
  config: Config,
  task: Task,
  examples: list[Example],
  tokens: list[list[np.ndarray]],
  tokenizer: Tokenizer,
) -> Split:
  """The examples as rows of the config's length."""
  tuned = config.finetune
  options = {'length': tuned.length, 'too_long': tuned.too_long}
  if task.form == 'target':
    rows = task_rows.target_rows(
      examples, tokens, tokenizer=tokenizer, **options
    )
    return Split(task, rows)
  options['special'] = special_of(config, tokenizer)
  known = all(e.label is not None for e in examples)
  if task.form == 'spans':
    rows = spans.rows(task, examples, tokenizer, **options)
    return Split(task, rows, known, examples=examples)
  if task.form == 'tags':
    rows = tags.rows(examples, tokens, tokenizer, **options)
    return Split(task, rows, known, examples=examples)
  return Split(task, task_rows.rows(task, examples, tokens, **options), known)


def own_tokenizer(
  config: Config, examples: dict[str, list[Example]], workdir: str
) -> Tokenizer:
  """That of `tokenizer.name`, learned from the train split where it learns."""
  saved = os.path.join(workdir, 'tokenizer')
  if os.path.isdir(saved):
    return tokenizer_lib.load(saved)

  def documents(splits: list[str]) -> list[Document]:
    return [
      Document(f'{split}:{i}:{j}', text)
      for split in splits
      for i, example in enumerate(examples[split])
      for j, text in enumerate(example.texts)
      if text
    ]

  return tokenizer_lib.build(
    config.tokenizer.name, documents(['train']), documents([*examples])
  )


def _weighted(
  config: Config, task: Task, splits: dict[str, Split]
) -> dict[str, Split]:
  """The splits with what the train split's labels say."""
  labels = splits['train'].rows.labels
  scale, weights = Scale(), None
  if task.kind == 'regression' and config.finetune.scores == 'standard':
    scale = Scale.of(labels)
  text = config.finetune.class_weights
  build = spec.build('finetune.class_weights', text, CLASS_WEIGHTS)
  if build is not None:
    if task.kind != 'classification':
      raise UsageError(
        f'finetune.class_weights={text!r}: {task.form} has no classes; give '
        'none'
      )
    weights = build(labels, len(task.labels))
  return {
    name: split._replace(
      scale=scale, class_weights=weights if name == 'train' else None
    )
    for name, split in splits.items()
  }
