# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained model on a task, or on several, and predicts.

`finetune.tasks` lists several tasks (MT-DNN); `finetune.task` is handled as a
list of one, with the name ''. Each task is read and encoded as if it were the
only one. With several tasks, the classes, the hash of the examples and the
length of each are in a section of its own, `finetune.each.NAME`.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.config import Config, lengths
from gpt_jax.files.buckets import write_atomically
from gpt_jax.finetuning import ensemble, fields, transfer
from gpt_jax.finetuning.data import (
  AVERAGE,
  CLASS_WEIGHTS,
  ORDER,
  RESULT,
  TaskData,
  TaskEvaluation,
  TasksData,
  measured,
)
from gpt_jax.finetuning.kinds import KINDS, Scale, Split
from gpt_jax.finetuning.rows import Encoded, Frame, encode, num_sequences
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.characters import Characters
from gpt_jax.objectives.cross_view import LABELLED
from gpt_jax.objectives.task import OF_TASKS
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime import hosts, preemption, watchdog
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tasks.glue import GLUE
from gpt_jax.tasks.task import UNLABELLED, Example, Task, read
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import characters
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import fitting, loop, models
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import run as run_lib
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.metrics import to_json
from gpt_jax.training.models import Pretrained
from gpt_jax.training.parts import Parts
from gpt_jax.training.run import Data, Run

_FIELD = 'finetune.tasks'


class Prepared(NamedTuple):
  """An encoded task, and its config as if it were the only one."""

  config: Config
  task: Task
  splits: dict[str, Split]


class Plan(NamedTuple):
  """A run before anything is built or written.

  Attributes:
    config: resolved.
    each: the tasks by name; a single task has the name ''.
  """

  config: Config
  tokenizer: Tokenizer
  each: dict[str, Prepared]

  @property
  def alone(self) -> bool:
    """Whether there is a single task."""
    return '' in self.each

  def data(self) -> Data:
    """The training data."""
    train = {n: one.splits['train'] for n, one in self.each.items()}
    config = self.config
    if self.alone:
      train = turns(self.each[''].splits)
      if len(train) == 1:
        return TaskData(train[LABELLED], seed=config.seed)
    order = lengths.order_of_tasks(config)
    return TasksData(train, order, config.batch.size)


def turns(splits: dict[str, Split]) -> dict[str, Split]:
  """What the batches of a task are of: labelled and unlabelled text."""
  of = {LABELLED: 'train', UNLABELLED: UNLABELLED}
  return {turn: splits[name] for turn, name in of.items() if name in splits}


def finetune(
  config: Config,
  source: Pretrained,
  workdir: str,
  predict: str | None = None,
  average: Sequence[str] = (),
) -> dict[str, Any]:
  """Fine-tunes to the end, and predicts.

  Args:
    config: with a section `finetune`, not resolved.
    source: the pre-trained model.
    workdir: the run's folder.
    predict: an additional table to predict.
    average: workdirs of finished runs, whose predictions are averaged with this
      one's.

  Returns:
    The contents of result.json.
  """
  watchdog.enter('start')
  config = one_as_task(config)
  if predict and config.get('finetune') and config.finetune.get('tasks'):
    raise UsageError(
      f"--predict={predict}: give the table as test='FILE' of its task: with "
      'several tasks it may be of any'
    )
  plan = prepare(config, source, workdir)
  further = _further(plan, predict) if predict else {}
  if average and not plan.alone:
    raise UsageError(
      f'--average={",".join(average)}: averages runs on a single task; give '
      'one with --config.finetune.task'
    )
  if average:
    ensemble.check(average, {**plan.each[''].splits, **further})
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with (
    workdir_lib.locked(workdir),
    watchdog.watching(watchdog.deadlines(plan.config), stacks),
  ):
    training, state = start(plan, source, workdir)
    state = loop.fit(training, state)
    watchdog.enter('end')
    preemption.check()
    state = selected(training, state)
    assert training.evaluation is not None
    evaluation: Any = training.evaluation(training.parts)
    found, outputs = {}, {}
    for name, one in plan.each.items():
      splits = {**one.splits, **further}
      args = training, state, evaluation, name, splits
      found[name], outputs[name] = measured(*args)
    tuned = plan.config.finetune
    result = {'init': tuned.init, 'step': int(state.step)}
    if plan.alone:
      result = {'task': tuned.task, **result, **found['']}
      if layers := state.params.get('heads', {}).get('layers'):
        result['layers'] = _mix(layers)
      if average:
        splits = {**plan.each[''].splits, **further}
        result[ensemble.NAME] = ensemble.average(
          *(workdir, average, splits, outputs['']), active=training.active
        )
    else:
      judged = [x['dev'][x['metrics'][0]] for x in found.values()]
      result |= {'average': sum(judged) / len(judged), 'tasks': found}
    if training.active:
      path = os.path.join(workdir, RESULT)
      write_atomically(path, to_json(result, indent=2) + '\n')
    return result


def prepare(config: Config, init: Pretrained, workdir: str) -> Plan:
  """Reads and encodes all splits, and resolves the config; writes nothing."""
  config_lib.check_ranges(config)
  config = config_lib.unlocked(config)
  config.finetune.order = ORDER
  tuned = config.get('finetune')
  calls = named(tuned.tasks) if tuned and tuned.get('tasks') else {}
  if calls:
    _check_turns(config, 'several tasks')
  configs, found = {}, {}
  for name, call in calls.items() or [('', '')]:
    configs[name] = config_lib.unlocked(config)
    if name:
      configs[name].finetune.task = call
    found[name] = fields.read_task(configs[name])
    kind = found[name][0].kind
    if name and kind not in OF_TASKS:
      raise UsageError(
        f'{_FIELD}: {call}: {kind} is not among several tasks; fine-tune on '
        'it alone, with finetune.task'
      )
  texts: dict[str, list[Example]] = {}
  for _, examples in found.values():
    for split, of_split in examples.items():
      texts.setdefault(split, []).extend(of_split)
  tokenizer = init.tokenizer or own_tokenizer(config, texts, workdir)
  model: Any = ConfigDict(init.model) if init.model else config.model
  if _characters(model):
    examples = (example for found in texts.values() for example in found)
    tokenizer = opened(tokenizer, examples)
  each = {
    name: of_task(configs[name], init, task, examples, tokenizer)
    for name, (task, examples) in found.items()
  }
  whole = _whole(config, init, each) if calls else each[''].config
  return Plan(whole, tokenizer, each)


def of_task(
  config: Config,
  init: Pretrained,
  task: Task,
  examples: dict[str, list[Example]],
  tokenizer: Tokenizer,
) -> Prepared:
  """Encodes the examples of a task, and resolves its config.

  Args:
    config: not resolved; changed in place.
    init: the pre-trained model.
    task: from `fields.read_task`, as are the examples.
    examples: of each split.
    tokenizer: of the model.
  """
  fields.set_direction(config, task, init)
  tokens = {
    split: tokens_of(config, found, tokenizer)
    for split, found in examples.items()
  }
  fields.set_dropout(config)
  model: Any = ConfigDict(init.model) if init.model else config.model
  reads = fields.forms(model)
  alone = not config.finetune.get('tasks')
  if alone and reads == 'concat' and config.finetune.features is None:
    # ELMo: a mix of the layers of a frozen model (equation 1).
    config.finetune.features = f'weighted_sum({model.num_layers + 1})'
  fields.check_head(config, task, reads)
  config.finetune.sequences = _num_sequences(config, task, examples, reads)
  kind = KINDS[task.kind]
  fields.set_model(config, init, tokenizer, kind.num_new_tokens(reads))
  special = special_of(config, tokenizer)
  longest = max(kind.longest(task, x, special) for x in tokens.values())
  fields.set_length(config, task, longest)
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
  by_turn = turns(splits)
  if len(by_turn) > 1:
    _check_turns(config, 'unlabelled text')
    for turn, split in by_turn.items():
      tuned.each[turn] = {'examples': len(split.rows), 'tokens': tuned.length}
    a_pass = lengths.order_of_tasks(config).steps_per_epoch
  else:
    # If batches grow, a pass is counted with the rows of the first one.
    a_pass = math.ceil(
      len(splits['train'].rows) / config_lib.ramp(config).rows(0)
    )
  fields.set_schedule(config, a_pass)
  config.objective.name = fields.objective(config, task)
  config.finetune.init = transfer.init_name(config.finetune, init)
  resolved = config_lib.resolve(config)
  fields.check_layers(resolved)
  return Prepared(resolved, task, splits)


def _num_sequences(
  config: Config, task: Task, examples: dict[str, list[Example]], reads: str
) -> int:
  """Number of sequences per example, the same in all splits."""
  name = config.finetune.task
  counts = {num_sequences(task, found, reads) for found in examples.values()}
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


def tokens_of(
  config: Config, examples: list[Example], tokenizer: Tokenizer
) -> list[list[np.ndarray]]:
  """The tokens of each text of each example, in the order of reading."""
  found = encode(examples, tokenizer_lib.of_sources(tokenizer))
  if config.finetune.backward:
    found = [[text[::-1] for text in texts] for texts in found]
  return found


def special_of(config: Config, tokenizer: Tokenizer) -> Frame:
  """The special tokens around texts."""
  found = tokenizer.special
  reads = fields.forms(config.model)
  if reads == 'concat':
    return Frame.of_words(found)
  if reads == 'apart':
    sources = tokenizer_lib.of_sources(tokenizer)
    return Frame((), (), (sources.eos_id,), reads, sources.special.pad_id)
  if reads != 'extract':
    alone = config.finetune.get('views', 'none') != 'none'
    return Frame.of_encoder(found, reads, optional=alone)
  return Frame.after(config.finetune.vocab_size, found.prompt_start)


def _split(
  config: Config,
  task: Task,
  examples: list[Example],
  tokens: list[list[np.ndarray]],
  tokenizer: Tokenizer,
) -> Split:
  """The examples as rows of the config's length."""
  special, tuned = special_of(config, tokenizer), config.finetune
  encoded = Encoded(
    *(task, examples, tokens, tokenizer, special, tuned.length, tuned.too_long)
  )
  split = Split.of(encoded)
  if own := _characters(config.model):
    table = characters.table(tokenizer, own.num_characters, own.length)
    split = split._replace(characters=table)
  return split


def _characters(model: Any) -> Characters | None:
  return ModelChoices.of(model).input.characters


def opened(tokenizer: Tokenizer, examples: Iterable[Example]) -> Tokenizer:
  """A tokenizer that knows all words of some examples, for their characters."""
  texts = (text for example in examples for text in example.texts)
  return characters.opened(tokenizer, texts)


def own_tokenizer(
  config: Config, examples: dict[str, list[Example]], workdir: str
) -> Tokenizer:
  """The tokenizer of `tokenizer.name`, trained if needed.

  It learns from the texts of the train split, and from unlabelled ones.
  """
  saved = os.path.join(workdir, 'tokenizer')
  if os.path.isdir(saved):
    return tokenizer_lib.load(saved)

  def documents(splits: list[str]) -> list[Document]:
    return [
      Document(f'{split}:{i}:{j}', text)
      for split in splits
      if split in examples
      for i, example in enumerate(examples[split])
      for j, text in enumerate(example.texts)
      if text
    ]

  return tokenizer_lib.build(
    config.tokenizer.name,
    documents(['train', UNLABELLED]),
    documents([*examples]),
  )


def _weighted(
  config: Config, task: Task, splits: dict[str, Split]
) -> dict[str, Split]:
  """Adds class weights and the scale of scores, from the train split."""
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


def start(
  plan: Plan, source: Pretrained, workdir: str
) -> tuple[Run, TrainState]:
  """Opens the run; returns its newest state, or the initial one."""
  config, data = plan.config, plan.data()
  tuned = config.finetune
  workdir_lib.check_same_run(config, workdir)
  models.check_start(config, workdir)
  config, mesh = run_lib.check_before(config, workdir)
  with workdir_lib.untouched_if_refused(workdir):
    parts = parts_lib.build(config, mesh)
    fitting.check_state(parts)
    compiled: list[TaskEvaluation] = []

    def evaluation(parts: Parts) -> TaskEvaluation:
      """Compiled once, for the loop and for the final predictions."""
      if not compiled:
        dev = {n: one.splits['dev'] for n, one in plan.each.items()}
        compiled.append(TaskEvaluation(parts, dev))
      return compiled[0]

    def first() -> TrainState:
      if source.params is None:
        return models.first_state(parts, plan.tokenizer)
      heads = _heads(plan.each, source)
      params = transfer.with_heads(source.params(), heads, alone=plan.alone)
      amount = spec.build(
        'finetune.transfer', tuned.transfer, transfer.TRANSFERS
      )
      return transfer.init_state(parts, params, amount)

    train = [one.splits['train'] for one in plan.each.values()]
    judge = f'eval/validation/{train[0].task.metrics[0]}'
    examples, last = sum(len(x.rows) for x in train), config.schedule.num_steps
    epochs = parts.ramp.offset(last) / data.rows_per_epoch
    return run_lib.resume_or_start(
      parts,
      workdir,
      data,
      tokenizer=plan.tokenizer,
      first=first,
      base=source.folder,
      about=f'{config.objective.name} of {tuned.init}: '
      f'{examples:,} examples, {epochs:.2f} epochs, {last} steps; '
      f'transfer {tuned.transfer}, {tuned.freeze} layers frozen'
      + f', one more trained after every {tuned.unfreeze} steps'
      * bool(tuned.unfreeze),
      evaluation=evaluation,
      criterion=f'-{judge if plan.alone else AVERAGE}',
      patience=tuned.patience,
    )


def selected(training: Run, state: TrainState) -> TrainState:
  """The state for the predictions: the last, or the best saved one."""
  if training.parts.config.finetune.select == 'last':
    return state
  done = int(state.step)
  judged = dict(training.past(done).held_out)
  unsaved = training.parts.objective.unsaved
  checkpointer = Checkpointer(training.workdir, read_only=True, unsaved=unsaved)
  steps = [step for step in checkpointer.steps() if step in judged]
  best = min(steps, key=lambda step: (judged[step], step))
  if best != done:
    reader = training._replace(checkpointer=checkpointer)
    found = reader.restored(at_most=best, start=state)
    if found is not None and int(found.step) == best:
      log.info('predicting with step %d, the best', best)
      state = found
  checkpointer.close()
  return state


def _further(plan: Plan, path: str) -> dict[str, Split]:
  """An additional file of examples, by its name; labels are optional."""
  (config, task, splits), tuned = plan.each[''], plan.config.finetune
  name = os.path.basename(path).partition('.')[0]
  if name in (*splits, 'task', 'init', 'step', 'metrics', ensemble.NAME):
    raise UsageError(
      f'--predict={path}: {name} is the name of something else in '
      f'{RESULT}; rename the file'
    )
  found = read(task, '', path)
  reads = fields.forms(config.model)
  if num_sequences(task, found, reads) != tuned.sequences:
    raise UsageError(
      f'--predict={path}: has another number of answers a question than the '
      'task; give a table with as many'
    )
  tokenizer = plan.tokenizer
  if _characters(config.model):
    tokenizer = opened(tokenizer, found)
  tokens = tokens_of(config, found, tokenizer)
  split = _split(config, task, found, tokens, tokenizer)
  return {name: split._replace(scale=splits['train'].scale)}


def _heads(each: dict[str, Prepared], init: Pretrained) -> list[str]:
  """The heads of `init` that a run continues with.

  With several tasks those of the same names; else the one of the same task.
  """
  found = {
    n: transfer.head_of(one.config.finetune, init) for n, one in each.items()
  }
  return [other for n, other in found.items() if other and n in ('', other)]


def in_folder(text: str, glue: str) -> str:
  """A list of tasks in which GLUE's tasks without arguments get folders.

  Args:
    text: such as `finetune.tasks`.
    glue: contains a folder for each task, with GLUE's names.
  """
  found = []
  for call in spec.parse(_FIELD, text):
    if call.name in GLUE and not (call.args or call.kwargs):
      call = call._replace(args=(os.path.join(glue, GLUE[call.name].folder),))
    found.append(spec.written(call))
  return ', '.join(found)


def one_as_task(config: Config) -> Config:
  """The config, with a list of one task changed to `finetune.task`."""
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
  """The calls in a list of tasks by name; a second one gets `NAME_2`."""
  found: dict[str, str] = {}
  for call in spec.parse(_FIELD, text):
    written = spec.written(call)
    if written in found.values():
      raise UsageError(f'{_FIELD}: {written} is given twice; leave one out')
    same = [n for n in found if n.rpartition('_')[0] == call.name]
    again = call.name in found
    found[f'{call.name}_{len(same) + 2}' if again else call.name] = written
  return found


def _check_turns(config: Config, what: str) -> None:
  """Rejects options that are not supported where batches have several tasks.

  `what` names these.
  """
  tuned = config.finetune
  kept = {
    **{'freeze': 0, 'unfreeze': 0, 'layer_decay': 1.0, 'segment': 0},
    **{'features': None, 'head': None},
  }
  for field, default in kept.items():
    if tuned[field] not in (default, ''):
      raise UsageError(
        f'finetune.{field}={tuned[field]!r}: is not done with {what}; '
        f'leave it {"empty" if default is None else f"at {default}"}'
      )
  if config.optim.on_spike.startswith('rewind'):
    raise UsageError(
      f'optim.on_spike={config.optim.on_spike!r}: leaves batches out, and the '
      "order of tasks counts steps; give 'skip' or 'stop'"
    )


def _whole(
  config: Config, init: Pretrained, each: dict[str, Prepared]
) -> Config:
  """The resolved config of the whole run."""
  tuned, first = config.finetune, next(iter(each.values())).config
  config.model, config.tokenizer = first.model, first.tokenizer
  for field in ('pooler', 'vocab_size', 'auxiliary'):
    tuned[field] = first.finetune[field]
  tuned.task, tuned.sequences, tuned.init = '', 1, init.name
  if kept := _heads(each, init):
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


def _mix(layers: Mapping[str, jax.Array]) -> dict[str, Any]:
  """ELMo's mix (Peters et al., 2018, equation 1), from the lowest layer up."""
  shares = jax.nn.softmax(layers['weights'])
  return {
    'shares': np.asarray(shares).round(4).tolist(),
    'scale': round(float(layers['scale'][0]), 4),
  }
