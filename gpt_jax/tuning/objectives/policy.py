# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Policy gradients on sampled completions: PPO and GRPO.

A completion's tokens are actions a_t, the tokens before them states s_t. Both
methods minimise the clipped loss of their ratio to the policy of the samples,

  r_t = pi(a_t | s_t) / pi_old(a_t | s_t)
  -min(r_t A_t, clip(r_t, 1 - e, 1 + e) A_t)

(PPO: Schulman et al., 2017, equation 7). PPO's advantages A_t come from a value
function by generalised advantage estimation, of rewards that contain the KL
divergence to a reference (InstructGPT, Ouyang et al., 2022, section 3.5).
GRPO's are a completion's score relative to the others of its prompt (Shao et
al., 2024, section 4.1), and the divergence is a term of its loss.

The functions from rewards to advantages run on the host, over all completions
of a rollout; none has a gradient. Options and metrics have their names in TRL.
"""

import abc
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.cross_entropy import token_log_probs
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params, share
from gpt_jax.core.ranges import Count, NotNegative, Positive, Share, Weight
from gpt_jax.decoding import constraints
from gpt_jax.papers.bert.task_heads import EachToken

# From scores to advantages.

Array = jax.Array | np.ndarray
KlEstimator = Literal['k1', 'k2', 'k3']


def kl_estimate(log_probs: Array, reference: Array, estimator: KlEstimator) -> jax.Array:
  """An estimate of KL(pi, pi_ref) from each token that pi sampled, in nats.

  With d = log(pi_ref / pi): k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d
  (Schulman, 2020). k1 and k3 are unbiased; k2 and k3 are never negative.
  """
  d = jnp.asarray(reference) - log_probs
  if estimator == 'k1':
    return -d
  return jnp.square(d) / 2 if estimator == 'k2' else jnp.expm1(d) - d


def rlhf_rewards(
  kl_BL: np.ndarray, scores_B: np.ndarray, mask_BL: np.ndarray, kl_coef: float
) -> np.ndarray:
  """The reward of each token: -beta KL, and the score at the last one.

  `kl_BL` is an estimate at each token; `mask_BL` is 1 for tokens of the
  completion.
  """
  rewards_BL = -kl_coef * kl_BL * mask_BL
  last_B = mask_BL.shape[1] - 1 - np.argmax(mask_BL[:, ::-1] > 0, axis=1)
  rewards_BL[np.arange(len(last_B)), last_B] += scores_B
  return rewards_BL


def gae(
  rewards_BL: np.ndarray, values_BL: np.ndarray, mask_BL: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
  """Advantages and returns (Schulman et al., 2016, equation 16).

    A_t = sum_l (gamma lam)^l delta_(t+l)
    delta_t = r_t + gamma V(s_(t+1)) - V(s_t)

  and returns A_t + V(s_t); V is 0 after the last token of the mask. Both are
  float64, or what cancels would leave the rounding of sums.
  """
  rewards_BL, values_BL = (x.astype(np.float64) for x in (rewards_BL, values_BL))
  next_A = next_V = np.zeros(len(rewards_BL))
  advantages_BL = np.zeros_like(rewards_BL)
  for t in reversed(range(rewards_BL.shape[1])):
    real = mask_BL[:, t]
    delta = rewards_BL[:, t] + gamma * next_V - values_BL[:, t]
    next_A = real * (delta + gamma * lam * next_A)
    next_V = real * values_BL[:, t]
    advantages_BL[:, t] = next_A
  return advantages_BL, (advantages_BL + values_BL) * mask_BL


def whiten(x: np.ndarray, mask: np.ndarray, *, shift_mean: bool = True) -> np.ndarray:
  """Scales to variance 1 over the mask, and to mean 0 if `shift_mean`.

  Where all are equal, their difference from the mean is exactly 0: it would
  become large otherwise.
  """
  x, real = x.astype(np.float64), mask > 0
  # The mean of equal numbers may be another one.
  first = x[real][:1].sum()
  x = np.where(real, x - first, 0)
  count = max(real.sum(), 1)
  mean = x.sum() / count
  centered = np.where(real, x - mean, 0)
  white = centered / np.sqrt(np.square(centered).sum() / count + 1e-8)
  if not shift_mean:
    white += real * (mean + first)
  return white.astype(np.float32)


ScaleRewards = Literal['group', 'batch', 'none']


def group_advantages(
  rewards_N: np.ndarray, num_generations: int, scale_rewards: ScaleRewards
) -> np.ndarray:
  """Each completion's reward, relative to those of the same prompt.

  Args:
    rewards_N: the completions of a prompt one after another.
    num_generations: completions of each prompt.
    scale_rewards: divides by the standard deviation within the 'group', or
      over the 'batch'; 'none': as they are (Liu et al., 2025).
  """
  centered = within_groups(rewards_N, num_generations)
  if scale_rewards == 'group':
    centered /= centered.std(axis=1, ddof=1, keepdims=True) + 1e-4
  elif scale_rewards == 'batch':
    centered /= rewards_N.std(ddof=1, dtype=np.float64) + 1e-4
  return centered.reshape(-1).astype(np.float32)


def within_groups(rewards_N: np.ndarray, num_generations: int) -> np.ndarray:
  """Rewards less the mean of their group, float64 [groups, num_generations].

  Those of equal rewards are exactly 0, whatever number rounding makes of their
  mean: a standard deviation of that size would make them large.
  """
  groups = rewards_N.astype(np.float64).reshape(-1, num_generations)
  groups -= groups[:, :1]
  return groups - groups.mean(axis=1, keepdims=True)


# The losses of a token.


def clipped_policy_loss(
  log_probs: jax.Array, old: jax.Array, advantages: jax.Array, low: float, high: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The loss of each token, its ratio, and whether the clip binds.

  Ratios to `old`, the policy that sampled the tokens, are clipped to [1 - low,
  1 + high].
  """
  ratio = jnp.exp(log_probs - old)
  free = -ratio * advantages
  clipped = -jnp.clip(ratio, 1 - low, 1 + high) * advantages
  return jnp.maximum(free, clipped), ratio, clipped > free


def clipped_value_loss(
  values: jax.Array, old: jax.Array, returns: jax.Array, clip: float
) -> tuple[jax.Array, jax.Array]:
  """max((V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2) / 2 of each token.

  Returns:
    The loss, and whether the clip binds.
  """
  free = jnp.square(values - returns)
  near = jnp.clip(values, old - clip, old + clip)
  clipped = jnp.square(near - returns)
  return jnp.maximum(free, clipped) / 2, clipped > free


# The objectives.


class Policy(Objective):
  """A language model that is trained on completions that it sampled.

  A batch has `inputs` and `targets` int32 [B, L], a prompt and its completion;
  and float32 `mask` [B, L], 1 where the target is a token of the completion;
  `old_log_probs` and `advantages` [B, L]; and `weights` [B]. Old
  log-probabilities are those that `outputs` computes from the parameters that
  sampled the completion: the decoder's own differ by rounding. There is no
  dropout, which is not in a rollout either.

  Attributes:
    length: L.
    temperature: of the rollouts; divides the logits here too. Ids that the
      decoder never samples are left out of the softmax, as they are there.
  """

  length: int
  temperature: float

  @property
  def needs(self) -> Needs:
    """A decoder; batches come from rollouts."""
    return Needs(rows=())

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, type(self).__name__.lower())

  @property
  @abc.abstractmethod
  def extra(self) -> tuple[str, ...]:
    """Names of further arrays [B, L] of a batch."""

  @property
  def example(self) -> dict[str, np.ndarray]:
    ids = np.zeros((1, self.length), np.int32)
    ones = np.ones((1, self.length), np.float32)
    names = ('mask', 'old_log_probs', 'advantages', *self.extra)
    return {
      'inputs': ids,
      'targets': ids,
      **{name: ones for name in names},
      'weights': np.ones(1, np.float32),
    }

  def log_probs(self, params: Params, batch: Batch) -> jax.Array:
    """The log-probability of each target, float32 [B, L]."""
    return self._log_probs(params, batch, self._states(params, batch)[0])

  # What a rollout keeps of the policy that sampled it.
  outputs = log_probs

  def _states(self, params: Params, batch: Batch) -> tuple[jax.Array, Any]:
    """The last states [B, L, D], and router statistics."""
    return forward.states(self.model, params, {'inputs': batch['inputs']}, None)

  def _log_probs(self, params: Params, batch: Batch, hidden_BLD: jax.Array) -> jax.Array:
    scores = forward.scores(self.model, params, hidden_BLD)
    never_V = None
    if self.tokenizer is not None:
      never_V = constraints.never_drawn(self.tokenizer, self.model.vocab_size)
    return token_log_probs(scores, batch['targets'], self.temperature, never_V)


@dataclass(frozen=True)
class Grpo(Policy):
  """Group relative policy optimisation.

  With beta a batch also has `ref_log_probs` [B, L].

  Attributes:
    length: see `Policy`.
    temperature: see `Policy`.
    beta: factor of the KL divergence to the reference, estimated by k3.
    epsilon: ratios are clipped from 1 - epsilon ...
    epsilon_high: ... to 1 + epsilon_high (DAPO, Yu et al., 2025, equation 10);
      0: epsilon.
    loss_type: the mean over tokens: 'grpo' first over those of a completion;
      'dapo' over those of the batch; 'dr_grpo' divides by `max_tokens` per
      completion (Liu et al., 2025).
    max_tokens: the most tokens of a completion.
  """

  length: int
  max_tokens: Count
  temperature: Positive = 1.0
  beta: Weight = 0.0
  epsilon: Share = 0.2
  epsilon_high: NotNegative = 0.0
  loss_type: Literal['grpo', 'dapo', 'dr_grpo'] = 'dapo'

  @property
  def extra(self) -> tuple[str, ...]:
    """The reference's log-probabilities, if there is a KL term."""
    return ('ref_log_probs',) * bool(self.beta)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The clipped loss and beta times the divergence."""
    hidden_BLD, stats = self._states(params, batch)
    log_probs_BL = self._log_probs(params, batch, hidden_BLD)
    mask_BL, weights_B = batch['mask'], batch['weights']
    advantages_BL = batch['advantages']
    losses_BL, ratio_BL, binds_BL = clipped_policy_loss(
      log_probs_BL,
      batch['old_log_probs'],
      advantages_BL,
      self.epsilon,
      self.epsilon_high or self.epsilon,
    )
    values = {
      'clip_ratio/low_mean': binds_BL & (advantages_BL < 0),
      'clip_ratio/high_mean': binds_BL & (advantages_BL > 0),
      'clip_ratio/region_mean': binds_BL,
      'val/ratio': ratio_BL,
    }
    if self.beta:
      kl_BL = kl_estimate(log_probs_BL, batch['ref_log_probs'], 'k3')
      losses_BL += self.beta * kl_BL
      values['kl'] = kl_BL
    each_B = jnp.sum(mask_BL * losses_BL, axis=1)
    total, weight = jnp.sum(each_B), jnp.sum(mask_BL)
    if self.loss_type == 'grpo':
      each_B /= jnp.maximum(jnp.sum(mask_BL, axis=1), 1)
      total, weight = jnp.sum(weights_B * each_B), jnp.sum(weights_B)
    elif self.loss_type == 'dr_grpo':
      weight = jnp.sum(weights_B) * self.max_tokens
    metrics = {name: Mean.of(x, mask_BL) for name, x in values.items()}
    return Loss(total, weight, metrics=metrics, stats=stats)


@dataclass(frozen=True)
class Ppo(Policy):
  """Proximal policy optimisation with a value head beside the policy.

  The head reads the model's last states; its parameters are
  `params['heads']['value']`. A batch also has `returns` and `old_values`
  [B, L], and with `ptx` the inputs, targets and weights of pre-training rows
  as `ptx_inputs`, `ptx_targets` and `ptx_weights` [B, L].

  Attributes:
    length: see `Policy`.
    temperature: see `Policy`.
    cliprange: e of the ratio.
    cliprange_value: e of the values.
    vf_coef: factor of the value loss.
    ptx: gamma, the factor of the loss on pre-training text (InstructGPT,
      equation 2).
  """

  length: int
  temperature: Positive = 1.0
  cliprange: Share = 0.2
  cliprange_value: Positive = 0.2
  vf_coef: Weight = 0.1
  ptx: Weight = 0.0

  @property
  def extra(self) -> tuple[str, ...]:
    """What the value loss compares with."""
    return ('returns', 'old_values')

  @property
  def example(self) -> dict[str, np.ndarray]:
    """A batch of one completion, with a row of pre-training text."""
    batch = super().example
    if self.ptx:
      names = {'inputs': 'inputs', 'targets': 'targets', 'weights': 'mask'}
      batch |= {f'ptx_{name}': batch[of] for name, of in names.items()}
    return batch

  @property
  def _head(self) -> EachToken:
    kernel = ModelChoices.of(self.model).init_weights.kernel
    return EachToken(1, kernel, dropout=0.0)

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model and of the value head."""
    states = jnp.zeros((1, 1, self.model.d_model))
    head: Any = self._head.init(jax.random.fold_in(key, 1), states)
    return {**super().init(key), 'heads': {'value': head['params']}}

  def _values(self, params: Params, hidden_BLD: jax.Array) -> jax.Array:
    variables: Any = {'params': params['heads']['value']}
    values_BL1: Any = self._head.apply(variables, hidden_BLD)
    return values_BL1[..., 0]

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """Log-probabilities, then values; float32 [B, 2 L]."""
    hidden_BLD, _ = self._states(params, batch)
    log_probs_BL = self._log_probs(params, batch, hidden_BLD)
    values_BL = self._values(params, hidden_BLD)
    return jnp.concatenate([log_probs_BL, values_BL], axis=1)

  def weighed(self, batch: Batch) -> Batch:
    """Pre-training tokens count so that gamma times their mean is added."""
    if not self.ptx:
      return batch
    weights_BL = batch['ptx_weights']
    of_token = self.ptx * share(jnp.sum(batch['mask']), jnp.sum(weights_BL))
    return {**batch, 'ptx_weights': of_token * weights_BL}

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The clipped losses of policy and values, and that of `ptx`."""
    hidden_BLD, stats = self._states(params, batch)
    log_probs_BL = self._log_probs(params, batch, hidden_BLD)
    mask_BL, old_BL = batch['mask'], batch['old_log_probs']
    policy_BL, ratio_BL, binds_BL = clipped_policy_loss(
      log_probs_BL, old_BL, batch['advantages'], self.cliprange, self.cliprange
    )
    values_BL = self._values(params, hidden_BLD)
    value_BL, value_binds_BL = clipped_value_loss(
      values_BL, batch['old_values'], batch['returns'], self.cliprange_value
    )
    values = {
      'loss/policy_avg': policy_BL,
      'loss/value_avg': value_BL,
      'policy/approxkl_avg': kl_estimate(old_BL, log_probs_BL, 'k2'),
      'policy/clipfrac_avg': binds_BL,
      'val/clipfrac_avg': value_binds_BL,
      'val/ratio': ratio_BL,
    }
    means = {name: Mean.of(x, mask_BL) for name, x in values.items()}
    total = jnp.sum(mask_BL * (policy_BL + self.vf_coef * value_BL))
    if self.ptx:
      rows = {n: batch[f'ptx_{n}'] for n in ('inputs', 'targets', 'weights')}
      states, more = self._states(params, rows)
      scores = forward.scores(self.model, params, states)
      nll_BL = -token_log_probs(scores, rows['targets'])
      means['loss/ptx_avg'] = Mean.of(nll_BL, rows['weights'])
      total += means['loss/ptx_avg'].sum
      stats = stats | {name.replace('/', '/ptx_', 1): found for name, found in more.items()}
    return Loss(total, jnp.sum(mask_BL), metrics=means, stats=stats)
