# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config with a section `finetune` to its model and its data."""

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.data.sources.sources import Document
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.finetuning import examples as task_examples
from gpt_jax.finetuning import task_rows, tasks
from gpt_jax.finetuning.class_weights import CLASS_WEIGHTS
from gpt_jax.finetuning.task_data import Scale, Split
from gpt_jax.finetuning.task_rows import NUM_SPECIAL, Special
from gpt_jax.finetuning.tasks import Example, Task
from gpt_jax.finetuning.transfer import TRANSFERS
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError


class Pretrained(NamedTuple):
  """What is fine-tuned.

  Attributes:
    name: how config.json calls it.
    model: fields of `Transformer`; None: those of the config.
    tokenizer_name: for config.json; '': that of the config.
    tokenizer: None: the config's, made of the task's texts where it is trained.
    params: reads the parameters; None: there are none.
  """

  name: str
  model: dict[str, Any] | None = None
  tokenizer_name: str = ''
  tokenizer: Tokenizer | None = None
  params: Callable[[], Any] | None = None


class Prepared(NamedTuple):
  """A task, ready for a model."""

  config: Config
  task: Task
  tokenizer: Tokenizer
  splits: dict[str, Split]


def prepare(config: Config, init: Pretrained, workdir: str) -> Prepared:
  """Reads and encodes all splits, and resolves the config; writes nothing.

  Raises:
    UsageError: the task, its data or the config make no sense.
  """
  config_lib.check_ranges(config)
  config = config_lib.unlocked(config)
  task, examples = task_examples.read(config)
  tuned = config.finetune
  tokenizer = init.tokenizer or _own_tokenizer(config, examples, workdir)
  tokens = {
    split: task_rows.encode(found, tokenizer)
    for split, found in examples.items()
  }
  counts = {task_rows.num_sequences(task, found) for found in examples.values()}
  if len(counts) > 1:
    raise UsageError(
      f'finetune.task={tuned.task!r}: its splits have {sorted(counts)} answers '
      'a question; give all the same number'
    )
  (tuned.sequences,) = counts
  if task.form == 'choice' and len(task.labels) not in (0, tuned.sequences):
    raise UsageError(
      f'finetune.task={tuned.task!r}: labels names {len(task.labels)} answers, '
      f'a question has {tuned.sequences}; name as many'
    )
  _set_model(config, init, task, tokenizer)
  context = config.model.context_length
  need = max(task_rows.longest(task, found) for found in tokens.values())
  if tuned.length is None:
    tuned.length = min(context, 8 * math.ceil(need / 8))
  least = 8 if task.form != 'target' else 2
  if not least <= tuned.length <= context:
    raise UsageError(
      f"finetune.length={tuned.length}: must be from {least} to the model's "
      f'context of {context}'
    )
  splits = {}
  for name, found in examples.items():
    split = _split(config, task, found, tokens[name], tokenizer)
    splits[name] = split
    log.info(
      '%s: %s examples of %d x %d tokens, %s of them cut',
      *(task.paths[name], f'{len(split.rows):,}', tuned.sequences),
      *(tuned.length, f'{split.rows.cut:,}'),
    )
  splits = _weighted(config, task, splits)
  _set_schedule(config, len(examples['train']))
  config.objective.name = _objective(config, task)
  resolved = config_lib.resolve(config)
  amount = spec.build('finetune.transfer', tuned.transfer, TRANSFERS)
  for field, count in (('freeze', tuned.freeze), ('transfer', amount or 0)):
    if count > resolved.model.num_layers:
      raise UsageError(
        f'finetune.{field}={tuned[field]}: the model has '
        f'{resolved.model.num_layers} layers'
      )
  return Prepared(resolved, task, tokenizer, splits)


def encoded(prepared: Prepared, path: str) -> Split:
  """Another file of a task's columns, with labels or without.

  Raises:
    UsageError: the file does not do.
  """
  task, tuned = prepared.task, prepared.config.finetune
  found = tasks.read(task, '', path)
  if task_rows.num_sequences(task, found) != tuned.sequences:
    raise UsageError(f'{path}: has another number of answers than the task')
  tokenizer = prepared.tokenizer
  tokens = task_rows.encode(found, tokenizer)
  split = _split(prepared.config, task, found, tokens, tokenizer)
  return split._replace(scale=prepared.splits['train'].scale)


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
      examples, tokens, eos_id=tokenizer.eos_id, **options
    )
    return Split(task, rows)
  special = Special.after(tuned.vocab_size)
  rows = task_rows.rows(task, examples, tokens, special=special, **options)
  return Split(task, rows, all(e.label is not None for e in examples))


def _own_tokenizer(
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


def _set_model(
  config: Config, init: Pretrained, task: Task, tokenizer: Tokenizer
) -> None:
  """The model's fields, with room for the new tokens."""
  tuned = config.finetune
  if init.model is not None:
    config.model = ConfigDict(init.model)
  model: Any = config.model
  new = 0 if task.form == 'target' else NUM_SPECIAL
  if init.model is not None:
    if tokenizer.vocab_size > model.vocab_size:
      raise UsageError(
        f'--init={init.name}: its tokenizer has {tokenizer.vocab_size} tokens, '
        f'its model {model.vocab_size}'
      )
    tuned.vocab_size = model.vocab_size
    model.vocab_size += new
    # The old one was for other lengths, and maybe for other devices.
    model.attention_backend = 'auto'
  else:
    tuned.vocab_size = tokenizer.vocab_size
    least = tokenizer.vocab_size + new
    if model.vocab_size is None:
      model.vocab_size = least
    elif model.vocab_size < least:
      raise UsageError(
        f'model.vocab_size={model.vocab_size}: no room for the {new} '
        f'new tokens besides the {tokenizer.vocab_size} of the tokenizer; give '
        f'at least {least}, or leave it empty'
      )
  if new and spec.parse('model.input', model.input)[0].name == 'adaptive':
    raise UsageError(
      f'model.input={model.input!r}: no room for the {new} new tokens: '
      "an adaptive table does not grow; fine-tune a model with input='tokens'"
    )
  for field, value in tuned.model.items():
    if value is not None:
      model[field] = value
  if model.num_encoder_layers:
    raise UsageError(f'--init={init.name}: only decoders are fine-tuned')
  if init.tokenizer_name:
    config.tokenizer.name = init.tokenizer_name
  tuned.init = init.name


def _set_schedule(config: Config, num_examples: int) -> None:
  """Steps, warm-up and cadences from passes."""
  tuned = config.finetune
  # Of the first batch where they grow.
  a_pass = math.ceil(num_examples / config_lib.ramp(config).rows(0))
  if config.schedule.num_steps is None:
    with config.schedule.ignore_type():
      config.schedule.num_steps = max(round(tuned.epochs * a_pass), 1)
  if config.schedule.name is None:
    steps = config.schedule.num_steps
    if not isinstance(steps, int):
      raise UsageError(
        f'schedule.num_steps={steps!r}: give schedule.name with it, or a number'
      )
    warmup = round(tuned.warmup * steps)
    config.schedule.name = f'linear(peak={tuned.peak}, warmup={warmup})'
  for section in (config.eval, config.checkpoint):
    if section.every_steps is None:
      section.every_steps = a_pass
  if tuned.select == 'best' and config.checkpoint.keep_best < 1:
    config.checkpoint.keep_best = 1


def _objective(config: Config, task: Task) -> str:
  """The call of `objective.name`."""
  tuned = config.finetune
  head = f'auxiliary={tuned.auxiliary}, dropout={tuned.dropout}'
  return {
    'classification': (
      f'classification(num_labels={len(task.labels)}, length={tuned.length}, '
      f'sequences={tuned.sequences}, {head})'
    ),
    'regression': (
      f'regression(length={tuned.length}, sequences={tuned.sequences}, {head})'
    ),
    'choice': (
      f'choice(answers={tuned.sequences}, length={tuned.length}, {head})'
    ),
    'target': f'target(length={tuned.length})',
  }[task.kind]


def _weighted(
  config: Config, task: Task, splits: dict[str, Split]
) -> dict[str, Split]:
  """The splits with what the train split's labels say."""
  labels = splits['train'].rows.labels
  scale, weights = Scale(), None
  if task.kind == 'regression':
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
