# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What reads a model's states for a task, by name.

  extract  the last token of each sequence, W_y without a bias (GPT-1, eq. 3)
  first    the first token: a pooler, tanh(W h + b), then a dense layer (BERT);
           ELECTRA has GELU for tanh
  last     the same of the last token of each sequence (XLNet)
  tokens   each token: a dense layer
  spans    each token: how likely it begins, and ends, what is looked for

The first four drop out what they read. Their parameters are those of
Hugging Face's classes, see `hf.heads`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn.classifier import Classifier, EachToken, FirstToken, SpanEnds
from gpt_jax.nn.init import Initializer
from gpt_jax.objectives.base import Batch, Params


class Head(NamedTuple):
  """A head.

  Attributes:
    init: a key and the width of the states to `params['heads']`, boxed.
    outputs: these parameters, states [S, L, D] of S = B C sequences, the batch
      and a key, None in evaluation, to float32 [B, K].
  """

  init: Callable[[jax.Array, int], Params]
  outputs: Callable[[Params, jax.Array, Batch, jax.Array | None], jax.Array]


def extract(
  num_outputs: int, initializer: Initializer, dropout: float, *, added: bool
) -> Head:
  """GPT-1's.

  Args:
    num_outputs: columns of W_y.
    initializer: of W_y.
    dropout: of the states.
    added: whether the states of an example's sequences are added first, for
      one output; else each sequence has its own.
  """
  classifier = Classifier(num_outputs, initializer, dropout)

  def init(key: jax.Array, width: int) -> Params:
    found = classifier.init(key, jnp.zeros((1, width)))
    return {'score': found['params']}

  def outputs(params, states_SLD, batch, key):
    B, C = batch['lengths'].shape
    # Whatever fills up a row stands after the token that is read here.
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
  """BERT's. Each sequence has its own outputs.

  Args:
    num_outputs: of a sequence.
    initializer: of the kernels.
    dropout: of what the last layer reads.
    pooler: of `classifier.POOLERS`.
  """
  return _of(FirstToken(num_outputs, initializer, dropout, pooler))


def last(
  num_outputs: int, initializer: Initializer, dropout: float, *, pooler: str
) -> Head:
  """As `first`, of each sequence's last token."""
  head = first(num_outputs, initializer, dropout, pooler=pooler)

  def outputs(params, states_SLD, batch, key):
    # Whatever fills up a row stands after the token that is read here.
    at = batch['lengths'].reshape(-1, 1, 1) - 1
    states_S1D = jnp.take_along_axis(states_SLD, at, axis=1)
    return head.outputs(params, states_S1D, batch, key)

  return Head(head.init, outputs)


def tokens(num_outputs: int, initializer: Initializer, dropout: float) -> Head:
  """The outputs of each token, one after the other."""
  return _of(EachToken(num_outputs, initializer, dropout))


def spans(initializer: Initializer) -> Head:
  """How much each token is the first; then how much each is the last."""
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
