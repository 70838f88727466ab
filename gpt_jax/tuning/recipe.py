# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a run is tuned: what follows from its config, --init and its texts.

`Recipe.of` derives all of it for one task; `finished` writes a config once.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.nn.build import ModelChoices, without_mask_decoder
from gpt_jax.core.nn.params import divides
from gpt_jax.core.nn.transformer import model_class
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.choices import FEATURES, OBJECTIVES, VIEWS
from gpt_jax.core.spec import Call, NoFileError, UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.opening.models import Pretrained
from gpt_jax.tasks import metrics
from gpt_jax.tasks import task as tasks
from gpt_jax.tasks.reading import sentences
from gpt_jax.tasks.registry import TUNED
from gpt_jax.tasks.task import UNLABELLED, Example, Task
from gpt_jax.tuning.data import CLASS_WEIGHTS, limited
from gpt_jax.tuning.kinds import KINDS, TaskKind
from gpt_jax.tuning.objectives.task import OF_TASKS, Tasks
from gpt_jax.tuning.rows import Frame, Tokens, num_sequences
from gpt_jax.tuning.transfer import TRANSFERS

# The values of `finetune.head`.
HEADS = ('extract', 'concat', 'first', 'last', 'choice', 'spans', 'tokens', 'biattentive')


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
      "finetune.too_long='drop': a task predicts all of its examples; give cut or refuse"
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
  """The task and its splits; `finetune.examples` limits the train split."""
  tuned = config.get('finetune')
  try:
    task = task_of(config)
    examples = {
      split: sentences(path) if split == UNLABELLED else tasks.read(task, split)
      for split, path in task.paths.items()
    }
  except NoFileError as e:
    raise UsageError(f'finetune.task={tuned.task!r}: {e}; name another file in it') from e
  return task, {**examples, 'train': limited(config, examples['train'])}


def digest(examples: Mapping[str, list[Example]]) -> str:
  """The numbers of train, dev and unlabelled examples, and their hash."""
  hashed, sizes = hashlib.sha256(), []
  for split in ('train', 'dev', UNLABELLED):
    if split not in examples:
      continue
    for example in examples[split]:
      line = json.dumps([split, example.texts, example.label])
      hashed.update(line.encode())
    sizes.append(f'{len(examples[split])} {split}')
  return f'{", ".join(sizes)}, sha256 {hashed.hexdigest()[:16]}'


def forms(model: Any) -> str:
  """How a model's texts are joined: a key of `rows.FORMS`."""
  choices = ModelChoices.of(model)
  if model.num_encoder_layers:
    return 'apart'
  if choices.causal:
    return 'extract'
  if choices.separate:
    return 'concat'
  return model_class(model).cls_place


def frame_of(model: Any, tuned: Any, tokenizer: Tokenizer) -> Frame:
  """The special tokens around texts.

  Args:
    tuned: has `vocab_size`, the rows of the table without new tokens, and
      `views`.
  """
  special, reads = tokenizer.special, forms(model)
  if reads == 'concat':
    return Frame.of_words(special)
  if reads == 'apart':
    sources = tokenizer.sources
    return Frame((), (), (sources.eos_id,), reads, sources.special.pad_id)
  if reads != 'extract':
    alone = tuned.get('views', 'none') != 'none'
    return Frame.of_encoder(special, reads, optional=alone)
  return Frame.after(tuned['vocab_size'], special.prompt_start)


@dataclass(frozen=True)
class Start:
  """The model that a run starts with.

  Attributes:
    model: the section `model`, with room for new tokens.
    tokenizer_name: the call of the tokenizer.
    tuned: what the section `finetune` records of it.
  """

  model: ConfigDict
  tokenizer_name: str
  tuned: dict[str, Any]

  @classmethod
  def of(cls, config: Config, init: Pretrained, tokenizer: Tokenizer, new: int) -> 'Start':
    """The model of --init, or of the config, with rows for `new` tokens."""
    tuned = config.finetune
    model: Any = ConfigDict(init.model or config.model)
    if init.model is not None:
      num_rows = model.vocab_size
      if tokenizer.vocab_size > num_rows and ModelChoices.of(model).input.reader is None:
        raise UsageError(
          f'--init={init.name}: its tokenizer has {tokenizer.vocab_size} '
          f'tokens, its model {num_rows}; give the tokenizer that it was '
          'trained with'
        )
      model.vocab_size += new
      # The old backend suited other lengths, and perhaps other devices.
      model.attention_backend = 'auto'
    else:
      num_rows = tokenizer.vocab_size
      if model.vocab_size is None:
        model.vocab_size = num_rows + new
      elif model.vocab_size < num_rows + new:
        raise UsageError(
          f'model.vocab_size={model.vocab_size}: no room for the {new} new '
          f'tokens besides the {num_rows} of the tokenizer; give at least '
          f'{num_rows + new}, or leave it empty'
        )
    choice = ModelChoices.of(model).input
    if new and choice.embedding and not choice.reader:
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
          f'optim.{field}={config.optim[field]!r}: fine-tuning starts from --init; leave it empty'
        )
    pooler = tuned.get('pooler')
    return cls(
      model,
      init.tokenizer_name or config.tokenizer.name,
      {'vocab_size': num_rows, 'pooler': init.pooler if pooler is None else pooler},
    )


@dataclass(frozen=True)
class Recipe:
  """How one task is learned.

  Attributes:
    start: the model that it starts with.
    reads: how texts are joined, see `forms`.
    frame: the special tokens around them.
    objective: trains the task.
    tuned: what the section `finetune` records.
  """

  task: Task
  start: Start
  reads: str
  frame: Frame
  objective: Objective
  tuned: dict[str, Any]

  @classmethod
  def of(
    cls,
    config: Config,
    init: Pretrained,
    task: Task,
    examples: Mapping[str, list[Example]],
    tokens: Mapping[str, list[list[Tokens]]],
    tokenizer: Tokenizer,
    *,
    backward: bool,
  ) -> 'Recipe':
    """The recipe of a task from `read_task`; a wrong field is refused.

    `finetune.task` of the config is this task; `tokens` are those of the texts
    of the examples.
    """
    tuned, kind = config.finetune, KINDS[task.kind]
    model: Any = ConfigDict(init.model or config.model)
    reads, features = forms(model), tuned.features
    if features is None and reads == 'concat' and not tuned.get('tasks'):
      # ELMo: a mix of the layers of a frozen model (equation 1).
      features = f'weighted_sum({model.num_layers + 1})'
    auxiliary = check_head(tuned, task, reads, features or '')
    start = Start.of(config, init, tokenizer, kind.num_new_tokens(reads))
    sequences = _num_sequences(tuned.task, task, examples, reads)
    frame = frame_of(start.model, {**tuned, **start.tuned}, tokenizer)
    longest = max(kind.longest(task, x, frame) for x in tokens.values())
    context: Any = start.model.context_length
    length = tuned.length
    if length and tuned.tasks:  # each task has its own length
      length = min(length, context, 8 * math.ceil(longest / 8))
    length = length_of(length, longest, context, least=kind.least_length)
    fields = {
      **start.tuned,
      'backward': backward,
      'auxiliary': auxiliary,
      'dropout': dropout_of(tuned),
      'features': features,
      'sequences': sequences,
      'length': length,
      'labels': [*task.labels],
      'data': digest(examples),
    }
    objective = _objective(kind, task, reads, {**tuned, **fields})
    return cls(task, start, reads, frame, objective, fields)


def _num_sequences(call: str, task: Task, examples: Mapping[str, list[Example]], reads: str) -> int:
  """Number of sequences per example, the same in all splits."""
  counts = {num_sequences(task, split, reads) for split in examples.values()}
  if len(counts) > 1:
    raise UsageError(
      f'finetune.task={call!r}: its splits have {sorted(counts)} answers a '
      'question; give all the same number'
    )
  (count,) = counts
  if task.form == 'choice' and len(task.labels) not in (0, count):
    raise UsageError(
      f'finetune.task={call!r}: labels names {len(task.labels)} answers, a '
      f'question has {count}; name as many'
    )
  return count


def _objective(kind: TaskKind, task: Task, reads: str, tuned: Mapping[str, Any]) -> Objective:
  """The objective of a task, with the head that reads this model."""
  head = {
    'auxiliary': tuned['auxiliary'],
    'dropout': tuned['dropout'],
    'segment': tuned['segment'],
    'features': tuned['features'] or '',
  }
  if reads == 'apart':
    head['read'] = 'biattentive'
  elif reads != 'extract':
    head |= {'read': reads, 'pooler': tuned['pooler']}
  elif tuned['head'] == 'concat':
    head['read'] = 'concat'
  objective = kind.objective(task, tuned, head)
  if tuned['segment'] and not getattr(objective, 'segment', 0):
    raise UsageError(
      f'finetune.segment={tuned["segment"]}: cuts texts that get a class or a '
      f'score, and finetune.task={tuned["task"]!r} has another head; give 0'
    )
  return objective


def check_head(tuned: Any, task: Task, reads: str, features: str) -> float:
  """Checks `finetune.head` and features; returns the auxiliary loss's weight.

  Args:
    reads: the result of `forms`.
    features: `finetune.features`, or what stands for it.
  """
  kind = KINDS[task.kind]
  _check_views(tuned, task, features)
  if kind.head is None and reads != 'extract':
    raise UsageError(
      f'finetune.task={tuned.task!r}: predicts the next token, which an '
      'encoder sees; give another task, or a decoder with --init'
    )
  if kind.head is None and features:
    raise UsageError(
      f'finetune.features={features!r}: target(...) trains a language model; leave it empty'
    )
  if reads == 'concat' and kind.head == 'choice':
    raise UsageError(
      f'finetune.task={tuned.task!r}: scores each answer alone, and the head '
      'of LSTMs of two separate directions reads an example as a whole; give '
      'another task, or another model with --init'
    )
  if reads == 'apart':
    _check_apart(tuned, task)
  elif features and spec.parse('', features)[0].name == 'ends':
    raise UsageError(
      f'finetune.features={features!r}: is for the encoder of an '
      'encoder-decoder; give layer, concat or weighted_sum'
    )
  reads = 'biattentive' if reads == 'apart' else reads
  heads = [] if kind.head is None else [kind.head or reads]
  if heads == ['extract']:
    heads.append('concat')
  if tuned.head and tuned.head not in heads:
    exists = tuned.head in HEADS
    raise UsageError(
      f'finetune.head={tuned.head!r}: '
      + ('does not do this task with this model' if exists else 'unknown')
      + f'; leave it empty, or give {", ".join(heads) or "another task"}'
    )
  lm = reads == 'extract' and kind.auxiliary
  if features:
    spec.build('finetune.features', features, FEATURES)
    lm = False
  if tuned.auxiliary and not lm:
    raise UsageError(
      f'finetune.auxiliary={tuned.auxiliary}: the loss of a language model is '
      "a decoder's, for tasks that its extract token reads; give 0"
    )
  if tuned.auxiliary is None:
    return 0.5 if lm else 0.0
  return tuned.auxiliary


def _check_views(tuned: Any, task: Task, features: str) -> None:
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
  other = f'finetune.features={features!r}' if features else ''
  if task.kind != 'tags':
    other = f'finetune.task={tuned.task!r}'
  if other:
    raise UsageError(
      f'finetune.views={tuned.views!r}: trains taggers whole, and {other} is '
      "something else; give finetune.views='none'"
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


def dropout_of(tuned: Any) -> float:
  """`finetune.dropout`, or the task's own, if `task_dropout` has one."""
  for name in tuned.task_dropout:
    if name not in TUNED:
      raise UsageError(
        f'finetune.task_dropout.{name}: there is no such task; one of ' + ', '.join(TUNED)
      )
  name = spec.parse('finetune.task', tuned.task)[0].name
  return tuned.task_dropout.get(name, tuned.dropout)


def reads_backward(tuned: Any, task: Task, init: Pretrained) -> bool:
  """`finetune.backward`; empty: as --init reads texts."""
  backward = init.backward if tuned.backward is None else tuned.backward
  if backward and task.kind not in OF_TASKS:
    raise UsageError(
      f'finetune.task={tuned.task!r}: {init.name} reads texts from right to '
      'left; give a task with a class or score for each example, or a forward '
      'model'
    )
  return backward


def length_of(length: int | None, longest: int, context: int, *, least: int = 2) -> int:
  """Tokens of a row: `finetune.length`, or the longest's if they fit."""
  if length is None:
    length = min(context, 8 * math.ceil(longest / 8))
  if not least <= length <= context:
    raise UsageError(
      f"finetune.length={length}: must be from {least} to the model's context of {context}"
    )
  return length


def rows_at_first(config: Config, length: int, sequences: int) -> int:
  """Rows of the first batch, each of some sequences of a length."""
  config = config_lib.unlocked(config)
  config.finetune.update(length=length, sequences=sequences)
  return config_lib.ramp(config).rows(0)


# Arguments that came after runs were written: left out at their defaults, so
# that the text of a run stays as it was.
_LATER = ('z_loss', 'read', 'pooler', 'segment', 'features')


def written(objective: Objective) -> str:
  """The call of `objective.name` that builds an objective."""
  if isinstance(objective, Tasks):
    each = [f'{n}:{written(x)!r}' for n, x in objective.each.items()]
    return f'tasks({", ".join(each)})'
  kind: Any = type(objective)
  place = f'{kind.__module__}:{kind.__qualname__}'
  name = next(n for n, row in OBJECTIVES.rows.items() if row == place)
  arguments = {
    field.name: getattr(objective, field.name)
    for field in dataclasses.fields(kind)
    if field.name not in _LATER or getattr(objective, field.name) != field.default
  }
  return spec.written(Call(name, (), arguments))


def finished(
  config: Config,
  start: Start,
  objective: Objective,
  *,
  a_pass: int,
  num_steps: int | None = None,
  every: int | None = None,
  each: Mapping[str, Any] | None = None,
  **tuned: Any,
) -> Config:
  """The resolved config of a run: what was given, and all that follows.

  Args:
    config: as it was given; is not changed.
    objective: what is trained.
    a_pass: steps of a pass over the examples.
    num_steps: where `schedule.num_steps` is empty; None: those of
      `finetune.epochs` passes.
    every: steps between evaluations and between checkpoints, where those are
      empty; None: a pass.
    each: `finetune.each`.
    **tuned: further fields of the section `finetune`.
  """
  config = config_lib.unlocked(config)
  config.model, config.tokenizer.name = start.model, start.tokenizer_name
  section, schedule = config.finetune, config.schedule
  section.update({**start.tuned, **tuned})
  for name, of_task in (each or {}).items():
    section.each[name] = of_task
  config.objective.name = written(objective)
  if schedule.num_steps is None:
    with schedule.ignore_type():
      schedule.num_steps = num_steps or max(round(section.epochs * a_pass), 1)
  steps = schedule.num_steps
  if schedule.name is None:
    if not isinstance(steps, int):
      raise UsageError(
        f'schedule.num_steps={steps!r}: is not a number of steps, of which '
        'finetune.warmup is a share; give one, or schedule.name'
      )
    warmup = round(section.warmup * steps)
    schedule.name = f'linear(peak={section.peak}, warmup={warmup})'
  if section.unfreeze is None:
    section.unfreeze = a_pass
  for often in (config.eval, config.checkpoint):
    if often.every_steps is None:
      often.every_steps = every or a_pass
  if section.select == 'best' and config.checkpoint.keep_best < 1:
    config.checkpoint.keep_best = 1
  resolved = config_lib.resolve(config)
  _check_layers(resolved)
  return resolved


def _check_layers(config: Config) -> None:
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
