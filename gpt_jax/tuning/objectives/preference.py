# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learning from preferences: a reward model, or the policy itself.

A labeller prefers completion w of a prompt x to completion l. `RewardModel`
learns a score r of texts from such pairs by the model of Bradley and Terry,
P(w is preferred) = sigma(r(x, w) - r(x, l)) (InstructGPT, Ouyang et al., 2022,
equation 1). `Dpo` trains the policy pi directly (Rafailov et al., 2023,
equation 7): its implicit reward is beta log(pi(y | x) / pi_ref(y | x)).
Options and metrics have their names in TRL.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.cross_entropy import token_log_probs
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.core.ranges import Fraction, Positive, Weight
from gpt_jax.core.spec import UsageError
from gpt_jax.tuning.objectives.task import TaskObjective


def ranking_terms(
  rewards_BK: jax.Array, counts_B: jax.Array, center: float = 0.0
) -> dict[str, jax.Array]:
  """The loss and metrics of each prompt, means over its pairs; float32 [B].

  With K ranked completions a prompt has K (K - 1) / 2 pairs, of which
    loss = -log sigma(r_w - r_l) + center (r_w + r_l)^2.
  The second term pulls rewards, which the first leaves undetermined by a
  constant, towards a mean of 0 (Eisenstein et al., 2023).

  Args:
    rewards_BK: of each prompt's completions, the best one first.
    counts_B: number of completions of each prompt; the rest is padding.
    center: `center_rewards_coefficient` in TRL.
  """
  K = rewards_BK.shape[1]
  place = jnp.arange(K)
  real_BK = place[None] < counts_B[:, None]
  before_KK = place[:, None] < place[None]
  pairs_BKK = before_KK[None] & real_BK[:, None]
  chosen_BK1, rejected_B1K = rewards_BK[:, :, None], rewards_BK[:, None]
  margin_BKK = chosen_BK1 - rejected_B1K
  loss_BKK = jax.nn.softplus(-margin_BKK)
  if center:
    loss_BKK += center * jnp.square(chosen_BK1 + rejected_B1K)
  number_B = jnp.maximum(jnp.sum(pairs_BKK, axis=(1, 2)), 1)

  def mean(x_BKK):
    return jnp.sum(jnp.where(pairs_BKK, x_BKK, 0), axis=(1, 2)) / number_B

  rewards_B = jnp.sum(jnp.where(real_BK, rewards_BK, 0), axis=1)
  return {
    'loss': mean(loss_BKK),
    'accuracy': mean((margin_BKK > 0).astype(jnp.float32)),
    'margin': mean(margin_BKK),
    'mean_reward': rewards_B / jnp.maximum(counts_B, 1),
  }


@dataclass(frozen=True)
class RewardModel(TaskObjective):
  """Scores of K ranked completions: all pairs of a prompt are one example.

  The loss of a prompt is the mean over its pairs, so that prompts count alike
  however many completions they have. A batch has `inputs` int32 [B, K, L], the
  prompt with each completion, the best one first; their `lengths` [B, K], at
  least 1; and as `labels` [B] the number of completions. The score is read at
  the last token by a linear head without bias.

  Attributes:
    completions: K, the most completions of a prompt.
    length: tokens of a prompt with a completion.
    center_rewards_coefficient: see `ranking_terms`.
  """

  completions: int
  length: int
  center_rewards_coefficient: Weight = 0.0
  read = 'extract'
  features = ''

  @property
  def num_outputs(self) -> int:
    return 0

  @property
  def num_sequences(self) -> int:
    return self.completions

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The mean over prompts of the mean over pairs."""
    scores, weights_B = self.scores(params, batch, key), batch['weights']
    terms = ranking_terms(scores.outputs_BK, batch['labels'], self.center_rewards_coefficient)
    metrics = {name: Mean.of(x, weights_B) for name, x in terms.items()}
    loss = metrics.pop('loss')
    return Loss(*loss, metrics=metrics, stats=forward.stats(scores.sown))


LossType = Literal['sigmoid', 'ipo', 'hinge']


def dpo_losses(
  margin_B: jax.Array, beta: float, loss_type: LossType, label_smoothing: float
) -> jax.Array:
  """The loss of each pair.

    sigmoid  -(1 - e) log sigma(beta h) - e log sigma(-beta h) (Rafailov et al.,
             2023, equation 7; label smoothing e: Mitchell, 2023)
    ipo      (h - 1 / (2 beta))^2 (Azar et al., 2023, equation 17)
    hinge    max(0, 1 - beta h) (SLiC, Zhao et al., 2023)

  Args:
    margin_B: h, the chosen completion's log(pi / pi_ref) less the rejected
      one's; for ipo of means over tokens, as in TRL.
    beta: strength of the constraint to the reference.
    label_smoothing: e, the probability that a label is wrong.
  """
  if loss_type == 'ipo':
    return jnp.square(margin_B - 1 / (2 * beta))
  if loss_type == 'hinge':
    return jax.nn.relu(1 - beta * margin_B)
  right, wrong = (jax.nn.softplus(-s * beta * margin_B) for s in (1, -1))
  return (1 - label_smoothing) * right + label_smoothing * wrong


@dataclass(frozen=True)
class Dpo(Objective):
  """Direct preference optimisation.

  A batch has `inputs` and `targets` int32 [B, 2, L], the chosen completion
  first, each after the prompt; `counts` float32 [B, 2, L], 1 where the target
  is a token of the completion; `reference` float32 [B, 2], the sums of the
  reference's log-probabilities over these; and `weights` [B].

  Attributes:
    length: targets of a prompt with a completion.
    beta: see `dpo_losses`.
    loss_type: see `dpo_losses`.
    label_smoothing: see `dpo_losses`.
  """

  length: int
  beta: Positive = 0.1
  loss_type: LossType = 'sigmoid'
  label_smoothing: Fraction = 0.0

  def __post_init__(self):
    """Rejects label smoothing that the loss does not have."""
    if self.label_smoothing and self.loss_type != 'sigmoid':
      raise UsageError(
        f'label_smoothing={self.label_smoothing}: loss_type='
        f"{self.loss_type!r} has none; give 0.0, or loss_type='sigmoid'"
      )

  @property
  def needs(self) -> Needs:
    """A decoder; batches come from the pairs."""
    return Needs(rows=())

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, 'dpo')

  @property
  def example(self) -> dict[str, np.ndarray]:
    """A batch of one pair."""
    zeros = np.zeros((1, 2, self.length), np.int32)
    return {
      'inputs': zeros,
      'targets': zeros,
      'counts': np.ones(zeros.shape, np.float32),
      'reference': np.zeros((1, 2), np.float32),
      'weights': np.ones(1, np.float32),
    }

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """The sums of log-probabilities, chosen and rejected; float32 [B, 2]."""
    return self._log_probs(params, batch, None)[0]

  def _log_probs(self, params, batch, key):
    """The sums of log-probabilities [B, 2], and router statistics."""
    B, _, L = batch['inputs'].shape
    rows = {'inputs': batch['inputs'].reshape(2 * B, L)}
    hidden_BLD, stats = forward.states(self.model, params, rows, key)
    scores = forward.scores(self.model, params, hidden_BLD)
    log_probs_BL = token_log_probs(scores, batch['targets'].reshape(2 * B, L))
    summed = jnp.sum(log_probs_BL.reshape(B, 2, L) * batch['counts'], axis=2)
    return summed, stats

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The mean over pairs, with TRL's metrics."""
    policy_B2, stats = self._log_probs(params, batch, key)
    ratio_B2 = policy_B2 - batch['reference']
    margin_B = ratio_B2[:, 0] - ratio_B2[:, 1]
    if self.loss_type == 'ipo':
      each_B2 = ratio_B2 / jnp.maximum(jnp.sum(batch['counts'], axis=2), 1)
      margin_B = each_B2[:, 0] - each_B2[:, 1]
    losses_B = dpo_losses(margin_B, self.beta, self.loss_type, self.label_smoothing)
    rewards_B2 = self.beta * jax.lax.stop_gradient(ratio_B2)
    chosen_B, rejected_B = rewards_B2.T
    weights_B = batch['weights']
    figures = {
      'rewards/chosen': chosen_B,
      'rewards/rejected': rejected_B,
      'rewards/margins': chosen_B - rejected_B,
      'rewards/accuracies': (chosen_B > rejected_B).astype(jnp.float32),
      'logps/chosen': policy_B2[:, 0],
      'logps/rejected': policy_B2[:, 1],
    }
    means = {name: Mean.of(x, weights_B) for name, x in figures.items()}
    return Loss(*Mean.of(losses_B, weights_B), metrics=means, stats=stats)
