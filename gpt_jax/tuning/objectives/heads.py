# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heads that read a model's states for a task, by name.

  extract  the last token of each sequence, W_y without a bias (GPT-1, eq. 3)
  first    the first token: a pooler, tanh(W h + b), then a dense layer (BERT);
           ELECTRA has GELU instead of tanh
  last     as `first`, with the last token of each sequence (XLNet)
  tokens   each token: a dense layer
  spans    each token: scores of being the first, and the last, of the answer
  concat   all tokens: the last state, the maximum and the mean of all states,
           joined; two dense layers (ULMFiT, section 3.3: concat pooling)
  biattentive  all tokens of one text or two, which the frozen encoder of an
           encoder-decoder reads apart (CoVe): see `papers.lstm.biattentive`

All but `spans` apply dropout to their input. The parameters of all but `concat`
and `biattentive` are those of Hugging Face's classes, see `hf.heads`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives.loss import Batch, Params
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.task_heads import Classifier, EachToken, FirstToken, SpanEnds, TwoLayers
from gpt_jax.papers.lstm.biattentive import Biattentive

Module = Biattentive | Classifier | EachToken | FirstToken | SpanEnds | TwoLayers


class TaskHead(NamedTuple):
  """A module, and what it reads of the states of a task's sequences.

  B examples have C sequences each, S = B C in all.

  Attributes:
    module: its parameters are `params['heads']`.
    reads: from the states [S, L, D] and the batch to the module's inputs.
    within: the entry of `params['heads']` that has them instead; '': none.
  """

  module: Module
  reads: Callable[[jax.Array, Batch], tuple[jax.Array, ...]]
  within: str = ''

  def init(self, key: jax.Array, width: int) -> Params:
    """`params['heads']`, boxed, for states of a width."""
    one_token: Batch = {'lengths': jnp.ones((1, 1), jnp.int32)}
    inputs = self.reads(jnp.zeros((1, 1, width)), one_token)
    variables: Any = self.module.init(key, *inputs)
    variables = variables['params']
    return {self.within: variables} if self.within else variables

  def outputs(
    self, params: Params, states_SLD: jax.Array, batch: Batch, key: jax.Array | None
  ) -> jax.Array:
    """The outputs, float32 [B, K].

    Args:
      key: for dropout; None: no dropout.
    """
    params = params[self.within] if self.within else params
    rngs = {} if key is None else {'dropout': key}
    inputs = self.reads(states_SLD, batch)
    outputs_BK: Any = self.module.apply({'params': params}, *inputs, rngs=rngs)
    return outputs_BK.reshape(len(batch['lengths']), -1)


def all_tokens(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array]:
  """All states, [S, L, D]."""
  del batch
  return (states_SLD,)


def last_token(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array]:
  """Each sequence's state before its padding, [S, 1, D]."""
  at = batch['lengths'].reshape(-1, 1, 1) - 1
  return (jnp.take_along_axis(states_SLD, at, axis=1),)


def last_of_each(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array]:
  """The last token's state of each sequence, [S, D]: one output each."""
  return (last_token(states_SLD, batch)[0][:, 0],)


def last_added(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array]:
  """Its sum over an example's sequences, [B, D], for one output."""
  (last_SD,) = last_of_each(states_SLD, batch)
  return (jnp.sum(last_SD.reshape(*batch['lengths'].shape, -1), axis=1),)


def pooled(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array]:
  """[h_T, maxpool(H), meanpool(H)] of the real tokens' states (ULMFiT).

  Those of an example's sequences are added: [B, 3 D].
  """
  (B, C), (_, L, D) = batch['lengths'].shape, states_SLD.shape
  states_SLD = states_SLD.astype(jnp.float32)
  lengths_S11 = batch['lengths'].reshape(-1, 1, 1)
  real_SL1 = jnp.arange(L)[None, :, None] < lengths_S11
  pooled_SD3 = (
    *last_of_each(states_SLD, batch),
    jnp.max(jnp.where(real_SL1, states_SLD, -jnp.inf), axis=1),
    jnp.sum(jnp.where(real_SL1, states_SLD, 0), axis=1) / lengths_S11[:, 0],
  )
  pooled_BCD = jnp.concatenate(pooled_SD3, axis=-1).reshape(B, C, 3 * D)
  return (jnp.sum(pooled_BCD, axis=1),)


def two_texts(states_SLD: jax.Array, batch: Batch) -> tuple[jax.Array, ...]:
  """The first and the last of an example's sequences (CoVe).

  Returns:
    The states of both, [B, L, D], and which tokens are real, [B, L].
  """
  lengths_BC, (_, L, D) = batch['lengths'], states_SLD.shape
  states_BCLD = states_SLD.astype(jnp.float32).reshape(*lengths_BC.shape, L, D)
  real_BCL = jnp.arange(L)[None, None] < lengths_BC[..., None]
  return (states_BCLD[:, 0], states_BCLD[:, -1], real_BCL[:, 0], real_BCL[:, -1])


# Features: states of a frozen model that a head reads.
#
# BERT's section 5.3 compares, for named entities: the embeddings, the second to
# last layer, the last, the weighted sum of the last four, their concatenation,
# and the weighted sum of all layers. The weighted sum is ELMo's (Peters et al.,
# 2018, equation 1): gamma sum_j softmax(w)_j h_j.


class Features(NamedTuple):
  """The states that a head reads.

  Attributes:
    text: the call, for error messages.
    first: first layer that is read, 0 being the embeddings; negative numbers
      count from the end.
    count: number of layers from `first` on; 0: all.
    weighted: whether they are summed with learned weights; else concatenated.
    ends: whether the embeddings are read too, before them.
  """

  text: str
  first: int
  count: int
  weighted: bool
  ends: bool = False

  def layers(self, num_layers: int) -> Sequence[int]:
    """The layers that are read in a model of `num_layers` layers."""
    first = self.first + (num_layers + 1 if self.first < 0 else 0)
    span = range(first, first + (self.count or num_layers))
    if not 0 <= span.start < span.stop <= num_layers + 1:
      raise UsageError(f'finetune.features={self.text!r}: the model has {num_layers} layers')
    return (0, *span) if self.ends else span


def ends() -> Features:
  """The embeddings and the last layer, joined (CoVe, section 5)."""
  return Features('ends()', -1, 1, False, ends=True)


def layer(number: int = -1) -> Features:
  """One layer, counted from 1; 0: the embeddings; -1: the last layer."""
  return Features(f'layer({number})', number, 1, False)


def concat(count: Count = 4) -> Features:
  """The concatenation of the last `count` layers."""
  return Features(f'concat({count})', -count, count, False)


def weighted_sum(count: Whole = 0) -> Features:
  """The weighted sum of the last `count` layers; 0: all, no embeddings."""
  return Features(f'weighted_sum({count})', -count or 1, count, True)


def width(features: Features | None, model: Transformer) -> int:
  """Width of a token's features."""
  if model.num_encoder_layers:  # the embeddings, and the encoder's output
    return model.d_model + (ModelChoices.of(model).memory_width or model.d_model)
  if features is None or features.weighted:
    return model.d_model
  return len(features.layers(model.num_layers)) * model.d_model
