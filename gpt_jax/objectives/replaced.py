# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ELECTRA's model learns of a row with other tokens: two kinds of targets.

`ReplacedTargets`: whether each token is replaced (section 2).
`VocabularyTargets`: what it was (section 3.4).
"""

from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn.activations import ACTIVATIONS, gelu_exact
from gpt_jax.nn.init import INITS
from gpt_jax.nn.replaced import ReplacedHead
from gpt_jax.nn.transformer import DTYPES, Transformer
from gpt_jax.objectives import scores
from gpt_jax.objectives.base import Batch, Mean, Params
from gpt_jax.objectives.cross_entropy import (
  num_right,
  penalised_cross_entropy,
)
from gpt_jax.objectives.masked import at_chosen


def _weights(batch: Batch, chosen_only: bool) -> jax.Array:
  """Float32 [B, L], 1 for the tokens whose loss counts."""
  if not chosen_only:
    return batch['mask'].astype(jnp.float32)
  rows_B1 = jnp.arange(len(batch['mask']))[:, None]
  zeros_BL = jnp.zeros(batch['mask'].shape, jnp.float32)
  return zeros_BL.at[rows_B1, batch['masked_positions']].max(
    batch['masked_weights']
  )


class ReplacedTargets:
  """Whether each token is replaced."""

  def __init__(self, model: Transformer, chosen_only: bool):
    """The head, as wide as the model."""
    inits = spec.build('model.init_weights', model.init_weights, INITS)
    # The discriminator's head has the activation of its layers in the released
    # code; those of gated layers, and of experts, are none of its kind.
    name = spec.parse('model.ffn', model.ffn)[0].name
    self._head = ReplacedHead(
      inits(model.num_layers).kernel,
      ACTIVATIONS.get(name, gelu_exact),
      DTYPES[model.dtype],
    )
    self._size, self._chosen_only = model.d_model, chosen_only

  def init(self, key: jax.Array) -> Params:
    """As Hugging Face's pre-training head is kept, see `hf.heads`."""
    made: Any = self._head.init(key, jnp.zeros((1, 1, self._size)))
    return {'heads': made['params']}

  def weights(self, batch: Batch) -> jax.Array:
    """See `_weights`."""
    return _weights(batch, self._chosen_only)

  def loss(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    original_BL: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The sum over the tokens that count, and metrics."""
    del original_BL, evaluating
    variables = {'params': params['heads']}
    logits_BL: Any = self._head.apply(variables, hidden_BLD)
    weights_BL, label_BL = self.weights(batch), replaced_BL
    # -log sigmoid(z) = softplus(-z), -log(1 - sigmoid(z)) = softplus(z).
    loss_BL = jax.nn.softplus(jnp.where(label_BL, -logits_BL, logits_BL))
    said_BL = logits_BL > 0
    total, count = jnp.sum(loss_BL * weights_BL), jnp.sum(weights_BL)

    def share(of_BL: jax.Array, among_BL: jax.Array) -> Mean:
      return Mean(jnp.sum(of_BL * among_BL), jnp.sum(among_BL))

    return total, {
      'objective/replaced_loss': Mean(total, count),
      'objective/replaced_accuracy': share(said_BL == label_BL, weights_BL),
      'objective/replaced_recall': share(said_BL, weights_BL * label_BL),
      'objective/replaced_share': share(label_BL, weights_BL),
    }


class VocabularyTargets:
  """What each token was."""

  def __init__(self, model: Transformer, chosen_only: bool):
    """Of a model that scores the vocabulary."""
    self._model, self._chosen_only = model, chosen_only

  def init(self, key: jax.Array) -> Params:
    """The model has all there is."""
    del key
    return {}

  def weights(self, batch: Batch) -> jax.Array:
    """See `_weights`."""
    return _weights(batch, self._chosen_only)

  def loss(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    original_BL: jax.Array,
    replaced_BL: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> tuple[jax.Array, dict[str, Mean]]:
    """The sum over the tokens that count, and metrics."""
    model, weights_BL = self._model, self.weights(batch)
    asked = original_BL, weights_BL
    if self._chosen_only:
      hidden_BLD = at_chosen(hidden_BLD, batch)
      asked = batch['masked_targets'], batch['masked_weights']
    hidden, table_VD, softcap = scores.of_states(model, params, hidden_BLD)
    scored = (hidden, table_VD, *asked)
    sums: Any = penalised_cross_entropy(*scored, 0.0, softcap)
    count = jnp.sum(weights_BL)
    share = jnp.sum(replaced_BL * weights_BL)
    metrics = {
      'objective/token_loss': Mean(sums.total, count),
      'objective/replaced_share': Mean(share, count),
    }
    if evaluating:
      metrics['objective/token_accuracy'] = Mean(num_right(*scored), count)
    return sums.total, metrics
