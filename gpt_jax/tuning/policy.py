# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learning from rewards of the model's own completions: GRPO and PPO.

`rollouts` samples the completions; a method makes advantages of their rewards.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.ranges import Count, NotNegative, Positive, Probability, Share, Weight, whole
from gpt_jax.core.rows.row_order import Batch
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning import records, reward_functions, rollouts
from gpt_jax.tuning.dialogues import Encoder, fitted
from gpt_jax.tuning.method import COMMON, Method, Prepared, digest, keeps, some
from gpt_jax.tuning.objectives import policy
from gpt_jax.tuning.packing import TokenRows
from gpt_jax.tuning.rollouts import Rollout

# What methods use that sample completions: no dev split judges these.
_ONLINE = COMMON - {'patience', 'select'}


def _rollouts(
  method: 'GrpoMethod | PpoMethod', config: Config, encoder: Encoder, **plan: Any
) -> tuple[rollouts.Plan, int, dict[str, Any]]:
  """A method's plan, `finetune.length`, and figures of its prompts."""
  length, path = config.finetune.length, method.prompts
  prompts = some(config, 'train', rollouts.read_prompts(path, encoder), path)
  context, new = config.model.context_length, method.max_completion_length
  longest = max(len(prompt.ids) for prompt in prompts)
  if length is None:
    length = min(context, 8 * math.ceil((longest + new) / 8))
  if not new < length <= context:
    raise UsageError(
      f'finetune.length={length}: prompt and completion have at most the '
      f"model's context of {context} tokens together, and max_completion_"
      f'length={new} of them are the completion; change one of the two'
    )
  most = length - new
  fitting = [
    prompt._replace(ids=prompt.ids[-most:])
    for prompt in prompts
    if keeps(config, prompt.where, len(prompt.ids), most)
  ]
  if not fitting:
    raise UsageError(f'{path}: no prompt fits into {most} tokens; raise finetune.length')
  cut = sum(len(prompt.ids) > most for prompt in prompts)
  figures = {'prompts': len(fitting), 'cut': cut if len(fitting) == len(prompts) else 0}
  figures['left_out'] = len(prompts) - len(fitting)
  log.info(
    '%s: %s prompts of at most %d tokens; %d cut, %d left out',
    path,
    f'{len(fitting):,}',
    min(longest, most),
    figures['cut'],
    figures['left_out'],
  )
  counts = rollouts.column_counts(fitting).items()
  if partial := [f'{n!r} (in {c:,})' for n, c in counts if c < len(fitting)]:
    log.info(
      '%s: not all %s prompts have the columns %s; for the others a reward function gets None',
      path,
      f'{len(fitting):,}',
      ', '.join(partial),
    )
  if config_lib.ramp(config).stages[1:]:
    raise UsageError(
      f'batch.size={config.batch.size!r}: grows, and a rollout is for updates '
      'of one size; give a number'
    )
  if config.optim.on_spike.startswith('rewind'):
    raise UsageError(
      f'optim.on_spike={config.optim.on_spike!r}: leaves out rows of a store, '
      "and completions are sampled anew; give 'skip' or 'stop'"
    )
  return (
    rollouts.Plan(
      prompts=fitting,
      reward=reward_functions.load(method.reward, fitting, method.template),
      estimate=method.estimate,
      max_tokens=new,
      temperature=method.temperature,
      decode_rows=method.decode_rows,
      **plan,
    ),
    length,
    figures,
  )


@dataclass(frozen=True)
class GrpoMethod(Method):
  """Group relative policy optimisation (Shao et al., 2024).

  Fields not listed are those of `tuning.objectives.policy.Grpo`.

  Attributes:
    prompts: a file of prompts: see `rollouts.read_prompts`.
    reward: a function or a model that scores completions: see
      `reward_functions`.
    num_generations: completions of each prompt, which are a group.
    steps_per_generation: minibatches of a rollout, each of batch.size rows.
    num_iterations: passes over a rollout.
    max_completion_length: the most tokens of a completion.
    scale_rewards: see `tuning.objectives.policy.group_advantages`.
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
  shown = ('reward',)

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """Reads the prompts, and the reward function."""
    size = config_lib.ramp(config).rows(0) * self.steps_per_generation
    if size % self.num_generations:
      raise UsageError(
        f'num_generations={self.num_generations}: a rollout has batch.size x '
        f'steps_per_generation = {size} completions, which is not a multiple; '
        'change one of the three'
      )
    plan, length, figures = _rollouts(
      self,
      config,
      encoder,
      num_generations=self.num_generations,
      minibatches=self.steps_per_generation,
      epochs=self.num_iterations,
      reference=self.beta > 0,
    )
    return Prepared(
      policy.Grpo(
        length,
        max_tokens=self.max_completion_length,
        temperature=self.temperature,
        beta=self.beta,
        epsilon=self.epsilon,
        epsilon_high=self.epsilon_high,
        loss_type=self.loss_type,
      ),
      length,
      train=plan,
      dev=None,
      data=rollouts.digest(plan.prompts),
      figures={'train': figures},
    )

  def estimate(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
    """Advantages within groups."""
    arrays, scores_N, ended_N = rollout
    mask = arrays['mask']
    within = policy.within_groups(scores_N, self.num_generations)
    deviations = within.std(axis=1, ddof=1)
    advantages_N = policy.group_advantages(scores_N, self.num_generations, self.scale_rewards)
    if self.mask_truncated_completions:
      mask = mask * ended_N[:, None]
    batch = {
      **arrays,
      'mask': mask,
      'advantages': advantages_N[:, None] * mask,
      'weights': np.ones(len(mask), np.float32),
    }
    return batch, {
      'reward': float(scores_N.mean(dtype=np.float64)),
      'reward_std': float(deviations.mean()),
      'frac_reward_zero_std': float((deviations < 1e-8).mean()),
    }


@dataclass(frozen=True)
class PpoMethod(Method):
  """Proximal policy optimisation (Schulman et al., 2017; Ouyang et al., 2022).

  Fields not listed are those of `tuning.objectives.policy.Ppo`.

  Attributes:
    prompts: a file of prompts: see `rollouts.read_prompts`.
    reward: a function or a model that scores completions: see
      `reward_functions`.
    num_mini_batches: of a rollout, each of batch.size rows.
    num_ppo_epochs: passes over a rollout.
    max_completion_length: the most tokens of a completion.
    kl_coef: beta, factor of the KL divergence to the first parameters.
    kl_estimator: see `tuning.objectives.policy.kl_estimate`.
    gamma: discount, see `tuning.objectives.policy.gae`.
    lam: see `tuning.objectives.policy.gae`.
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
  shown = ('objective/scores', 'objective/kl')

  def prepare(self, config: Config, encoder: Encoder) -> Prepared:
    """Reads the prompts, the reward function and the pre-training text."""
    if bool(self.ptx) != bool(self.ptx_text):
      raise UsageError(
        f'ptx={self.ptx}, ptx_text={self.ptx_text!r}: pre-training text needs '
        'its factor, and the factor a text; give both, or neither'
      )
    plan, length, figures = _rollouts(
      self,
      config,
      encoder,
      num_generations=1,
      minibatches=self.num_mini_batches,
      epochs=self.num_ppo_epochs,
      reference=True,
    )
    data = rollouts.digest(plan.prompts)
    if self.ptx:
      texts = [*records.examples(self.ptx_text)]
      encoded = [
        fitted(encoder.encode(x, 'all'), length + 1) for x in some(config, '', texts, self.ptx_text)
      ]
      pad = encoder.tokenizer.special.pad_id
      rows = TokenRows(encoded, length, pad, packed=False)
      plan = dataclasses.replace(plan, text=rows)
      data += f', {digest({"text": encoded})}'
    return Prepared(
      policy.Ppo(
        length,
        temperature=self.temperature,
        cliprange=self.cliprange,
        cliprange_value=self.cliprange_value,
        vf_coef=self.vf_coef,
        ptx=self.ptx,
      ),
      length,
      train=plan,
      dev=None,
      data=data,
      figures={'train': figures},
    )

  def estimate(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
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
      'objective/scores': scores_N.mean(dtype=np.float64),
      'objective/non_score_reward': -self.kl_coef * kl.sum(axis=1).mean(),
      'objective/rlhf_reward': rewards.sum(axis=1).mean(),
    }
    if self.whiten_rewards:
      rewards = policy.whiten(rewards, mask, shift_mean=False)
    advantages, returns = policy.gae(rewards, arrays['old_values'], mask, self.gamma, self.lam)
    batch = {
      **{n: x for n, x in arrays.items() if n != 'ref_log_probs'},
      'advantages': policy.whiten(advantages, mask),
      'returns': returns.astype(np.float32),
      'weights': np.ones(len(mask), np.float32),
    }
    return batch, {name: float(x) for name, x in figures.items()}
