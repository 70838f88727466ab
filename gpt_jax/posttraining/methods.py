# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The methods of post-training: the calls that `finetune.task` can hold.

A method is a frozen dataclass whose fields are the arguments of its call, by
TRL's names where there are such. `prepare` turns its files into rows; the loop,
checkpoints and the rest are those of `train`: see `run`.
"""

import abc
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
  Annotated,
  Any,
  ClassVar,
  Literal,
  NamedTuple,
  Protocol,
  TypeVar,
)

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.config import Config, defaults
from gpt_jax.objectives import policy
from gpt_jax.objectives.preference import LossType
from gpt_jax.posttraining import (
  preferences,
  records,
  reward_functions,
  rollouts,
)
from gpt_jax.posttraining.dialogues import Encoded, Encoder, LossOn, fitted
from gpt_jax.posttraining.packing import TokenRows
from gpt_jax.posttraining.preferences import PairRows, Ranked, RankedRows
from gpt_jax.posttraining.records import Example
from gpt_jax.posttraining.rollouts import Estimate, Rollout
from gpt_jax.ranges import (
  Count,
  Fraction,
  Inside,
  NotNegative,
  Positive,
  Probability,
  Share,
  Weight,
  whole,
)
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
    train: the rows to train on, or how the model draws them.
    dev: the rows to evaluate on; None: nothing is evaluated.
    data: identifies the rows: their numbers and a hash.
    figures: of each split, for result.json.
    template: the chat template, if there are conversations.
    ends: the special tokens that end an answer in these.
  """

  objective: str
  train: Split | rollouts.Plan
  dev: Split | None
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


# What methods use that draw completions: no dev split judges these, and the
# decoder takes no adapters.
_ONLINE = _COMMON - {'patience', 'select', 'lora'}


def _rollouts(
  method: 'Grpo | Ppo',
  config: Config,
  encoder: Encoder,
  estimate: Estimate,
  **plan: Any,
) -> tuple[rollouts.Plan, dict[str, Any]]:
  """A method's plan, and figures of its prompts; sets `finetune.length`."""
  tuned, path = config.finetune, method.prompts
  found = limited(config, 'train', rollouts.read_prompts(path, encoder), path)
  context, new = config.model.context_length, method.max_completion_length
  longest = max(len(prompt.ids) for prompt in found)
  if tuned.length is None:
    tuned.length = min(context, 8 * -(-(longest + new) // 8))
  if not new < tuned.length <= context:
    raise UsageError(
      f'finetune.length={tuned.length}: prompt and completion have at most '
      f"the model's context of {context} tokens together, and max_completion_"
      f'length={new} of them are the completion; change one of the two'
    )
  most, kept = tuned.length - new, []
  for prompt in found:
    if len(prompt.ids) > most and tuned.too_long == 'refuse':
      raise UsageError(
        f'{prompt.where}: has {len(prompt.ids)} tokens, and a completion '
        f'leaves {most}; raise finetune.length, or give '
        "finetune.too_long='drop'"
      )
    if len(prompt.ids) <= most or tuned.too_long == 'cut':
      kept.append(prompt._replace(ids=prompt.ids[-most:]))
  if not kept:
    raise UsageError(
      f'{path}: no prompt fits into {most} tokens; raise finetune.length'
    )
  cut = sum(len(prompt.ids) > most for prompt in found)
  figures = {'prompts': len(kept), 'cut': cut if len(kept) == len(found) else 0}
  figures['left_out'] = len(found) - len(kept)
  log.info(
    '%s: %s prompts of at most %d tokens; %d cut, %d left out',
    *(path, f'{len(kept):,}', min(longest, most), figures['cut']),
    figures['left_out'],
  )
  if jax.process_count() > 1:
    raise UsageError(
      f'{jax.process_count()} processes: completions are drawn by one; start '
      'one, which may have several devices'
    )
  if config_lib.ramp(config).stages[1:]:
    raise UsageError(
      f'batch.size={config.batch.size!r}: grows, and a rollout is for updates '
      'of one size; give a number'
    )
  if config.optim.on_spike.startswith('rewind'):
    raise UsageError(
      f'optim.on_spike={config.optim.on_spike!r}: leaves out rows of a store, '
      "and completions are drawn anew; give 'skip' or 'stop'"
    )
  return rollouts.Plan(
    prompts=kept,
    reward=reward_functions.load(method.reward, kept, method.template),
    estimate=estimate,
    max_tokens=new,
    temperature=method.temperature,
    decode_rows=method.decode_rows,
    **plan,
  ), figures


@dataclass(frozen=True)
class Grpo(Method):
  """Group relative policy optimisation (Shao et al., 2024).

  Attributes:
    prompts: a file of prompts: see `rollouts.read_prompts`.
    reward: a function or a model that scores completions: see
      `reward_functions`.
    num_generations: completions of each prompt, which are a group.
    steps_per_generation: minibatches of a rollout, each of batch.size rows.
    num_iterations: passes over a rollout.
    max_completion_length: the most tokens of a completion.
    temperature: of the draws.
    beta: see `objectives.policy.Grpo`.
    epsilon: see `objectives.policy.Grpo`.
    epsilon_high: see `objectives.policy.Grpo`.
    loss_type: see `objectives.policy.Grpo`.
    scale_rewards: see `objectives.policy.group_advantages`.
    mask_truncated_completions: leaves completions that did not end out of the
      loss.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
    decode_rows: completions that are decoded at a time.
  """

  prompts: str
  reward: str
  num_generations: Annotated[int, whole(2)] = 8
  steps_per_generation: Count = 1
  num_iterations: Count = 1
  max_completion_length: Count = 256
  temperature: Positive = 1.0
  beta: Weight = 0.0
  epsilon: Share = 0.2
  epsilon_high: NotNegative = 0.0
  loss_type: Literal['grpo', 'dapo', 'dr_grpo'] = 'dapo'
  scale_rewards: policy.ScaleRewards = 'group'
  mask_truncated_completions: bool = False
  template: str = ''
  decode_rows: Count = 64
  reads = _ONLINE

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Reads the prompts, and the reward function."""
    encoder = Encoder(tokenizer, template)
    size = config_lib.ramp(config).rows(0) * self.steps_per_generation
    if size % self.num_generations:
      raise UsageError(
        f'num_generations={self.num_generations}: a rollout has batch.size x '
        f'steps_per_generation = {size} completions, which is no multiple; '
        'change one of the three'
      )
    plan, figures = _rollouts(
      *(self, config, encoder, self._estimate),
      num_generations=self.num_generations,
      minibatches=self.steps_per_generation,
      epochs=self.num_iterations,
      reference=self.beta > 0,
    )
    return Prepared(
      f'grpo(length={config.finetune.length}, '
      f'max_tokens={self.max_completion_length}, '
      f'temperature={self.temperature}, beta={self.beta}, '
      f'epsilon={self.epsilon}, epsilon_high={self.epsilon_high}, '
      f'loss_type={self.loss_type!r})',
      train=plan,
      dev=None,
      data=rollouts.digest(plan.prompts),
      figures={'train': figures},
      template=encoder.template if encoder.chats else None,
    )

  def _estimate(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
    """Advantages within groups."""
    arrays, scores_N, ended_N = rollout
    mask = arrays['mask']
    groups = scores_N.reshape(-1, self.num_generations)
    deviations = groups.std(axis=1, ddof=1)
    advantages_N = policy.group_advantages(
      scores_N, self.num_generations, self.scale_rewards
    )
    if self.mask_truncated_completions:
      mask = mask * ended_N[:, None]
    batch = {
      **arrays,
      'mask': mask,
      'advantages': advantages_N[:, None] * mask,
      'weights': np.ones(len(mask), np.float32),
    }
    return batch, {
      'reward': float(scores_N.mean()),
      'reward_std': float(deviations.mean()),
      'frac_reward_zero_std': float((deviations < 1e-8).mean()),
    }


@dataclass(frozen=True)
class Ppo(Method):
  """Proximal policy optimisation (Schulman et al., 2017; Ouyang et al., 2022).

  Attributes:
    prompts: a file of prompts: see `rollouts.read_prompts`.
    reward: a function or a model that scores completions: see
      `reward_functions`.
    num_mini_batches: of a rollout, each of batch.size rows.
    num_ppo_epochs: passes over a rollout.
    max_completion_length: the most tokens of a completion.
    temperature: of the draws.
    kl_coef: beta, factor of the KL divergence to the first parameters.
    kl_estimator: see `objectives.policy.kl_estimate`.
    cliprange: see `objectives.policy.Ppo`.
    cliprange_value: see `objectives.policy.Ppo`.
    vf_coef: see `objectives.policy.Ppo`.
    gamma: discount, see `objectives.policy.gae`.
    lam: see `objectives.policy.gae`.
    whiten_rewards: scales the rewards of tokens to variance 1.
    missing_eos_penalty: subtracted from the score of a completion that did not
      end.
    ptx: gamma of InstructGPT's equation 2, the factor of the loss on
      `ptx_text`.
    ptx_text: a file of texts, {"text": ...}; a row of each update's batch.
    template: a name in `chat.TEMPLATES`, or a file; '': the model's own.
    decode_rows: completions that are decoded at a time.
  """

  prompts: str
  reward: str
  num_mini_batches: Count = 1
  num_ppo_epochs: Count = 4
  max_completion_length: Count = 256
  temperature: Positive = 1.0
  kl_coef: Weight = 0.05
  kl_estimator: policy.KlEstimator = 'k1'
  cliprange: Share = 0.2
  cliprange_value: Positive = 0.2
  vf_coef: Weight = 0.1
  gamma: Probability = 1.0
  lam: Probability = 0.95
  whiten_rewards: bool = False
  missing_eos_penalty: NotNegative = 0.0
  ptx: Weight = 0.0
  ptx_text: str = ''
  template: str = ''
  decode_rows: Count = 64
  reads = _ONLINE

  def prepare(
    self,
    config: Config,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
  ) -> Prepared:
    """Reads the prompts, the reward function and the pre-training text."""
    if bool(self.ptx) != bool(self.ptx_text):
      raise UsageError(
        f'ptx={self.ptx}, ptx_text={self.ptx_text!r}: pre-training text needs '
        'its factor, and the factor a text; give both, or neither'
      )
    encoder = Encoder(tokenizer, template)
    plan, figures = _rollouts(
      *(self, config, encoder, self._estimate),
      num_generations=1,
      minibatches=self.num_mini_batches,
      epochs=self.num_ppo_epochs,
      reference=True,
    )
    if self.ptx:
      length, found = config.finetune.length, [*records.examples(self.ptx_text)]
      encoded = [
        fitted(encoder.encode(x, 'all'), length + 1)
        for x in limited(config, '', found, self.ptx_text)
      ]
      pad = tokenizer.special.pad_id
      rows = TokenRows(encoded, length, pad, packed=False)
      plan = dataclasses.replace(plan, text=rows)
    return Prepared(
      f'ppo(length={config.finetune.length}, temperature={self.temperature}, '
      f'cliprange={self.cliprange}, cliprange_value={self.cliprange_value}, '
      f'vf_coef={self.vf_coef}, ptx={self.ptx})',
      train=plan,
      dev=None,
      data=rollouts.digest(plan.prompts),
      figures={'train': figures},
      template=encoder.template if encoder.chats else None,
    )

  def _estimate(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
    """Advantages by GAE, of rewards with the KL divergence."""
    arrays, scores_N, ended_N = rollout
    mask, log_probs = arrays['mask'], arrays['old_log_probs']
    kl = mask * np.asarray(
      policy.kl_estimate(log_probs, arrays['ref_log_probs'], self.kl_estimator)
    )
    penalty_N = self.missing_eos_penalty * ~ended_N
    rewards = policy.rlhf_rewards(kl, scores_N - penalty_N, mask, self.kl_coef)
    figures = {
      'objective/kl': kl.sum(axis=1).mean(),
      'objective/entropy': -(log_probs * mask).sum(axis=1).mean(),
      'objective/scores': scores_N.mean(),
      'objective/non_score_reward': -self.kl_coef * kl.sum(axis=1).mean(),
      'objective/rlhf_reward': rewards.sum(axis=1).mean(),
    }
    if self.whiten_rewards:
      rewards = policy.whiten(rewards, mask, shift_mean=False)
    advantages, returns = policy.gae(
      rewards, arrays['old_values'], mask, self.gamma, self.lam
    )
    batch = {
      **{n: x for n, x in arrays.items() if n != 'ref_log_probs'},
      'advantages': policy.whiten(advantages, mask),
      'returns': returns,
      'weights': np.ones(len(mask), np.float32),
    }
    return batch, {name: float(x) for name, x in figures.items()}


METHODS: dict[str, Callable[..., Method]] = {
  'sft': Sft,
  'reward': Reward,
  'dpo': DirectPreference,
  'grpo': Grpo,
  'ppo': Ppo,
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
