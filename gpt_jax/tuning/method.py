# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Post-training: the calls that `finetune.task` can hold, and their runs.

A method is a frozen dataclass whose fields are the arguments of its call, by
TRL's names where there are such. `Method.prepare` turns its files into rows;
the loop, checkpoints and the rest are those of `train`: see `run`.
"""

import abc
import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core import spec
from gpt_jax.core.config import Config, defaults
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import hosts, watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import NoFileError, Table, UsageError
from gpt_jax.core.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import metrics, report
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.run import Data, Run
from gpt_jax.decoding import chat
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.hf_tokenizers import special_files
from gpt_jax.opening.models import Pretrained, open_model
from gpt_jax.reports import runs
from gpt_jax.tuning import recipe, rollouts, run
from gpt_jax.tuning.data import DEV, ORDER, MeansEvaluation, Row, ShuffledRows, limited
from gpt_jax.tuning.dialogues import Encoder, LearnedTokens
from gpt_jax.tuning.fields import FINETUNE
from gpt_jax.tuning.recipe import Start
from gpt_jax.tuning.rollouts import Rollouts, last_means

METHODS = Table({}, 'finetune.task')
# The arguments of methods that flags of the same names set.
FLAGS = ('train', 'dev', 'prompts', 'reward')
# The fields of the section `finetune` that all methods use.
COMMON = frozenset(
  [
    'task',
    'length',
    'too_long',
    'examples',
    'epochs',
    'peak',
    'warmup',
    'patience',
    'select',
    'freeze',
    'lora',
    *(f'model.{name}' for name in FINETUNE['model']),
  ]
)
# The most evaluations of a run by default; fewer passes have one each.
EVALUATIONS = 20


class Prepared(NamedTuple):
  """What a method trains on.

  Attributes:
    objective: what is trained.
    length: tokens of a row.
    train: the rows to train on, or how the model samples them.
    dev: the rows to evaluate on; None: nothing is evaluated.
    data: identifies the rows: their numbers and a hash.
    figures: of each split, for result.json.
    ends: the special tokens that end an answer in conversations.
    begin: adds to the rows what the first parameters give; called with the
      run's parts, what makes those parameters, and the workdir.
    judged: further figures of the dev split, for result.json; called with the
      run's parts, what it has learned, and the workdir.
  """

  objective: Objective
  length: int
  train: Any
  dev: Any
  data: str
  figures: dict[str, dict[str, Any]]
  ends: frozenset[int] = frozenset()
  begin: Callable[[Parts, Callable[[], Any], str], None] = lambda *_: None
  judged: Callable[[Parts, Any, str], dict[str, Any]] = lambda *_: {}


class Method(abc.ABC):
  """A method of post-training.

  Attributes:
    reads: the fields of the section `finetune` that it uses.
    criterion: the metric of the dev split that selects the best step; lower is
      better, or higher with a leading '-'.
    shown: metrics for people, of log lines and of the dev split.
    template: names the chat template: see `chat.choose`.
  """

  template: str
  reads: ClassVar[frozenset[str]]
  criterion: ClassVar[str] = 'loss'
  shown: ClassVar[tuple[str, ...]] = ('loss',)

  @abc.abstractmethod
  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """Reads and encodes the files, by a config with the model's fields."""


@dataclass(frozen=True)
class MethodLesson(run.Lesson):
  """The rows of a method."""

  config: Config
  method: Method
  prepared: Prepared
  tokenizer: Tokenizer

  @property
  def num_rows(self) -> int:
    return len(self.prepared.train)

  @property
  def shown(self) -> tuple[str, ...]:
    return self.method.shown

  @property
  def evaluates(self) -> bool:
    return self.prepared.dev is not None

  @property
  def criterion(self) -> str:
    better = self.method.criterion
    return better[: better.startswith('-')] + DEV + better.lstrip('-')

  def data(self, parts: Parts, first: Callable[..., TrainState], workdir: str) -> Data:
    train = self.prepared.train
    self.prepared.begin(parts, lambda: first(keep=True).eval_params, workdir)
    if isinstance(train, rollouts.Plan):
      return Rollouts(train, parts, self.tokenizer, first, workdir)
    return ShuffledRows(train, self.config.seed)

  def evaluation(self, parts: Parts) -> MeansEvaluation:
    return MeansEvaluation(parts, self.prepared.dev, self.shown)

  def result(self, run: Run, state: TrainState) -> dict[str, Any]:
    """The figures of all splits, at last and at first."""
    tuned, figures = self.config.finetune, self.prepared.figures
    result = {'task': tuned.task, 'init': tuned.init, 'step': int(state.step), **figures}
    if run.evaluation is None:
      result['train'] = {**figures['train'], **last_means(run.workdir)}
    else:
      values: Any = run.evaluation(run.parts)(state.eval_params)
      result['dev'] = {
        **figures['dev'],
        **{name.removeprefix(DEV): x for name, x in values.items()},
        **self.prepared.judged(run.parts, state.eval_params, run.workdir),
      }
    prefix = DEV if self.evaluates else ''
    result['first'] = _first_figures(run.workdir, self.shown, prefix)
    return result


def post_train(method: str, args: Any, *files: str) -> dict[str, Any]:
  """Trains to the end, evaluates, and draws the loss where one is evaluated.

  Args:
    method: the name of the method, and of its command.
    args: the values of the flags that `Flags.post_training` adds.
    *files: the flags that set files in the method's call.

  Returns:
    The contents of result.json.
  """
  if args.distributed:
    hosts.initialize(**args.config.hosts)
  with hosts.together():
    source = open_model(args.init, 'tune', '--init')
    paths = {name: getattr(args, name) for name in files}
    config = with_files(args.config, **paths)
    watchdog.enter('start')
    lesson = prepare(config, method, source)
    result = run.trained(lesson, source, args.workdir)
    draws = 'dev' in result and hosts.index() == 0
    if draws and (path := runs.loss_curves([args.workdir])):
      log.info('wrote %s', path)
  return result


def _first_figures(workdir: str, shown: Sequence[str], prefix: str) -> dict[str, float]:
  """The first of a run's figures for people, and their step."""
  for line in metrics.read(workdir):
    figures = {n: line[prefix + n] for n in shown if prefix + n in line}
    if figures:
      return {'step': line['step'], **figures}
  return {}


def told(result: dict[str, Any], text: str) -> str:
  """What a command prints: `text`, and the figures at first and at last."""
  first = {**result['first']}
  begin, end = first.pop('step', None), result['step']
  last = result['dev' if 'dev' in result else 'train']
  each = [
    f'{report.named(first, [name], decimals=4)} to {report.figure(last[name], decimals=4)}'
    for name in first
    if name in last
  ]
  if not each or begin == end:
    return text
  return f'{text}\nfrom step {begin} to step {end}: {", ".join(each)}'


def prepare(config: Config, command: str, source: Pretrained) -> MethodLesson:
  """Reads and encodes the files, and resolves the config; writes nothing."""
  config_lib.check_ranges(config)
  method = of_config(config, command)
  tokenizer = source.tokenizer or _own_tokenizer(config)
  start = Start.of(config, source, tokenizer, new=0)
  if not ModelChoices.of(start.model).causal:
    raise UsageError(
      f'--init={source.name}: holds an encoder (model.attention='
      f'{start.model.attention!r}), and what {command} trains continues a '
      'text; give a decoder'
    )
  config = config_lib.unlocked(config)
  config.model, config.finetune.sequences = start.model, 1
  folder = source.folder or source.name
  inside = os.path.join(folder, 'tokenizer')
  inside = inside if os.path.isdir(inside) else folder

  def template() -> ChatTemplate:
    try:
      return chat.choose(method.template, tokenizer, inside)
    except UsageError as e:
      raise UsageError(f'finetune.task={config.finetune.task!r}: {e}') from e

  encoder = Encoder(tokenizer, template)
  with naming_files(method):
    prepared = method.prepare(config, encoder)
  count, epochs = len(prepared.train), config.finetune.epochs
  rows = recipe.rows_at_first(config, prepared.length, 1)
  resolved = recipe.finished(
    config,
    start,
    prepared.objective,
    a_pass=math.ceil(count / rows),
    num_steps=steps_of(epochs, count, rows),
    every=steps_of(math.ceil(epochs / EVALUATIONS), count, rows),
    init=source.name,
    order=ORDER,
    sequences=1,
    labels=[],
    length=prepared.length,
    data=prepared.data,
  )
  if encoder.chats:
    tokenizer = special_files.with_template(tokenizer, encoder.template, prepared.ends)
    if never := prepared.ends - tokenizer.special.stop_ids:
      names = [n for n, i in tokenizer.special.names.items() if i in never]
      log.warning(
        'answers end with %s, at which generate and serve do not stop; take a '
        'template that ends them with the end of a document, such as zephyr',
        ', '.join(names),
      )
  return MethodLesson(resolved, method, prepared, tokenizer)


def steps_of(epochs: float, count: int, rows: int) -> int:
  """The steps that read `count` rows as often as `epochs` says.

  The last batch of a pass goes on in the next, so that few rows are not read
  more often than that.
  """
  return max(math.ceil(round(epochs * count / rows, 6)), 1)


def _own_tokenizer(config: Config) -> Tokenizer:
  """The tokenizer of the config, for --init=none."""
  name = config.tokenizer.name
  maker = tokenizer_lib.maker(name)
  if maker.learned:
    raise UsageError(
      f'tokenizer.name={name!r}: is trained on text, and post-training has '
      'none for that; give --init, or a tokenizer that exists'
    )
  return maker([])


@contextlib.contextmanager
def naming_files(method: Method) -> Iterator[None]:
  """Adds to the error of a missing file how another is named."""
  remedies = {}
  for field in dataclasses.fields(method):  # pyright: ignore
    name, path = field.name, getattr(method, field.name)
    remedy = f'as {name} in finetune.task'
    if name in FLAGS:
      remedy = f'with --{name}, or {remedy}'
    if path == '' and field.default is dataclasses.MISSING:
      raise UsageError(f"{name}='': names no file; give one {remedy}")
    remedies.setdefault(path, remedy)
  try:
    yield
  except NoFileError as e:
    path = str(e).removesuffix(': no such file')
    if path not in remedies:
      raise
    raise UsageError(f'{e}; give another {remedies[path]}') from e


def of_config(config: Config, command: str) -> Method:
  """The method of a config, for the command of the method's name.

  Checks that the fields of `finetune` that are set are ones that it uses.
  """
  tuned = config.get('finetune')
  if tuned is None:
    raise UsageError(
      f'--config: has no section finetune; start it from configs/finetune/{command}.py'
    )
  (call,) = spec.parse('finetune.task', tuned.task)[:1]
  if call.name != command:
    raise UsageError(
      f'finetune.task={tuned.task!r}: gpt-jax {command} needs '
      f'{command}(...) here; give that, or run gpt-jax '
      f'{call.name if call.name in METHODS else "finetune"}'
    )
  method = spec.build('finetune.task', tuned.task, METHODS)
  usual = config_lib.flatten(defaults.optional('finetune'))
  for name, value in config_lib.flatten(tuned).items():
    if name not in method.reads and value != usual.get(name):
      raise UsageError(
        f'finetune.{name}={value!r}: {command} does not use it; leave it at {usual.get(name)!r}'
      )
  return method


def with_files(config: Config, **paths: str | None) -> Config:
  """The config with other files in the call of its task.

  Args:
    **paths: by the argument of the method; None: as in the config.
  """
  replaced = {name: path for name, path in paths.items() if path is not None}
  if not replaced or config.get('finetune') is None:
    return config
  (call,) = spec.parse('finetune.task', config.finetune.task)[:1]
  names = [*paths]
  args = [replaced.pop(name, value) for name, value in zip(names, call.args, strict=False)]
  args += call.args[len(names) :]
  call = call._replace(args=tuple(args), kwargs={**call.kwargs, **replaced})
  config = config_lib.unlocked(config)
  config.finetune.task = spec.written(call)
  return config.lock()


# Rows of several methods.


def some(config: Config, split: str, rows: list[Row], path: str) -> list[Row]:
  """`finetune.examples` of the rows of the train split; refuses no rows."""
  if not rows:
    raise UsageError(f'{path}: has no rows; give another file')
  return limited(config, rows) if split == 'train' else rows


def keeps(config: Config, where: str, count: int, most: int) -> bool:
  """Whether a row of `count` tokens is kept: see `finetune.too_long`."""
  too_long = config.finetune.too_long
  if count > most and too_long == 'refuse':
    raise UsageError(
      f'{where}: has {count} tokens, of which {most} fit; raise '
      "finetune.length, or give finetune.too_long='cut' or 'drop'"
    )
  return count <= most or too_long == 'cut'


def left_out(reasons: Mapping[str, int]) -> str:
  """How many rows are left out, for the log: '3 left out (3 too long)'."""
  each = ', '.join(f'{count:,} {reason}' for reason, count in reasons.items())
  return f'{sum(reasons.values()):,} left out' + f' ({each})' * bool(each)


def digest(
  encoded: Mapping[str, Sequence[LearnedTokens]], sizes_of_rows: Sequence[int] = ()
) -> str:
  """The numbers of train and dev examples, and a hash of their tokens.

  Args:
    encoded: by split.
    sizes_of_rows: how many examples each row has, if it may have several.
  """
  hashed, sizes = hashlib.sha256(), []
  for split, sequences in encoded.items():
    for one in sequences:
      hashed.update(np.int64(len(one.ids)).tobytes())
      hashed.update(one.ids.tobytes() + one.learned.tobytes())
    sizes.append(f'{len(sequences)} {split}')
  hashed.update(np.array(sizes_of_rows, np.int64).tobytes())
  return f'{", ".join(sizes)}, sha256 {hashed.hexdigest()[:16]}'
