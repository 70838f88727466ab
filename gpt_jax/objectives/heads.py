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
           encoder-decoder reads apart (CoVe): see `nn.biattentive`

All but `spans` apply dropout to their input. The parameters of all but `concat`
and `biattentive` are those of Hugging Face's classes, see `hf.heads`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn.biattentive import Biattentive
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.heads import (
  Classifier,
  EachToken,
  FirstToken,
  SpanEnds,
  TwoLayers,
)
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.loss import Batch, Params
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError


class Extract(NamedTuple):
  """GPT-1's head.

  Attributes:
    added: whether the states of an example's sequences are summed first, for
      one output; else each sequence has its own.
  """

  classifier: Classifier
  added: bool

  def init(self, key: jax.Array, width: int) -> Params:
    """`params['heads']`, boxed, for states of a width."""
    found = self.classifier.init(key, jnp.zeros((1, width)))
    return {'score': found['params']}

  def outputs(
    self,
    params: Params,
    states_SLD: jax.Array,
    batch: Batch,
    key: jax.Array | None,
  ) -> jax.Array:
    """The outputs of B examples of C sequences, S = B C; float32 [B, K].

    Args:
      key: for dropout; None: no dropout.
    """
    (B, C), at = batch['lengths'].shape, _last(states_SLD, batch)
    at = at.reshape(B, C, -1)
    states = jnp.sum(at, axis=1) if self.added else at.reshape(B * C, -1)
    variables: Any = {'params': params['score']}
    found: Any = self.classifier.apply(variables, states, rngs=_rngs(key))
    return found.reshape(B, -1)


class Read(NamedTuple):
  """The other heads; `params['heads']` are the module's parameters.

  Attributes:
    last: whether the module reads each sequence's last token; else all tokens.
  """

  module: FirstToken | EachToken | SpanEnds
  last: bool = False

  def init(self, key: jax.Array, width: int) -> Params:
    """See `Extract`."""
    found: Any = self.module.init(key, jnp.zeros((1, 1, width)))
    return found['params']

  def outputs(
    self,
    params: Params,
    states_SLD: jax.Array,
    batch: Batch,
    key: jax.Array | None,
  ) -> jax.Array:
    """See `Extract`."""
    states = _last(states_SLD, batch) if self.last else states_SLD
    found: Any = self.module.apply({'params': params}, states, rngs=_rngs(key))
    return found.reshape(len(batch['lengths']), -1)


class Concat(NamedTuple):
  """ULMFiT's head: [h_T, maxpool(H), meanpool(H)] of the real tokens' states.

  Those of an example's sequences are added.
  """

  module: TwoLayers

  def init(self, key: jax.Array, width: int) -> Params:
    """See `Extract`."""
    found: Any = self.module.init(key, jnp.zeros((1, 3 * width)))
    return found['params']

  def outputs(
    self,
    params: Params,
    states_SLD: jax.Array,
    batch: Batch,
    key: jax.Array | None,
  ) -> jax.Array:
    """See `Extract`."""
    (B, C), (_, L, D) = batch['lengths'].shape, states_SLD.shape
    states_SLD = states_SLD.astype(jnp.float32)
    lengths_S11 = batch['lengths'].reshape(-1, 1, 1)
    real_SL1 = jnp.arange(L)[None, :, None] < lengths_S11
    pooled_SD3 = (
      _last(states_SLD, batch)[:, 0],
      jnp.max(jnp.where(real_SL1, states_SLD, -jnp.inf), axis=1),
      jnp.sum(jnp.where(real_SL1, states_SLD, 0), axis=1) / lengths_S11[:, 0],
    )
    pooled_BCD = jnp.concatenate(pooled_SD3, axis=-1).reshape(B, C, 3 * D)
    variables: Any = {'params': params}
    pooled_BD = jnp.sum(pooled_BCD, axis=1)
    found: Any = self.module.apply(variables, pooled_BD, rngs=_rngs(key))
    return found


class Attentive(NamedTuple):
  """CoVe's head, on the first and the last of an example's sequences."""

  module: Biattentive

  def init(self, key: jax.Array, width: int) -> Params:
    """See `Extract`."""
    states, real = jnp.zeros((1, 1, width)), jnp.ones((1, 1), bool)
    found: Any = self.module.init(key, states, states, real, real)
    return found['params']

  def outputs(
    self,
    params: Params,
    states_SLD: jax.Array,
    batch: Batch,
    key: jax.Array | None,
  ) -> jax.Array:
    """See `Extract`."""
    lengths_BC, (_, L, D) = batch['lengths'], states_SLD.shape
    states_BCLD = states_SLD.astype(jnp.float32).reshape(
      *lengths_BC.shape, L, D
    )
    real_BCL = jnp.arange(L)[None, None] < lengths_BC[..., None]
    found: Any = self.module.apply(
      {'params': params},
      *(states_BCLD[:, 0], states_BCLD[:, -1]),
      *(real_BCL[:, 0], real_BCL[:, -1]),
      rngs=_rngs(key),
    )
    return found


def _last(states_SLD: jax.Array, batch: Batch) -> jax.Array:
  """Each sequence's state before its padding, [S, 1, D]."""
  at = batch['lengths'].reshape(-1, 1, 1) - 1
  return jnp.take_along_axis(states_SLD, at, axis=1)


def _rngs(key: jax.Array | None) -> dict[str, jax.Array]:
  return {} if key is None else {'dropout': key}


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
    found = range(first, first + (self.count or num_layers))
    if not 0 <= found.start < found.stop <= num_layers + 1:
      raise UsageError(
        f'finetune.features={self.text!r}: the model has {num_layers} layers'
      )
    return (0, *found) if self.ends else found


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
    return model.d_model + (
      ModelChoices.of(model).memory_width or model.d_model
    )
  if features is None or features.weighted:
    return model.d_model
  return len(features.layers(model.num_layers)) * model.d_model


FEATURES = {
  'concat': concat,
  'ends': ends,
  'layer': layer,
  'weighted_sum': weighted_sum,
}
