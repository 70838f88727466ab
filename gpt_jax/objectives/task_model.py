# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model and the head that reads it, for the objectives of `task`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn import moe
from gpt_jax.nn.classifier import WeightedSum
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import features as features_lib
from gpt_jax.objectives import scores
from gpt_jax.objectives.base import Batch, Loss, Mean, Params
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.cross_entropy import penalised_cross_entropy
from gpt_jax.objectives.features import Features
from gpt_jax.objectives.heads import Head

# From the outputs [B, K] and the labels [B] to the loss of each example.
Score = Callable[[jax.Array, jax.Array], jax.Array]


class Scores(NamedTuple):
  """Of B examples of C sequences each.

  Attributes:
    outputs_BK: of the head.
    hidden_SLD: the last hidden states of all S = B C sequences.
    sown: by the routers of experts.
  """

  outputs_BK: jax.Array
  hidden_SLD: jax.Array
  sown: Any


class TaskModel(NamedTuple):
  """A model and a head.

  Attributes:
    model: gives the hidden states.
    head: reads them.
    features: which of them; None: the last, and the model learns.
    auxiliary: lambda.
    score: the loss of each example.
    each_token: whether that is a sum over those of its tokens whose label is
      not negative.
  """

  model: Transformer
  head: Head
  features: Features | None
  auxiliary: float
  score: Score
  each_token: bool = False

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model, and the head's."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    params: Any = self.model.init(key, tokens)['params']
    width = features_lib.width(self.features, self.model)
    of_heads = self.head.init(jax.random.fold_in(key, 1), width)
    if self.features is not None and self.features.weighted:
      count = len(self.features.layers(self.model.num_layers))
      of_sum: Any = WeightedSum().init(key, [jnp.zeros((1, 1, 1))] * count)
      of_heads = {**of_heads, 'layers': of_sum['params']}
    # As Hugging Face's classification heads are kept, see `hf.heads`.
    return {**params, 'heads': of_heads}

  def scores(
    self, params: Params, batch: Batch, key: jax.Array | None
  ) -> Scores:
    """What both losses are computed from."""
    hidden_SLD, sown = self._hidden(params, batch, key)
    states_SLD, of_heads = hidden_SLD, params['heads']
    if self.features is not None:
      found = features_lib.hidden_states(sown, hidden_SLD)
      picked = [found[i] for i in self.features.layers(self.model.num_layers)]
      states_SLD = self._joined(of_heads, jax.lax.stop_gradient(picked))
      of_heads = {n: x for n, x in of_heads.items() if n != 'layers'}
    of_head = None if key is None else jax.random.fold_in(key, 1)
    outputs = self.head.outputs(of_heads, states_SLD, batch, of_head)
    return Scores(outputs, hidden_SLD, sown)

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """What the task is measured by, [B, K]."""
    return self.scores(params, batch, None).outputs_BK

  def _hidden(
    self, params: Params, batch: Batch, key: jax.Array | None
  ) -> tuple[jax.Array, Any]:
    """The last states [S, L, D] of all sequences, and what was sown."""
    B, C, L = batch['inputs'].shape
    around: dict[str, Any] = {}
    if 'second' in batch:
      places = jnp.arange(L)[None]
      real = places < batch['lengths'].reshape(B * C, 1)
      around['mask_BL'] = real
      second = real & (places >= batch['second'].reshape(B * C, 1))
      if self._has_segments:  # 0, 1, and [CLS] at the end 2
        last = places == batch['lengths'].reshape(B * C, 1) - 1
        around['token_types_BL'] = jnp.where(last, 2, second.astype(jnp.int32))
      elif self._has_types:  # 0 for padding, too
        around['token_types_BL'] = second.astype(jnp.int32)
    frozen = self.features is not None  # and its features are always the same
    result: Any = self.model.apply(
      {'params': params},
      batch['inputs'].reshape(B * C, L),
      **around,
      rngs={} if key is None or frozen else {'dropout': key},
      mutable=['router', *['intermediates'] * frozen],
    )
    out, sown = result
    return out.hidden_BLD, sown

  def _joined(self, of_heads: Params, states: list[jax.Array]) -> jax.Array:
    """The features of each token."""
    if 'layers' not in of_heads:
      return jnp.concatenate(states, axis=-1)
    variables: Any = {'params': of_heads['layers']}
    found: Any = WeightedSum().apply(variables, states)
    return found

  @property
  def _has_segments(self) -> bool:
    """Whether the layers tell the tokens of two texts apart (XLNet)."""
    position = spec.build('model.position', self.model.position, POSITIONS)
    return position.segments

  @property
  def _has_types(self) -> bool:
    """Whether the model is told which text a token is of."""
    found = spec.build('model.input', self.model.input, INPUTS)
    return found.num_token_types > 1

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """L2 and, in training, lambda L1."""
    scores, weights_B = self.scores(params, batch, key), batch['weights']
    losses_B = self.score(scores.outputs_BK, batch['labels'])
    weight = jnp.sum(weights_B)
    if self.each_token:
      asked_B = jnp.sum(batch['labels'] >= 0, axis=1)
      weight = jnp.sum(weights_B * asked_B)
    total = jnp.sum(weights_B * losses_B)
    penalty, metrics = jnp.zeros(()), {}
    if self.auxiliary and key is not None:
      lm = self._language_model(params, batch, scores.hidden_SLD)
      penalty = self.auxiliary * lm
      metrics = {'objective/lm_loss': Mean(lm, weight)}
    routers = moe.layer_stats(scores.sown.get('router', {}))
    # Reports leave the auxiliary loss out: their loss is that of the task.
    return add_routers(
      Loss(total + penalty, weight, penalty, metrics),
      routers,
      training=key is not None,
    )

  def _language_model(
    self, params: Params, batch: Batch, hidden_SLD: jax.Array
  ) -> jax.Array:
    """L1 of each example, times its weight, added up."""
    tokens_BCL, lengths_BC = batch['inputs'], batch['lengths']
    B, C, L = tokens_BCL.shape
    hidden, table_VD, softcap = scores.of_states(
      self.model, params, hidden_SLD[:, :-1]
    )
    targets_SL = tokens_BCL.reshape(B * C, L)[:, 1:]
    # All tokens after the start, the extract token too.
    count_BC = jnp.maximum(lengths_BC - 1, 1)
    each_S = (batch['weights'][:, None] / (C * count_BC)).reshape(B * C, 1)
    inside_SL = jnp.arange(L - 1)[None] < (lengths_BC - 1).reshape(B * C, 1)
    weights_SL = jnp.where(inside_SL, each_S, 0.0)
    sums: Any = penalised_cross_entropy(
      hidden, table_VD, targets_SL, weights_SL, 0.0, softcap
    )
    return sums.total
