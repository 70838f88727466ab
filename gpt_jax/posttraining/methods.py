# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The methods of post-training: the calls that `finetune.task` can hold.

A method is a frozen dataclass whose fields are the arguments of its call, by
TRL's names where there are such. `prepare` turns its files into rows; the loop,
checkpoints and the rest are those of `train`: see `run`.
"""

import abc
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config, defaults
from gpt_jax.objectives.preference import LossType
from gpt_jax.posttraining import preferences, records
from gpt_jax.posttraining.dialogues import Encoded, Encoder, LossOn, fitted
from gpt_jax.posttraining.packing import TokenRows
from gpt_jax.posttraining.preferences import PairRows, Ranked, RankedRows
from gpt_jax.posttraining.records import Example
from gpt_jax.ranges import Fraction, Inside, Positive, Weight
from gpt_jax.rows.row_order import Batch
from gpt_jax.runtime import hosts
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training.parts import Parts

Row = TypeVar('Row')


class Split(Protocol):
  """The rows of a split, from which batches are made."""

  def __len__(self) -> int:
    """Number of rows."""
    ...

  def batch(self, numbers: Sequence[int]) -> Batch:
    """The arrays of rows, among them `weights` [rows, ...]."""
    ...


class Prepared(NamedTuple):
  """What a method trains on.

  Attributes:
    objective: the call of `objective.name`.
    train: the rows to train on.
    dev: the rows to evaluate on.
    data: identifies the rows: their numbers and a hash.
    figures: of each split, for result.json.
    template: the chat template, if there are conversations.
    ends: the special tokens that end an answer in these.
  """

  objective: str
  train: Split
  dev: Split
  data: str
  figures: dict[str, dict[str, Any]]
  template: ChatTemplate | None = None
  ends: frozenset[int] = frozenset()


class Method(abc.ABC):
  """A method of post-training.

  Attributes:
    reads: the fields of the section `finetune` that it uses.
    criterion: the metric of the dev split that selects the best step; lower is
      better, or higher with a leading '-'.
    shown: metrics of the dev split in the log.
  """

  reads: ClassVar[frozenset[str]]
  criterion: ClassVar[str] = 'loss'
  shown: ClassVar[tuple[str, ...]] = ('loss',)

  @abc.abstractmethod
  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Reads and encodes the files; sets `finetune.length` if it is empty.

    Args:
      config: not resolved, but with the model's fields.
      tokenizer: of the model.
      template: finds the chat template, or raises if there is none.
    """

  def begin(  # noqa: B027 (most have rows that are complete)
    self,
    prepared: Prepared,
    parts: Parts,
    params: Callable[[], Any],
    workdir: str,
  ) -> None:
    """Adds to the rows what the first parameters give; by default nothing.

    Args:
      prepared: from `prepare`.
      parts: of the run.
      params: makes the parameters that a new run starts from.
      workdir: the run's folder.
    """

  def judged(
    self, prepared: Prepared, parts: Parts, params: Any, workdir: str
  ) -> dict[str, Any]:
    """Further figures of the dev split, for result.json; by default none.

    Args:
      prepared: from `prepare`.
      parts: of the run.
      params: what the run has learned.
      workdir: the run's folder, where predictions are written.
    """
    del prepared, parts, params, workdir
    return {}

  @property
  def template_name(self) -> str:
    """The argument `template`: see `chat.choose`."""
    return getattr(self, 'template', '')


# The fields of the section `finetune` that all methods use.
_COMMON = frozenset(
  [
    *('task', 'length', 'too_long', 'examples', 'epochs', 'peak', 'warmup'),
    *('patience', 'select', 'freeze', 'lora'),
    *(f'model.{name}' for name in defaults.FINETUNE['model']),
  ]
)


@dataclass(frozen=True)
class Sft(Method):
  """Supervised fine-tuning on dialogues, instructions or texts.

  Attributes:
    train: a file of examples: see `records`.
    dev: a file of examples to evaluate on.
    packing: whether several examples share a row, without seeing each other.
    loss_on: which tokens are learned: see `dialogues.Encoder.encode`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  train: str
  dev: str
  packing: bool = True
  loss_on: LossOn = 'assistant'
  template: str = ''
  reads = _COMMON
  shown = ('loss', 'perplexity', 'mean_token_accuracy')

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Encodes all examples, and makes rows of them."""
    tuned, encoder = config.finetune, Encoder(tokenizer, template)
    paths = {'train': self.train, 'dev': self.dev}
    found = {
      split: limited(config, split, [*records.examples(path)], path)
      for split, path in paths.items()
    }
    encoded = {
      split: [encoder.encode(example, self.loss_on) for example in examples]
      for split, examples in found.items()
    }
    every = [one for split in encoded.values() for one in split]
    set_length(config, max(len(one.ids) for one in every) - 1)
    pad = tokenizer.special.pad_id
    splits, figures = {}, {}
    for split, path in paths.items():
      rows = fit(config, path, found[split], encoded[split])
      made = TokenRows(rows.kept, tuned.length, pad, packed=self.packing)
      splits[split], figures[split] = made, rows.figures
      log.info(
        '%s: %s in %s rows of %d tokens; %s learned, %d examples cut, %d left '
        'out',
        *(path, f'{len(found[split]):,} examples', f'{len(made):,}'),
        *(tuned.length, f'{rows.figures["learned_tokens"]:,} tokens'),
        *(rows.figures['cut'], rows.figures['left_out']),
      )
    return Prepared(
      f'dialogue(length={tuned.length}, packed={self.packing})',
      train=splits['train'],
      dev=splits['dev'],
      data=digest(encoded),
      figures=figures,
      template=encoder.template if encoder.chats else None,
      ends=ends(encoded['train'], tokenizer) if encoder.chats else frozenset(),
    )


def _ranked(
  config: Config, train: str, dev: str, dev_share: float, encoder: Encoder
) -> dict[str, list[Ranked]]:
  """The encoded rankings of both splits, which share no prompt."""
  found = {
    name: [*records.rankings(path)]
    for name, path in (('train', train), ('dev', dev))
    if path
  }
  if dev:
    records.check_apart(found['train'], found['dev'])
  else:
    found = records.split_by_prompt(
      found['train'], dev_share, config.seed, train
    )
  return {
    name: preferences.encode(limited(config, name, each, train), encoder)
    for name, each in found.items()
  }


def _fit_ranked(
  config: Config, ranked: dict[str, list[Ranked]], paths: dict[str, str], most
) -> tuple[dict[str, list[Ranked]], dict[str, dict[str, Any]]]:
  """The rankings that fit into `most` tokens, and figures of each split."""
  kept, figures = {}, {}
  for name, each in ranked.items():
    kept[name], figures[name] = preferences.fit(config, paths[name], each, most)
    log.info(
      '%s: %s of %s prompts with completions, %d cut, %d left out',
      *(paths[name], name, f'{len(each):,}'),
      *(figures[name]['cut'], figures[name]['left_out']),
    )
  return kept, figures


def _every(ranked: dict[str, list[Ranked]]) -> dict[str, list[Encoded]]:
  return {
    name: [x for one in each for x in one.completions]
    for name, each in ranked.items()
  }


@dataclass(frozen=True)
class Reward(Method):
  """A reward model of preferences or rankings (Ouyang et al., 2022).

  Attributes:
    train: a file of preferences or rankings: see `records`.
    dev: one to evaluate on, with other prompts; '': some of the prompts of
      `train`.
    dev_share: which part of the prompts that is.
    center_rewards_coefficient: see `objectives.preference`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  train: str
  dev: str = ''
  dev_share: Inside = 0.1
  center_rewards_coefficient: Weight = 0.0
  template: str = ''
  reads = _COMMON
  shown = ('loss', 'accuracy', 'margin')

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Encodes all completions; those of a prompt make a row."""
    tuned, encoder = config.finetune, Encoder(tokenizer, template)
    ranked = _ranked(config, self.train, self.dev, self.dev_share, encoder)
    every = _every(ranked)
    set_length(config, max(len(x.ids) for each in every.values() for x in each))
    paths = {'train': self.train, 'dev': self.dev or self.train}
    kept, figures = _fit_ranked(config, ranked, paths, tuned.length)
    width = max(len(x.completions) for each in kept.values() for x in each)
    splits = {
      name: RankedRows(each, width, tuned.length) for name, each in kept.items()
    }
    center = self.center_rewards_coefficient
    return Prepared(
      f'reward(completions={width}, length={tuned.length}, '
      f'center_rewards_coefficient={center})',
      train=splits['train'],
      dev=splits['dev'],
      data=digest(every),
      figures=figures,
      template=encoder.template if encoder.chats else None,
    )

  def judged(
    self, prepared: Prepared, parts: Parts, params: Any, workdir: str
  ) -> dict[str, Any]:
    """Calibration, and whether length explains the rewards."""
    assert isinstance(prepared.dev, RankedRows)
    (scores,) = preferences.outputs(parts, params, prepared.dev)
    if hosts.index() == 0:
      path = os.path.join(workdir, 'predictions', 'dev.jsonl')
      preferences.write_rewards(path, scores, prepared.dev)
    return preferences.judged(scores, prepared.dev)


@dataclass(frozen=True)
class DirectPreference(Method):
  """Direct preference optimisation (Rafailov et al., 2023).

  Attributes:
    train: see `Reward`; of a ranking all pairs are learned.
    dev: see `Reward`.
    dev_share: see `Reward`.
    beta: see `objectives.preference.Dpo`.
    loss_type: see `objectives.preference.Dpo`.
    label_smoothing: see `objectives.preference.Dpo`.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
  """

  train: str
  dev: str = ''
  dev_share: Inside = 0.1
  beta: Positive = 0.1
  loss_type: LossType = 'sigmoid'
  label_smoothing: Fraction = 0.0
  template: str = ''
  reads = _COMMON
  shown = ('loss', 'rewards/accuracies', 'rewards/margins')

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Encodes all completions; each pair makes a row."""
    tuned, encoder = config.finetune, Encoder(tokenizer, template)
    ranked = _ranked(config, self.train, self.dev, self.dev_share, encoder)
    every = _every(ranked)
    longest = max(len(x.ids) for each in every.values() for x in each)
    set_length(config, longest - 1)
    paths = {'train': self.train, 'dev': self.dev or self.train}
    kept, figures = _fit_ranked(config, ranked, paths, tuned.length + 1)
    splits = {
      name: PairRows(preferences.pairs(each), tuned.length)
      for name, each in kept.items()
    }
    options = {
      'length': tuned.length,
      'beta': self.beta,
      'loss_type': self.loss_type,
      'label_smoothing': self.label_smoothing,
    }
    shown = ', '.join(f'{name}={x!r}' for name, x in options.items())
    return Prepared(
      f'dpo({shown})',
      train=splits['train'],
      dev=splits['dev'],
      data=digest(every),
      figures=figures,
      template=encoder.template if encoder.chats else None,
    )

  def begin(
    self,
    prepared: Prepared,
    parts: Parts,
    params: Callable[[], Any],
    workdir: str,
  ) -> None:
    """Adds the reference's log-probabilities."""
    train, dev = prepared.train, prepared.dev
    assert isinstance(train, PairRows) and isinstance(dev, PairRows)
    splits = {'train': train, 'dev': dev}
    preferences.add_reference(splits, parts, params, workdir)


METHODS: dict[str, Callable[..., Method]] = {
  'sft': Sft,
  'reward': Reward,
  'dpo': DirectPreference,
}


def of_config(config: Config, command: str) -> Method:
  """The method of a config, for the command of the method's name.

  Checks that the fields of `finetune` that are set are ones that it uses.
  """
  tuned = config.get('finetune')
  if tuned is None:
    raise UsageError(
      '--config: has no section finetune; start it from '
      f'configs/finetune/{command}.py'
    )
  (call,) = spec.parse('finetune.task', tuned.task)[:1]
  if call.name != command:
    raise UsageError(
      f'finetune.task={tuned.task!r}: gpt-jax {command} does what '
      f'{command}(...) says; give that, or run gpt-jax '
      f'{call.name if call.name in METHODS else "finetune"}'
    )
  method = spec.build('finetune.task', tuned.task, METHODS)
  usual = config_lib.flatten(defaults.finetune())
  for name, value in config_lib.flatten(tuned).items():
    if name not in method.reads and value != usual.get(name):
      raise UsageError(
        f'finetune.{name}={value!r}: {command} does not use it; leave it at '
        f'{usual.get(name)!r}'
      )
  return method


def with_files(config: Config, **paths: str | None) -> Config:
  """The config with other files in the call of its task.

  Args:
    **paths: by the argument of the method; None: as in the config.
  """
  given = {name: path for name, path in paths.items() if path is not None}
  if not given or config.get('finetune') is None:
    return config
  (call,) = spec.parse('finetune.task', config.finetune.task)[:1]
  names = [*paths]
  args = [
    given.pop(name, value)
    for name, value in zip(names, call.args, strict=False)
  ]
  args += call.args[len(names) :]
  call = call._replace(args=tuple(args), kwargs={**call.kwargs, **given})
  config = config_lib.unlocked(config)
  config.finetune.task = spec.written(call)
  return config.lock()


# What several methods do with their rows.


def limited(
  config: Config, split: str, rows: list[Row], path: str
) -> list[Row]:
  """`finetune.examples` of the rows of the train split, drawn by the seed."""
  if not rows:
    raise UsageError(f'{path}: has no rows; give another file')
  count = config.finetune.examples
  if split != 'train' or not count or count >= len(rows):
    return rows
  order = np.random.default_rng(config.seed).permutation(len(rows))
  return [rows[i] for i in order[:count]]


def set_length(config: Config, longest: int) -> None:
  """Sets `finetune.length` to the longest sequence's, if that fits.

  Args:
    longest: inputs of the longest sequence.
  """
  tuned, context = config.finetune, config.model.context_length
  if tuned.length is None:
    tuned.length = min(context, 8 * -(-longest // 8))
  if not 2 <= tuned.length <= context:
    raise UsageError(
      f"finetune.length={tuned.length}: must be from 2 to the model's context "
      f'of {context}'
    )


class Fitted(NamedTuple):
  """The examples that rows are made of.

  Attributes:
    figures: the number of `examples`, of those `cut` and `left_out`, and of all
      `tokens` and `learned_tokens` of the rest.
  """

  kept: list[Encoded]
  figures: dict[str, int]


def fit(
  config: Config, path: str, examples: list[Example], encoded: list[Encoded]
) -> Fitted:
  """Cuts, leaves out or refuses what is too long: `finetune.too_long`.

  An example of which nothing is learned is left out too.
  """
  tuned, kept, cut, dropped = config.finetune, [], 0, 0
  for example, one in zip(examples, encoded, strict=True):
    too_long = len(one.ids) > tuned.length + 1
    if too_long and tuned.too_long == 'refuse':
      raise UsageError(
        f'{example.where}: has {len(one.ids)} tokens, of which a row holds '
        f'{tuned.length + 1}; raise finetune.length, or let '
        "finetune.too_long='cut' cut it"
      )
    one = fitted(one, tuned.length + 1)
    if not one.learned.any() or (too_long and tuned.too_long == 'drop'):
      dropped += 1
      continue
    kept.append(one)
    cut += too_long
  if not kept:
    raise UsageError(
      f'{path}: in rows of finetune.length={tuned.length} tokens nothing is '
      'left to learn; raise it'
    )
  figures = {
    'examples': len(examples),
    'cut': cut,
    'left_out': dropped,
    'tokens': sum(len(one.ids) for one in kept),
    'learned_tokens': sum(int(one.learned.sum()) for one in kept),
  }
  return Fitted(kept, figures)


def ends(encoded: Sequence[Encoded], tokenizer: Tokenizer) -> frozenset[int]:
  """The special tokens that end what is learned of a conversation."""
  last = {int(one.ids[one.learned][-1]) for one in encoded if one.learned.any()}
  return frozenset(last & {*tokenizer.special.names.values()})


def digest(encoded: Mapping[str, Sequence[Encoded]]) -> str:
  """The numbers of train and dev examples, and a hash of their tokens."""
  found, sizes = hashlib.sha256(), []
  for split, sequences in encoded.items():
    for one in sequences:
      found.update(np.int64(len(one.ids)).tobytes())
      found.update(one.ids.tobytes() + one.learned.tobytes())
    sizes.append(f'{len(sequences)} {split}')
  return f'{", ".join(sizes)}, sha256 {found.hexdigest()[:16]}'
