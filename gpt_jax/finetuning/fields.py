# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The config of fine-tuning: its task and examples, and derived fields."""

import hashlib
import json
import math
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from gpt_jax import spec
from gpt_jax.config import Config
from gpt_jax.finetuning.data import CLASS_WEIGHTS
from gpt_jax.finetuning.kinds import KINDS
from gpt_jax.finetuning.transfer import TRANSFERS
from gpt_jax.nn.build import ModelChoices, without_mask_decoder
from gpt_jax.nn.params import divides
from gpt_jax.objectives.choices import FEATURES, VIEWS
from gpt_jax.objectives.task import OF_TASKS
from gpt_jax.spec import UsageError
from gpt_jax.tasks import metrics
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.reading import sentences
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import UNLABELLED, Example, Task
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.models import Pretrained


def task_of(config: Config) -> Task:
  """The task of a config, with the names of its classes."""
  tuned = config.get('finetune')
  if tuned is None:
    raise UsageError(
      '--config: has no section finetune; start it from '
      'configs/finetune/base.py, as configs/finetune/sst2.py does'
    )
  task = spec.build('finetune.task', tuned.task, TUNED)
  spec.build('finetune.transfer', tuned.transfer, TRANSFERS)
  spec.build('finetune.class_weights', tuned.class_weights, CLASS_WEIGHTS)
  if tuned.too_long == 'drop':
    raise UsageError(
      "finetune.too_long='drop': a task predicts all of its examples; give cut "
      'or refuse'
    )
  if not task.paths.get('train') or not task.paths.get('dev'):
    raise UsageError(
      f'finetune.task={tuned.task!r}: needs a table to train on and one that '
      "judges: classification('train.tsv', 'dev.tsv', ...)"
    )
  task = tasks.with_labels(task)
  metrics.check(task, tuned.task)
  return task


def read_task(config: Config) -> tuple[Task, dict[str, list[Example]]]:
  """Reads the task and its splits; `finetune.examples` limits the train split.

  Sets `finetune.labels` and `finetune.data`, which identify the run's data.
  """
  task = task_of(config)
  tuned = config.finetune
  examples = {
    split: sentences(path) if split == UNLABELLED else tasks.read(task, split)
    for split, path in task.paths.items()
  }
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
  """The numbers of train, dev and unlabelled examples, and their hash."""
  found, sizes = hashlib.sha256(), []
  for split in ('train', 'dev', UNLABELLED):
    if split not in examples:
      continue
    for example in examples[split]:
      line = json.dumps([split, example.texts, example.label])
      found.update(line.encode())
    sizes.append(f'{len(examples[split])} {split}')
  return f'{", ".join(sizes)}, sha256 {found.hexdigest()[:16]}'


# Fields of the config that follow from its section `finetune`.


# The values of `finetune.head`.
HEADS = (
  *('extract', 'concat', 'first', 'last', 'choice', 'spans', 'tokens'),
  'biattentive',
)


def forms(model: Any) -> str:
  """How a model's texts are joined: a key of `finetuning.rows.FORMS`."""
  choices = ModelChoices.of(model)
  if model.num_encoder_layers:
    return 'apart'
  if choices.causal:
    return 'extract'
  if choices.separate:
    return 'concat'
  # Only XLNet has relative segments; its [CLS] is at the end.
  return 'last' if choices.position.segments else 'first'


def check_head(config: Config, task: Task, reads: str) -> None:
  """Checks `finetune.head` and features, and sets `finetune.auxiliary`.

  `config` is changed in place; `reads` is the result of `forms`.
  """
  tuned, kind = config.finetune, KINDS[task.kind]
  _check_views(tuned, task)
  if kind.head is None and reads != 'extract':
    raise UsageError(
      f'finetune.task={tuned.task!r}: predicts the next token, which an '
      'encoder sees; give another task, or a decoder with --init'
    )
  if kind.head is None and tuned.features:
    raise UsageError(
      f'finetune.features={tuned.features!r}: target(...) trains a language '
      'model; leave it empty'
    )
  if reads == 'concat' and kind.head == 'choice':
    raise UsageError(
      f'finetune.task={tuned.task!r}: scores each answer alone, and the head '
      'of LSTMs of two separate directions reads an example as a whole; give '
      'another task, or another model with --init'
    )
  if reads == 'apart':
    _check_apart(tuned, task)
  elif tuned.features and spec.parse('', tuned.features)[0].name == 'ends':
    raise UsageError(
      f'finetune.features={tuned.features!r}: is for the encoder of an '
      'encoder-decoder; give layer, concat or weighted_sum'
    )
  reads = 'biattentive' if reads == 'apart' else reads
  wanted = [] if kind.head is None else [kind.head or reads]
  if wanted == ['extract']:
    wanted.append('concat')
  if tuned.head and tuned.head not in wanted:
    known = tuned.head in HEADS
    raise UsageError(
      f'finetune.head={tuned.head!r}: '
      + ('does not do this task with this model' if known else 'unknown')
      + f'; leave it empty, or give {", ".join(wanted) or "another task"}'
    )
  lm = reads == 'extract' and kind.auxiliary
  if tuned.features:
    spec.build('finetune.features', tuned.features, FEATURES)
    lm = False
  if tuned.auxiliary is None:
    tuned.auxiliary = 0.5 if lm else 0.0
  elif tuned.auxiliary and not lm:
    raise UsageError(
      f'finetune.auxiliary={tuned.auxiliary}: the loss of a language model is '
      "a decoder's, for tasks that its extract token reads; give 0"
    )


def _check_views(tuned: Any, task: Task) -> None:
  """Checks that cross-view training has tags, and unlabelled text has it."""
  views = spec.build('finetune.views', tuned.views, VIEWS)
  if not views:
    if UNLABELLED in task.paths:
      raise UsageError(
        f'finetune.task={tuned.task!r}: unlabelled text is for cross-view '
        "training alone; give finetune.views='cross_view', as configs/cvt.py "
        'does, or leave it out'
      )
    return
  for field, wrong in (
    ('task', task.kind != 'tags'),
    ('features', tuned.features),
  ):
    if wrong:
      raise UsageError(
        f'finetune.views={tuned.views!r}: trains taggers whole, and '
        f'finetune.{field}={tuned[field]!r} is something else; give '
        "finetune.views='none'"
      )


def _check_apart(tuned: Any, task: Task) -> None:
  """Checks that an encoder-decoder's encoder is read as features."""
  if tuned.features not in ('ends', 'ends()'):
    raise UsageError(
      f'finetune.features={tuned.features!r}: --init is an encoder-decoder, '
      "whose encoder is frozen and read as vectors of words; give 'ends', or a "
      'decoder or an encoder with --init'
    )
  if task.kind not in ('classification', 'regression'):
    raise UsageError(
      f'finetune.task={tuned.task!r}: the encoder of an encoder-decoder is '
      'read for a class or a score of one text or two; give such a task'
    )
  for field, default in (('tasks', ''), ('freeze', 0), ('lora', 'none')):
    if tuned[field] != default:
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: does not work with the frozen '
        f'encoder of an encoder-decoder; set it to {default!r}'
      )


def set_dropout(config: Config) -> None:
  """Sets `finetune.dropout` to the task's own, if `task_dropout` has one."""
  tuned = config.finetune
  for name in tuned.task_dropout:
    if name not in TUNED:
      raise UsageError(
        f'finetune.task_dropout.{name}: there is no such task; one of '
        + ', '.join(TUNED)
      )
  name = spec.parse('finetune.task', tuned.task)[0].name
  tuned.dropout = tuned.task_dropout.get(name, tuned.dropout)


def set_direction(config: Config, task: Task, init: Pretrained) -> None:
  """Sets `finetune.backward`."""
  tuned = config.finetune
  if tuned.backward is None:
    tuned.backward = init.backward
  if tuned.backward and task.kind not in OF_TASKS:
    raise UsageError(
      f'finetune.task={tuned.task!r}: {init.name} reads texts from right to '
      'left; give a task with a class or score for each example, or a forward '
      'model'
    )


def set_model(
  config: Config, init: Pretrained, tokenizer: Tokenizer, new: int
) -> None:
  """Sets the model's fields, with room for `new` tokens."""
  tuned = config.finetune
  if init.model is not None:
    config.model = ConfigDict(init.model)
  model: Any = config.model
  if init.model is not None:
    _grow(config, init, tokenizer, new)
  else:
    _make_room(config, tokenizer, new)
  if new and ModelChoices.of(model).input.clusters:
    raise UsageError(
      f'model.input={model.input!r}: no room for the {new} new tokens: '
      "an adaptive table does not grow; fine-tune a model with input='tokens'"
    )
  model.position = without_mask_decoder(model.position)
  for field, value in tuned.model.items():
    if value is not None:
      model[field] = value
  for field in ('start', 'drawn', 'vectors'):
    # A model from scratch can start from word vectors.
    scratch = init.model is None and field == 'vectors'
    if config.optim[field] and not scratch:
      raise UsageError(
        f'optim.{field}={config.optim[field]!r}: fine-tuning starts from '
        '--init; leave it empty'
      )
  if init.tokenizer_name:
    config.tokenizer.name = init.tokenizer_name
  tuned.init = init.name
  if tuned.get('pooler') is None:
    tuned.pooler = init.pooler


def _grow(
  config: Config, init: Pretrained, tokenizer: Tokenizer, new: int
) -> None:
  """Appends `new` rows to the token table of a pre-trained model."""
  model: Any = config.model
  reads_words = ModelChoices.of(model).input.characters is not None
  if tokenizer.vocab_size > model.vocab_size and not reads_words:
    raise UsageError(
      f'--init={init.name}: its tokenizer has {tokenizer.vocab_size} tokens, '
      f'its model {model.vocab_size}; give the tokenizer that it was trained '
      'with'
    )
  config.finetune.vocab_size = model.vocab_size
  model.vocab_size += new
  # The old backend suited other lengths, and perhaps other devices.
  model.attention_backend = 'auto'


def _make_room(config: Config, tokenizer: Tokenizer, new: int) -> None:
  """Sets the table's size for a model that starts from scratch."""
  model: Any = config.model
  config.finetune.vocab_size = tokenizer.vocab_size
  least = tokenizer.vocab_size + new
  if model.vocab_size is None:
    model.vocab_size = least
  elif model.vocab_size < least:
    raise UsageError(
      f'model.vocab_size={model.vocab_size}: no room for the {new} '
      f'new tokens besides the {tokenizer.vocab_size} of the tokenizer; give '
      f'at least {least}, or leave it empty'
    )


def set_length(config: Config, task: Task, longest: int) -> None:
  """Sets the tokens of a row: the longest sequence's, if they fit."""
  tuned, context = config.finetune, config.model.context_length
  whole = min(context, 8 * math.ceil(longest / 8))
  if tuned.length is None:
    tuned.length = whole
  elif tuned.tasks:  # each task has its own length
    tuned.length = min(tuned.length, whole)
  least = KINDS[task.kind].least_length
  if not least <= tuned.length <= context:
    raise UsageError(
      f"finetune.length={tuned.length}: must be from {least} to the model's "
      f'context of {context}'
    )


def check_layers(config: Config) -> None:
  """Checks that the model has the layers to be treated separately."""
  tuned, num_layers = config.finetune, config.model.num_layers
  amount = spec.build('finetune.transfer', tuned.transfer, TRANSFERS)
  for field, count in (('freeze', tuned.freeze), ('transfer', amount or 0)):
    if count > num_layers:
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: the model has {num_layers} '
        f'layers; give at most {num_layers}'
      )
    if not divides(config.model, count):
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: layers above share parameters '
        f'with the lowest {count} (model.share={config.model.share!r}); '
        'take whole groups, all layers or none'
      )
  alone = all(divides(config.model, count) for count in range(num_layers))
  for field, default in (('layer_decay', 1.0), ('unfreeze', 0)):
    if tuned[field] != default and not alone:
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: layers share parameters '
        f'(model.share={config.model.share!r}), so none is treated alone; give '
        f'{default}'
      )
  last, steps = tuned.unfreeze * (num_layers + 1), config.schedule.num_steps
  if last >= steps:
    raise UsageError(
      f'finetune.unfreeze={tuned.unfreeze}: the embeddings would be trained '
      f'after {last} steps, and schedule.num_steps={steps}; give at most '
      f'{(steps - 1) // (num_layers + 1)}, or more steps'
    )


def set_schedule(config: Config, a_pass: int) -> None:
  """Converts lengths in passes, of `a_pass` steps each, to steps."""
  tuned = config.finetune
  if config.schedule.num_steps is None:
    with config.schedule.ignore_type():
      config.schedule.num_steps = max(round(tuned.epochs * a_pass), 1)
  if config.schedule.name is None:
    steps = config.schedule.num_steps
    if not isinstance(steps, int):
      raise UsageError(
        f'schedule.num_steps={steps!r}: is not a number of steps, of which '
        'finetune.warmup is a share; give one, or schedule.name'
      )
    warmup = round(tuned.warmup * steps)
    config.schedule.name = f'linear(peak={tuned.peak}, warmup={warmup})'
  if tuned.unfreeze is None:
    tuned.unfreeze = a_pass
  for section in (config.eval, config.checkpoint):
    if section.every_steps is None:
      section.every_steps = a_pass
  if tuned.select == 'best' and config.checkpoint.keep_best < 1:
    config.checkpoint.keep_best = 1


def objective(config: Config, task: Task) -> str:
  """The call of `objective.name`."""
  tuned = config.finetune
  more = f', features={tuned.features!r}' * bool(tuned.features)
  head = f'auxiliary={tuned.auxiliary}, dropout={tuned.dropout}'
  # Left out if default, so that the text equals that of older runs.
  reads = forms(config.model)
  if reads == 'apart':
    head += ", read='biattentive'"
  elif reads != 'extract':
    head += f', read={reads!r}'
    head += f', pooler={tuned.pooler!r}' * (tuned.pooler != 'tanh')
  elif tuned.head == 'concat':
    head += ", read='concat'"
  head += f', segment={tuned.segment}' * (tuned.segment > 0)
  head += more
  call = KINDS[task.kind].objective(task, tuned, head, more)
  if tuned.segment and 'segment=' not in call:
    raise UsageError(
      f'finetune.segment={tuned.segment}: cuts texts that get a class or a '
      f'score, and finetune.task={tuned.task!r} has another head; give 0'
    )
  return call
