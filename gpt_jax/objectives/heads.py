# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heads that read a model's states for a task, by name.

  extract  the last token of each sequence, W_y without a bias (GPT-1, eq. 3)
  first    the first token: a pooler, tanh(W h + b), then a dense layer (BERT);
           ELECTRA has GELU instead of tanh
  last     as `first`, with the last token of each sequence (XLNet)
  tokens   each token: a dense layer
  spans    each token: scores of being the first, and the last, of the answer

The first four apply dropout to their input. Their parameters are those of
Hugging Face's classes, see `hf.heads`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn.heads import Classifier, EachToken, FirstToken, SpanEnds
from gpt_jax.nn.layers import Initializer
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.loss import Batch, Params
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError


class Head(NamedTuple):
  """A head.

  Attributes:
    init: (key, width of the states) -> `params['heads']`, boxed.
    outputs: (these parameters, states [S, L, D] of S = B C sequences, batch,
      key or None in evaluation) -> float32 [B, K].
  """

  init: Callable[[jax.Array, int], Params]
  outputs: Callable[[Params, jax.Array, Batch, jax.Array | None], jax.Array]


def extract(
  num_outputs: int, initializer: Initializer, dropout: float, *, added: bool
) -> Head:
  """GPT-1's head.

  Args:
    num_outputs: columns of W_y.
    initializer: of W_y.
    added: whether the states of an example's sequences are summed first, for
      one output; else each sequence has its own.
  """
  classifier = Classifier(num_outputs, initializer, dropout)

  def init(key: jax.Array, width: int) -> Params:
    found = classifier.init(key, jnp.zeros((1, width)))
    return {'score': found['params']}

  def outputs(params, states_SLD, batch, key):
    B, C = batch['lengths'].shape
    # Padding comes after the token that is read here.
    last = batch['lengths'].reshape(B * C, 1, 1) - 1
    at = jnp.take_along_axis(states_SLD, last, axis=1).reshape(B, C, -1)
    states = jnp.sum(at, axis=1) if added else at.reshape(B * C, -1)
    variables: Any = {'params': params['score']}
    found: Any = classifier.apply(variables, states, rngs=_rngs(key))
    return found.reshape(B, -1)

  return Head(init, outputs)


def first(
  num_outputs: int, initializer: Initializer, dropout: float, *, pooler: str
) -> Head:
  """BERT's head. Each sequence has its own outputs.

  Args:
    num_outputs: per sequence.
    dropout: rate at the input of the last dense layer.
    pooler: a key of `nn.heads.POOLERS`.
  """
  return _of(FirstToken(num_outputs, initializer, dropout, pooler))


def last(
  num_outputs: int, initializer: Initializer, dropout: float, *, pooler: str
) -> Head:
  """As `first`, for each sequence's last token."""
  head = first(num_outputs, initializer, dropout, pooler=pooler)

  def outputs(params, states_SLD, batch, key):
    # Padding comes after the token that is read here.
    at = batch['lengths'].reshape(-1, 1, 1) - 1
    states_S1D = jnp.take_along_axis(states_SLD, at, axis=1)
    return head.outputs(params, states_S1D, batch, key)

  return Head(head.init, outputs)


def tokens(num_outputs: int, initializer: Initializer, dropout: float) -> Head:
  """The outputs of each token, concatenated."""
  return _of(EachToken(num_outputs, initializer, dropout))


def spans(initializer: Initializer) -> Head:
  """Each token's score as the first of the answer, then as the last."""
  return _of(SpanEnds(initializer))


def _of(module: FirstToken | EachToken | SpanEnds) -> Head:
  """A module whose parameters are `params['heads']`."""

  def init(key: jax.Array, width: int) -> Params:
    found: Any = module.init(key, jnp.zeros((1, 1, width)))
    return found['params']

  def outputs(params, states_SLD, batch, key):
    variables: Any = {'params': params}
    found: Any = module.apply(variables, states_SLD, rngs=_rngs(key))
    return found.reshape(len(batch['lengths']), -1)

  return Head(init, outputs)


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
  """

  text: str
  first: int
  count: int
  weighted: bool

  def layers(self, num_layers: int) -> range:
    """The layers that are read in a model of `num_layers` layers."""
    first = self.first + (num_layers + 1 if self.first < 0 else 0)
    found = range(first, first + (self.count or num_layers))
    if not 0 <= found.start < found.stop <= num_layers + 1:
      raise UsageError(
        f'finetune.features={self.text!r}: the model has {num_layers} layers'
      )
    return found


def layer(number: int = -1) -> Features:
  """One layer, counted from 1; 0: the embeddings; -1: the last layer."""
  return Features(f'layer({number})', number, 1, False)


def concat(count: Count = 4) -> Features:
  """The concatenation of the last `count` layers."""
  return Features(f'concat({count})', -count, count, False)


def weighted_sum(count: Whole = 0) -> Features:
  """The weighted sum of the last `count` layers; 0: all, no embeddings."""
  return Features(f'weighted_sum({count})', -count or 1, count, True)


def hidden_states(sown: Any, last_BLD: jax.Array) -> list[jax.Array]:
  """The embeddings, and each layer's output; the last one is normalised.

  Args:
    sown: from `apply(..., mutable=['intermediates'])`.
    last_BLD: the model's output.
  """
  found = sown['intermediates']
  return [found['embedded'][0], *layer_outputs(found)[:-1], last_BLD]


def width(features: Features | None, model: Transformer) -> int:
  """Width of a token's features."""
  if features is None or features.weighted:
    return model.d_model
  return len(features.layers(model.num_layers)) * model.d_model


FEATURES = {'layer': layer, 'concat': concat, 'weighted_sum': weighted_sum}
