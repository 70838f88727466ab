# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Heads beside that of the vocabulary: of classes, spans and pairs of texts."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.layers import Activation, Dense, Dropout, Initializer, gelu_exact, parameter


class Pooler(nn.Module):
  """act(W h + b) of the first token's state; with tanh, BERT's C."""

  initializer: Initializer
  dtype: Any
  activation: Activation = jnp.tanh

  @nn.compact
  def __call__(self, hidden_BD: jax.Array) -> jax.Array:
    """[B, D] to [B, D]."""
    size = hidden_BD.shape[-1]
    dense = Dense(size, ('embed', 'mlp'), self.initializer, True, self.dtype, name='dense')
    nn.share_scope(self, dense)
    return self.activation(dense(hidden_BD))


class PairHead(nn.Module):
  """Whether B follows A (0) or not (1), from the pooled vector."""

  initializer: Initializer

  @nn.compact
  def __call__(self, pooled_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 logits [B, 2]."""
    # So few outputs cost nothing in float32.
    dense = Dense(2, ('embed', 'head'), self.initializer, True, jnp.float32, name='dense')
    nn.share_scope(self, dense)
    return dense(pooled_BD.astype(jnp.float32))


# The layers that fine-tuning adds: GPT-1's W_y (equation 3), and BERT's.


class Classifier(nn.Module):
  """h W_y, without a bias, after dropout.

  Attributes:
    num_outputs: columns of W_y.
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
    kernel = parameter(self, 'kernel', self.initializer, shape, ('embed', 'head'))
    # So few outputs cost nothing in float32.
    return drop(hidden_BD.astype(jnp.float32)) @ kernel.astype(jnp.float32)


# Activations of the pooler, by name; none: there is no pooler.
POOLERS: dict[str, Activation | None] = {
  'tanh': jnp.tanh,  # BERT
  'gelu': gelu_exact,  # ELECTRA
  'relu': jax.nn.relu,  # DistilBERT
  'none': None,
}


class FirstToken(nn.Module):
  """Classifies rows by their first token, with an optional pooler.

  Attributes:
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
  """Classifies each token; attributes as in `FirstToken`."""

  num_outputs: int
  initializer: Initializer
  dropout: float

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, L, K]."""
    x_SLD = _dropped(self, self.dropout, states_SLD.astype(jnp.float32))
    return _dense('classifier', self.num_outputs, self.initializer)(x_SLD)


# Width of the layer between; from ULMFiT's released code.
_BETWEEN = 50


class TwoLayers(nn.Module):
  """ULMFiT's classifier: a dense layer of 50 units, ReLU, another one.

  Both have dropout of their input. The paper also has batch normalisation,
  whose statistics would make a row's output depend on other rows.
  """

  num_outputs: int
  initializer: Initializer
  dropout: float

  @nn.compact
  def __call__(self, pooled_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 [B, K]."""
    x_BD = _dropped(self, self.dropout, pooled_BD.astype(jnp.float32))
    x_BF = jax.nn.relu(_dense('between', _BETWEEN, self.initializer)(x_BD))
    x_BF = _dropped(self, self.dropout, x_BF)
    # So narrow a kernel is not split.
    axes, count = (None, 'head'), self.num_outputs
    return _dense('classifier', count, self.initializer, axes)(x_BF)


class View(nn.Module):
  """Classifies each token by U relu(W x + b) + c."""

  num_outputs: int
  width: int
  initializer: Initializer

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, L, K]."""
    hidden = Dense(self.width, ('embed', 'mlp'), self.initializer, True, jnp.float32, name='hidden')
    x_SLF = jax.nn.relu(hidden(states_SLD.astype(jnp.float32)))
    return _dense('classifier', self.num_outputs, self.initializer)(x_SLF)


class SpanEnds(nn.Module):
  """Scores of each token as the first and as the last of a span."""

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


def _dense(
  name: str,
  features: int,
  initializer: Initializer,
  axes: tuple[str | None, str] = ('embed', 'head'),
) -> Dense:
  """A dense layer in float32: with so few outputs it costs nothing."""
  return Dense(features, axes, initializer, True, jnp.float32, name=name)


def _dropped(module: nn.Module, rate: float, x: jax.Array) -> jax.Array:
  deterministic = not module.has_rng('dropout')
  return Dropout(rate, deterministic=deterministic)(x)


# Replaced-token detection (ELECTRA, section 2).


class ReplacedHead(nn.Module):
  """w act(W h + b) + c of each token's state.

  The paper has sigmoid(w h); the released code and models have another dense
  layer before it.

  Attributes:
    activation: act.
  """

  initializer: Initializer
  activation: Activation
  dtype: Any

  @nn.compact
  def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
    """[B, L, D] to float32 logits [B, L]; above 0: replaced."""
    size = hidden_BLD.shape[-1]
    inner = Dense(size, ('embed', 'mlp'), self.initializer, True, self.dtype, name='replaced_dense')
    # One output costs nothing in float32.
    last = Dense(1, ('embed', 'head'), self.initializer, True, jnp.float32, name='replaced')
    x_BLD = self.activation(inner(hidden_BLD))
    return last(x_BLD.astype(jnp.float32))[..., 0]


# Auxiliary classifiers: one of the vocabulary per layer (Al-Rfou et al. 2018).


class LayerClassifiers(nn.Module):
  """Bias-free classifiers of states: logits of layer n are h_n kernel_n^T.

  The shape is that of the kernel, [N, V, D].
  """

  shape: tuple[int, int, int]
  initializer: Initializer

  @nn.compact
  def __call__(self) -> jax.Array:
    """The kernel."""
    axes = ('layers', 'vocab', 'embed')
    return parameter(self, 'kernel', self.initializer, self.shape, axes)
