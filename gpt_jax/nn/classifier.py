# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layers that fine-tuning adds: GPT-1's W_y (equation 3), and BERT's."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.activations import Activation, gelu_exact
from gpt_jax.nn.dense import Dense, parameter
from gpt_jax.nn.dropout import Dropout
from gpt_jax.nn.init import Initializer
from gpt_jax.nn.pooler import Pooler


class Classifier(nn.Module):
  """h W_y, without a bias, after dropout.

  Attributes:
    num_outputs: columns of W_y.
    initializer: of W_y.
    dropout: of its input (GPT-1, section 4.1: 0.1).
  """

  num_outputs: int
  initializer: Initializer
  dropout: float

  @nn.compact
  def __call__(self, hidden_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 [B, num_outputs]."""
    drop = Dropout(self.dropout, deterministic=not self.has_rng('dropout'))
    shape = (hidden_BD.shape[-1], self.num_outputs)
    kernel = parameter(
      self, 'kernel', self.initializer, shape, ('embed', 'head')
    )
    # So few outputs cost nothing in float32.
    return drop(hidden_BD.astype(jnp.float32)) @ kernel.astype(jnp.float32)


# What a pooled state goes through, by name; none: there is no pooler.
POOLERS: dict[str, Activation | None] = {
  'tanh': jnp.tanh,  # BERT
  'gelu': gelu_exact,  # ELECTRA
  'relu': jax.nn.relu,  # DistilBERT
  'none': None,
}


class FirstToken(nn.Module):
  """The first token of each row, maybe pooled, act(W h + b), and classified.

  Attributes:
    num_outputs: of a row.
    initializer: of the kernels.
    dropout: of what the last layer reads.
    pooler: of `POOLERS`.
  """

  num_outputs: int
  initializer: Initializer
  dropout: float
  pooler: str

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, K]."""
    x_SD = states_SLD[:, 0].astype(jnp.float32)
    if activation := POOLERS[self.pooler]:
      pooler = Pooler(self.initializer, jnp.float32, activation, name='pooler')
      x_SD = pooler(x_SD)
    x_SD = _dropped(self, self.dropout, x_SD)
    return _dense('classifier', self.num_outputs, self.initializer)(x_SD)


class EachToken(nn.Module):
  """Each token classified; attributes as above."""

  num_outputs: int
  initializer: Initializer
  dropout: float

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, L, K]."""
    x_SLD = _dropped(self, self.dropout, states_SLD.astype(jnp.float32))
    return _dense('classifier', self.num_outputs, self.initializer)(x_SLD)


class SpanEnds(nn.Module):
  """How much each token is the first of a span, and how much the last."""

  initializer: Initializer

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, 2, L]."""
    x_SLD = states_SLD.astype(jnp.float32)
    return jnp.moveaxis(_dense('spans', 2, self.initializer)(x_SLD), -1, 1)


class WeightedSum(nn.Module):
  """The sum gamma sum_j softmax(w)_j h_j (Peters et al., 2018, equation 1)."""

  @nn.compact
  def __call__(self, states: list[jax.Array]) -> jax.Array:
    """Arrays [B, L, D] to one."""
    zeros, ones, axes = nn.initializers.zeros, nn.initializers.ones, ('layers',)
    weights = parameter(self, 'weights', zeros, (len(states),), axes)
    scale = parameter(self, 'scale', ones, (1,), axes)
    shares = scale * jax.nn.softmax(weights)
    return jnp.einsum('n,nBLD->BLD', shares, jnp.stack(states))


def _dense(name: str, features: int, initializer: Initializer) -> Dense:
  """So few outputs cost nothing in float32."""
  axes = ('embed', 'head')
  return Dense(features, axes, initializer, True, jnp.float32, name=name)


def _dropped(module: nn.Module, rate: float, x: jax.Array) -> jax.Array:
  deterministic = not module.has_rng('dropout')
  return Dropout(rate, deterministic=deterministic)(x)
