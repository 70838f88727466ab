# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Output heads: scores of the vocabulary, of classes, of spans."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn.embed import (
  SCALES,
  AdaptiveEmbedding,
  AdaptiveSoftmax,
  Embedding,
  Input,
  Inputs,
  Scale,
  Transform,
)
from gpt_jax.nn.layers import (
  ACTIVATIONS,
  Activation,
  Dense,
  Dropout,
  Initializer,
  Initializers,
  gelu_exact,
  parameter,
)
from gpt_jax.ranges import NotNegative
from gpt_jax.spec import UsageError


class OutputHead(NamedTuple):
  """How hidden states score the vocabulary.

  Attributes:
    tied: with the token embeddings instead of a separate table.
    bias: whether each token has a bias.
    scale: of the hidden states, by the width.
    transform: activation of a dense layer, followed by `model.norm`, that
      hidden states go through first; None: there is none.
    own: clusters of an adaptive softmax with their own projections; None: a
      plain softmax.
    softcap: logits x become softcap * tanh(x / softcap); 0: unchanged.
  """

  tied: bool
  bias: bool
  scale: Callable[[int], float]
  transform: Activation | None
  own: tuple[int, ...] | None = None
  softcap: float = 0.0


def tied(
  bias: bool = False,
  scale: Scale = 'none',
  transform: Transform = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """Scores by the token embeddings.

  Args:
    bias: of each token.
    scale: none; rsqrt: hidden states / sqrt(d_model) (T5, PaLM).
    transform: none, or the activation of a dense layer, followed by a norm,
      that hidden states go through first (BERT's masked language model).
    softcap: logits x become softcap * tanh(x / softcap), within +- softcap
      (Gemma 2: 30); 0: unchanged.
  """
  return _output(True, bias, scale, transform, softcap)


def untied(
  bias: bool = False,
  scale: Scale = 'none',
  transform: Transform = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """Scores by a separate table; arguments as in `tied`."""
  return _output(False, bias, scale, transform, softcap)


def _output(
  tied: bool, bias: bool, scale: Scale, transform: Transform, softcap: float
) -> OutputHead:
  activation = ACTIVATIONS.get(transform)
  by_width = SCALES[scale]
  return OutputHead(tied, bias, by_width, activation, softcap=softcap)


def adaptive_softmax(own: tuple = ()) -> OutputHead:
  """Scores by the tables of `input='adaptive(...)'` (Grave et al. 2017).

  Args:
    own: clusters with their own projection instead of the input's.
  """
  scale = SCALES['none']
  return OutputHead(True, False, scale, None, tuple(own))


# Scores of the vocabulary.


class Head(nn.Module):
  """The output head of `model.output`; owns all but the token embeddings.

  Its methods take the input layer, whose embeddings a tied output reads.
  """

  choice: OutputHead
  input: Input
  vocab_size: int
  d_model: int
  norm: Callable[..., nn.Module]
  inits: Initializers
  dtype: Any

  def setup(self):
    """Creates the parts that the choice needs."""
    choice, inits = self.choice, self.inits
    # The width of the table.
    self._width = (choice.tied and self.input.d_embed) or self.d_model
    if choice.own is not None:
      if self.input.clusters is None:
        raise UsageError(
          'model.output: an adaptive softmax needs adaptive embeddings; set '
          "model.input='adaptive(...)', or take tied or untied"
        )
      self.softmax = AdaptiveSoftmax(
        self.input.clusters,
        choice.own,
        self.vocab_size,
        self.d_model,
        inits.embedding,
        self.dtype,
      )
    if not choice.tied:
      self.head = Embedding(
        *(self.vocab_size, self.d_model),
        *(inits.output or inits.embedding, self.dtype),
      )
    if choice.transform:
      self.output_dense = Dense(
        self._width, ('embed', 'mlp'), inits.kernel, True, self.dtype
      )
      self.output_norm = self.norm()
    if choice.bias:
      zeros = nn.initializers.zeros
      self.head_bias = parameter(
        self, 'head_bias', zeros, (self.vocab_size,), ('vocab',)
      )

  def table(self, inputs: Inputs) -> jax.Array:
    """See `Transformer.output_table`."""
    if self.choice.own is not None:
      raise UsageError(
        'model.output: an adaptive softmax works with the causal objective '
        'only; take tied or untied'
      )
    table = (inputs.embed if self.choice.tied else self.head).table()
    if self.choice.bias:
      bias = self.head_bias.astype(self.dtype)[:, None]
      table = jnp.concatenate([table, bias], axis=1)
    return table

  def hidden(self, hidden: jax.Array, inputs: Inputs) -> jax.Array:
    """See `Transformer.output_hidden`."""
    if self.choice.transform:
      hidden = self.choice.transform(self.output_dense(hidden))
      hidden = self.output_norm(hidden)
    elif self.choice.tied:
      hidden = inputs.narrow(hidden)
    hidden = hidden * jnp.asarray(self.choice.scale(self._width), hidden.dtype)
    if self.choice.bias:
      ones = jnp.ones((*hidden.shape[:-1], 1), hidden.dtype)
      hidden = jnp.concatenate([hidden, ones], axis=-1)
    return hidden

  def logits(self, hidden: jax.Array, inputs: Inputs) -> jax.Array:
    """See `Transformer.logits`."""
    if self.choice.own is not None:
      return self.softmax(hidden, *self._adaptive(inputs))
    logits = jnp.einsum(
      '...D,VD->...V',
      self.hidden(hidden, inputs),
      self.table(inputs),
      preferred_element_type=jnp.float32,
    )
    softcap = self.choice.softcap
    return softcap * jnp.tanh(logits / softcap) if softcap else logits

  def nll(
    self, hidden: jax.Array, targets: jax.Array, inputs: Inputs
  ) -> jax.Array:
    """See `Transformer.nll`."""
    return self.softmax.nll(hidden, targets, *self._adaptive(inputs))

  def _adaptive(self, inputs: Inputs) -> tuple[list[jax.Array], list[Any]]:
    """The tables and projections that an adaptive softmax shares."""
    embed = inputs.embed
    assert isinstance(embed, AdaptiveEmbedding)
    return embed.tables(), embed.kernels()


class Pooler(nn.Module):
  """act(W h + b) of the first token's state; with tanh, BERT's C."""

  initializer: Initializer
  dtype: Any
  activation: Activation = jnp.tanh

  @nn.compact
  def __call__(self, hidden_BD: jax.Array) -> jax.Array:
    """[B, D] to [B, D]."""
    size = hidden_BD.shape[-1]
    dense = Dense(
      size, ('embed', 'mlp'), self.initializer, True, self.dtype, name='dense'
    )
    nn.share_scope(self, dense)
    return self.activation(dense(hidden_BD))


class PairHead(nn.Module):
  """Whether B follows A (0) or not (1), from the pooled vector."""

  initializer: Initializer

  @nn.compact
  def __call__(self, pooled_BD: jax.Array) -> jax.Array:
    """[B, D] to float32 logits [B, 2]."""
    # So few outputs cost nothing in float32.
    dense = Dense(
      2, ('embed', 'head'), self.initializer, True, jnp.float32, name='dense'
    )
    nn.share_scope(self, dense)
    return dense(pooled_BD.astype(jnp.float32))


# The layers that fine-tuning adds: GPT-1's W_y (equation 3), and BERT's.


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
    num_outputs: of a row.
    initializer: of the kernels.
    dropout: of the last layer's input.
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

  Attributes:
    num_outputs: of the second.
    initializer: of the kernels.
    dropout: of both.
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
  """Classifies each token by U relu(W x + b) + c.

  Attributes:
    num_outputs: of a token.
    width: of the hidden layer.
    initializer: of the kernels.
  """

  num_outputs: int
  width: int
  initializer: Initializer

  @nn.compact
  def __call__(self, states_SLD: jax.Array) -> jax.Array:
    """[S, L, D] to [S, L, K]."""
    hidden = Dense(
      *(self.width, ('embed', 'mlp'), self.initializer, True, jnp.float32),
      name='hidden',
    )
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
    initializer: of the kernels.
    activation: act.
    dtype: of the first product.
  """

  initializer: Initializer
  activation: Activation
  dtype: Any

  @nn.compact
  def __call__(self, hidden_BLD: jax.Array) -> jax.Array:
    """[B, L, D] to float32 logits [B, L]; above 0: replaced."""
    size = hidden_BLD.shape[-1]
    inner = Dense(
      *(size, ('embed', 'mlp'), self.initializer, True, self.dtype),
      name='replaced_dense',
    )
    # One output costs nothing in float32.
    last = Dense(
      *(1, ('embed', 'head'), self.initializer, True, jnp.float32),
      name='replaced',
    )
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
