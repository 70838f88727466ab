# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Supervised fine-tuning: next-token prediction of the tokens with a weight.

  L = sum_t w_t (-log P(x_t | x_<t)) / sum_t w_t

with w 1 for what the assistant says (Ouyang et al., 2022, section 3.5, step 1).
The sums are taken over the whole batch, so that each token counts the same,
whatever row it is in.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.causal import Target
from gpt_jax.core.objectives.cross_entropy import Measured, penalised_cross_entropy
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params


@dataclass(frozen=True)
class Dialogue(Target):
  """Next-token prediction on dialogues, from `tuning.packing`.

  Attributes:
    packed: whether rows hold several dialogues, which do not see each other.
  """

  packed: bool = field(default=False, kw_only=True)
  every_token = False

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, 'dialogue')

  @property
  def example(self) -> dict[str, np.ndarray]:
    batch = super().example
    if not self.packed:
      return batch
    return {**batch, 'segments': batch['inputs'], 'positions': batch['inputs']}

  def loss_of_states(
    self, params: Params, hidden_BLD: jax.Array, batch: Batch, *, evaluating: bool
  ) -> Loss:
    """Cross-entropy, with TRL's metrics of the predictions."""
    hidden, table_VD, softcap = forward.scores(self.model, params, hidden_BLD)
    sums: Measured = penalised_cross_entropy(
      hidden,
      table_VD,
      batch['targets'],
      batch['weights'],
      0.0 if evaluating else self.z_loss,
      softcap,
      measured=True,
    )
    weight = jnp.sum(batch['weights'])
    metrics = {
      'mean_token_accuracy': Mean(sums.right, weight),
      'entropy': Mean(sums.entropy, weight),
    }
    return Loss(sums.total, weight, sums.penalty, metrics)
