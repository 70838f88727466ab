# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a pre-trained model on a task, or on several, and predicts.

`finetune.tasks` lists several tasks (MT-DNN); `finetune.task` is handled as a
list of one, with the name ''. Each task is read and encoded as if it were the
only one. With several tasks, the classes, the hash of the examples and the
length of each are in a section of its own, `finetune.each.NAME`.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config
from gpt_jax.core.files.document import Document
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.optim.batch_ramp import MIXINGS
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import NoFileError, UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.run import Data, Run
from gpt_jax.opening.models import Pretrained
from gpt_jax.tasks.glue import GLUE
from gpt_jax.tasks.task import UNLABELLED, Example, Task, read
from gpt_jax.tuning import data as data_lib
from gpt_jax.tuning import ensemble, recipe, run, transfer
from gpt_jax.tuning.data import ShuffledRows, TaskEvaluation, TasksData
from gpt_jax.tuning.kinds import UNSCALED, ScoreScale, TaskSplit
from gpt_jax.tuning.objectives.cross_view import LABELLED
from gpt_jax.tuning.objectives.task import OF_TASKS, Tasks
from gpt_jax.tuning.recipe import Recipe, read_task
from gpt_jax.tuning.rows import EncodedExamples, encode, num_sequences
from gpt_jax.tuning.task_order import Mixing, TaskOrder

_FIELD = 'finetune.tasks'


class TaskSplits(NamedTuple):
  """An encoded task.

  Attributes:
    call: of `finetune.task`.
    head: the task of --init whose head it continues with; '': none.
    splits: by name.
  """

  call: str
  head: str
  recipe: Recipe
  splits: dict[str, TaskSplit]


@dataclasses.dataclass(frozen=True)
class TasksLesson(run.Lesson):
  """Examples with labels.

  Attributes:
    each: the tasks by name; a single task has the name ''.
    further: more splits of a single task to predict.
    average: workdirs of finished runs whose predictions are averaged.
  """

  config: Config
  tokenizer: Tokenizer
  each: dict[str, TaskSplits]
  further: Mapping[str, TaskSplit] = dataclasses.field(default_factory=dict)
  average: Sequence[str] = ()

  @property
  def alone(self) -> bool:
    """Whether there is a single task."""
    return '' in self.each

  @property
  def num_rows(self) -> int:
    return sum(len(one.splits['train']) for one in self.each.values())

  @property
  def criterion(self) -> str:
    """The first metric of the task; of several tasks the mean of theirs."""
    if not self.alone:
      return f'-{data_lib.AVERAGE}'
    return f'-{data_lib.DEV}{self.each[""].recipe.task.metrics[0]}'

  def data(self, parts: Parts, first: Callable[..., TrainState], workdir: str) -> Data:
    train = {n: one.splits['train'] for n, one in self.each.items()}
    if self.alone:
      train = _turns(self.each[''].splits)
      if len(train) == 1:
        return ShuffledRows(train[LABELLED], self.config.seed)
    sections = self.config.finetune.each.items()  # the order that a step has
    sizes = {name: section.examples for name, section in sections}
    order = _order(self.config, sizes)
    return TasksData(train, order, self.config.batch.size)

  def evaluation(self, parts: Parts) -> TaskEvaluation:
    dev = {name: one.splits['dev'] for name, one in self.each.items()}
    return TaskEvaluation(parts, dev)

  def params(self, source: Pretrained) -> Any:
    """The pre-trained parameters, with the heads that tasks continue with."""
    assert source.params is not None
    heads = _heads(self.each)
    return transfer.with_heads(source.params(), heads, alone=self.alone)

  def result(self, run: Run, state: TrainState) -> dict[str, Any]:
    """The metrics of all splits, whose predictions are written."""
    assert run.evaluation is not None
    evaluation: Any = run.evaluation(run.parts)
    figures, outputs = {}, {}
    for name, one in self.each.items():
      splits = {**one.splits, **self.further}
      figures[name], outputs[name] = data_lib.measured(run, state, evaluation, name, splits)
    tuned = self.config.finetune
    result = {'init': tuned.init, 'step': int(state.step)}
    if not self.alone:
      scores = [x['dev'][x['metrics'][0]] for x in figures.values()]
      average = sum(scores) / len(scores)
      return {**result, 'average': average, 'tasks': figures}
    result = {'task': tuned.task, **result, **figures['']}
    if layers := state.params.get('heads', {}).get('layers'):
      result['layers'] = _mix(layers)
    if self.average:
      result[ensemble.NAME] = ensemble.average(
        run.workdir,
        self.average,
        {**self.each[''].splits, **self.further},
        outputs[''],
        active=run.active,
      )
    return result


def _order(config: Config, sizes: Mapping[str, int]) -> TaskOrder:
  """The task of each step, and its examples."""
  text = config.finetune.mixing
  mixing: Mixing = spec.build('finetune.mixing', text, MIXINGS)
  return mixing.order(config, sizes)


def _turns(splits: Mapping[str, TaskSplit]) -> dict[str, TaskSplit]:
  """The splits that batches are drawn from: labelled and unlabelled text."""
  of = {LABELLED: 'train', UNLABELLED: UNLABELLED}
  return {turn: splits[name] for turn, name in of.items() if name in splits}


def finetune(
  config: Config,
  source: Pretrained,
  workdir: str,
  predict: str | None = None,
  average: Sequence[str] = (),
) -> dict[str, Any]:
  """Fine-tunes to the end, and predicts; returns the contents of result.json.

  `predict` is an additional table to predict; `average` are workdirs of
  finished runs, whose predictions are averaged with this one's.
  """
  watchdog.enter('start')
  config = one_as_task(config)
  if predict and config.get('finetune') and config.finetune.get('tasks'):
    raise UsageError(
      f"--predict={predict}: give the table as test='FILE' of its task: with "
      'several tasks it may be of any'
    )
  lesson = prepare(config, source, workdir)
  if average and not lesson.alone:
    raise UsageError(
      f'--average={",".join(average)}: averages runs on a single task; give '
      'one with --config.finetune.task'
    )
  if predict:
    further = _further(lesson, predict)
    lesson = dataclasses.replace(lesson, further=further)
  if average:
    ensemble.check(average, {**lesson.each[''].splits, **lesson.further})
    lesson = dataclasses.replace(lesson, average=average)
  return run.trained(lesson, source, workdir)


def prepare(config: Config, init: Pretrained, workdir: str) -> TasksLesson:
  """Reads and encodes all splits, and resolves the config; writes nothing."""
  config_lib.check_ranges(config)
  config = config_lib.unlocked(config)
  tuned = config.get('finetune')
  calls = named(tuned.tasks) if tuned and tuned.get('tasks') else {}
  if calls:
    _check_turns(config, 'several tasks')
  configs, read_tasks = {}, {}
  for name, call in calls.items() or [('', '')]:
    configs[name] = config_lib.unlocked(config)
    if name:
      configs[name].finetune.task = call
    task, examples = read_tasks[name] = read_task(configs[name])
    if name and task.kind not in OF_TASKS:
      raise UsageError(
        f'{_FIELD}: {call}: {task.kind} is not among several tasks; fine-tune '
        'on it alone, with finetune.task'
      )
  texts: dict[str, list[Example]] = {}
  for _, examples in read_tasks.values():
    for split, of_split in examples.items():
      texts.setdefault(split, []).extend(of_split)
  tokenizer = init.tokenizer or own_tokenizer(config, texts, workdir)
  model: Any = ConfigDict(init.model) if init.model else config.model
  tokenizer = opened(model, tokenizer, (example for split in texts.values() for example in split))
  each = {
    name: _encoded(configs[name], init, task, examples, tokenizer)
    for name, (task, examples) in read_tasks.items()
  }
  config = _several(config, init, each) if calls else _one(config, init, each[''])
  return TasksLesson(config, tokenizer, each)


def _encoded(
  config: Config,
  init: Pretrained,
  task: Task,
  examples: dict[str, list[Example]],
  tokenizer: Tokenizer,
) -> TaskSplits:
  """The rows of all splits of a task; `finetune.task` of the config is it."""
  tuned = config.finetune
  backward = recipe.reads_backward(tuned, task, init)
  tokens = {
    split: encode(of_split, tokenizer, backward=backward) for split, of_split in examples.items()
  }
  of_task = Recipe.of(config, init, task, examples, tokens, tokenizer, backward=backward)
  splits = {}
  for name, of_split in examples.items():
    split = _split(of_task, tuned.too_long, of_split, tokens[name], tokenizer)
    splits[name] = split
    log.info(
      '%s: %s rows of %d x %d tokens, %s of them cut',
      task.paths[name],
      f'{len(split):,}',
      of_task.tuned['sequences'],
      of_task.tuned['length'],
      f'{split.rows.cut:,}',
    )
  head = transfer.head_of(tuned.task, task.labels, tuned.scores, init)
  return TaskSplits(tuned.task, head, of_task, _weighted(tuned, task, splits))


def _one(config: Config, init: Pretrained, one: TaskSplits) -> Config:
  """The resolved config of a run on a single task."""
  tuned, by_turn, sections = one.recipe.tuned, _turns(one.splits), {}
  if len(by_turn) > 1:
    _check_turns(config, 'unlabelled text')
    sizes = {turn: len(split) for turn, split in by_turn.items()}
    sections = {turn: {'examples': size, 'tokens': tuned['length']} for turn, size in sizes.items()}
    a_pass = _order(config, sizes).steps_per_epoch
  else:
    # If batches grow, a pass is counted with the rows of the first one.
    rows = recipe.rows_at_first(config, tuned['length'], tuned['sequences'])
    a_pass = math.ceil(len(one.splits['train']) / rows)
  return recipe.finished(
    config,
    one.recipe.start,
    one.recipe.objective,
    a_pass=a_pass,
    each=sections,
    order=data_lib.ORDER,
    init=transfer.init_name(init, one.head),
    **tuned,
  )


def _several(config: Config, init: Pretrained, each: Mapping[str, TaskSplits]) -> Config:
  """The resolved config of a run on several tasks."""
  first = next(iter(each.values())).recipe
  sections = {
    name: {
      'task': one.call,
      'examples': len(one.splits['train']),
      'tokens': one.recipe.tuned['length'] * one.recipe.tuned['sequences'],
      'labels': one.recipe.tuned['labels'],
      'data': one.recipe.tuned['data'],
    }
    for name, one in each.items()
  }
  sizes = {name: section['examples'] for name, section in sections.items()}
  heads = _heads(each)
  pairs = [spec.Pair(name, one.recipe.objective) for name, one in each.items()]
  return recipe.finished(
    config,
    first.start,
    Tasks(*pairs),
    a_pass=_order(config, sizes).steps_per_epoch,
    each=sections,
    order=data_lib.ORDER,
    init=init.name + f', heads of {", ".join(heads)}' * bool(heads),
    task='',
    sequences=1,
    auxiliary=first.tuned['auxiliary'],
    length=max(section['tokens'] for section in sections.values()),
  )


def _split(
  of_task: Recipe,
  too_long: str,
  examples: list[Example],
  tokens: list[list[np.ndarray]],
  tokenizer: Tokenizer,
) -> TaskSplit:
  """The examples as rows."""
  split = TaskSplit.of(
    EncodedExamples(
      task=of_task.task,
      examples=examples,
      tokens=tokens,
      tokenizer=tokenizer,
      special=of_task.frame,
      length=of_task.tuned['length'],
      too_long=too_long,
    )
  )
  if reader := ModelChoices.of(of_task.start.model).input.reader:
    split = dataclasses.replace(split, characters=reader.table(tokenizer))
  return split


def opened(model: Any, tokenizer: Tokenizer, examples: Iterable[Example]) -> Tokenizer:
  """A tokenizer that knows all words of some examples, for their characters.

  The given one if the model does not read characters.
  """
  reader = ModelChoices.of(model).input.reader
  texts = (text for example in examples for text in example.texts)
  return reader.opened(tokenizer, texts) if reader else tokenizer


def own_tokenizer(config: Config, examples: dict[str, list[Example]], workdir: str) -> Tokenizer:
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
    config.tokenizer.name, documents(['train', UNLABELLED]), documents([*examples])
  )


def _weighted(tuned: Any, task: Task, splits: dict[str, TaskSplit]) -> dict[str, TaskSplit]:
  """Adds class weights and the scale of scores, from the train split."""
  labels = splits['train'].rows.labels
  scale, weights = UNSCALED, None
  if task.kind == 'regression' and tuned.scores == 'standard':
    scale = ScoreScale.of(labels)
  text = tuned.class_weights
  build = spec.build('finetune.class_weights', text, data_lib.CLASS_WEIGHTS)
  if build is not None:
    if task.kind != 'classification':
      raise UsageError(f'finetune.class_weights={text!r}: {task.form} has no classes; give none')
    weights = build(labels, len(task.labels))
  return {
    name: dataclasses.replace(
      split, scale=scale, class_weights=weights if name == 'train' else None
    )
    for name, split in splits.items()
  }


def _further(lesson: TasksLesson, path: str) -> dict[str, TaskSplit]:
  """An additional file of examples, by its name; labels are optional."""
  (_, _, of_task, splits), tuned = lesson.each[''], lesson.config.finetune
  name = os.path.basename(path).partition('.')[0]
  if name in (*splits, 'task', 'init', 'step', 'metrics', ensemble.NAME):
    raise UsageError(
      f'--predict={path}: {name} is the name of something else in {run.RESULT}; rename the file'
    )
  try:
    examples = read(of_task.task, '', path)
  except NoFileError as e:
    raise UsageError(f'{e}; give another with --predict') from e
  if num_sequences(of_task.task, examples, of_task.reads) != tuned.sequences:
    raise UsageError(
      f'--predict={path}: has another number of answers a question than the '
      'task; give a table with as many'
    )
  tokenizer = opened(of_task.start.model, lesson.tokenizer, examples)
  tokens = encode(examples, tokenizer, backward=tuned.backward)
  split = _split(of_task, tuned.too_long, examples, tokens, tokenizer)
  return {name: dataclasses.replace(split, scale=splits['train'].scale)}


def _heads(each: Mapping[str, TaskSplits]) -> list[str]:
  """The heads of --init that a run continues with.

  With several tasks those of the same names; else the one of the same task.
  """
  return [one.head for n, one in each.items() if one.head and n in ('', one.head)]


def in_folder(text: str, glue: str) -> str:
  """A list of tasks in which GLUE's tasks without arguments get folders.

  Args:
    text: such as `finetune.tasks`.
    glue: contains a folder for each task, with GLUE's names.
  """
  calls = []
  for call in spec.parse(_FIELD, text):
    if call.name in GLUE and not (call.args or call.kwargs):
      call = call._replace(args=(os.path.join(glue, GLUE[call.name].folder),))
    calls.append(spec.written(call))
  return ', '.join(calls)


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
  calls: dict[str, str] = {}
  for call in spec.parse(_FIELD, text):
    written = spec.written(call)
    if written in calls.values():
      raise UsageError(f'{_FIELD}: {written} is given twice; leave one out')
    same = [n for n in calls if n.rpartition('_')[0] == call.name]
    again = call.name in calls
    calls[f'{call.name}_{len(same) + 2}' if again else call.name] = written
  return calls


def _check_turns(config: Config, what: str) -> None:
  """Rejects options that are not supported where batches have several tasks.

  `what` names these.
  """
  tuned = config.finetune
  defaults = {
    **{'freeze': 0, 'unfreeze': 0, 'layer_decay': 1.0, 'segment': 0},
    **{'features': None, 'head': None},
  }
  for field, default in defaults.items():
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


def _mix(layers: Mapping[str, jax.Array]) -> dict[str, Any]:
  """ELMo's mix (Peters et al., 2018, equation 1), from the lowest layer up."""
  shares = jax.nn.softmax(layers['weights'])
  return {
    'shares': np.asarray(shares).round(4).tolist(),
    'scale': round(float(layers['scale'][0]), 4),
  }
