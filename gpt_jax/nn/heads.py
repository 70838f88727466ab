# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From hidden states to scores: of the vocabulary, of classes, of spans."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
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
    tied: by the token embeddings, rather than by a table of their own.
    bias: whether each token has a bias.
    scale: of the hidden states, by the width.
    transform: hidden states go through a dense layer, this activation and
      `model.norm` first; None: they do not.
    own: of an adaptive softmax, the clusters with projections of their own;
      None: a plain softmax.
    softcap: logits x become softcap * tanh(x / softcap); 0: as they are.
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
  """By the token embeddings.

  Args:
    bias: of each token.
    scale: none; rsqrt: hidden states / sqrt(d_model) (T5, PaLM).
    transform: none, or the activation of a dense layer, with a norm after it,
      that the hidden states go through first (BERT's masked language model).
    softcap: logits x become softcap * tanh(x / softcap), within +- softcap
      (Gemma 2: 30); 0: as they are.
  """
  return _output(True, bias, scale, transform, softcap)


def untied(
  bias: bool = False,
  scale: Scale = 'none',
  transform: Transform = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """By a table of its own; the rest as in `tied`."""
  return _output(False, bias, scale, transform, softcap)


def _output(
  tied: bool, bias: bool, scale: Scale, transform: Transform, softcap: float
) -> OutputHead:
  activation = ACTIVATIONS.get(transform)
  by_width = SCALES[scale]
  return OutputHead(tied, bias, by_width, activation, softcap=softcap)


def adaptive_softmax(own: tuple = ()) -> OutputHead:
  """By the tables of `input='adaptive(...)'` (Grave et al. 2017).

  Args:
    own: clusters with a projection of their own, rather than the input's.
  """
  scale = SCALES['none']
  return OutputHead(True, False, scale, None, tuple(own))


OUTPUTS = {'adaptive': adaptive_softmax, 'tied': tied, 'untied': untied}


# The output: from the last hidden states to scores for the vocabulary.


class Head(nn.Module):
  """What `model.output` names; owns what the token embeddings do not have.

  The methods take the input, whose token embeddings a tied output reads.
  """

  output: str
  input: Input
  vocab_size: int
  d_model: int
  norm: Callable[..., nn.Module]
  inits: Initializers
  dtype: Any

  def setup(self):
    """Creates the parts that the choice has."""
    choice = spec.build('model.output', self.output, OUTPUTS)
    self._choice, inits = choice, self.inits
    # That of the table.
    self._width = (choice.tied and self.input.d_embed) or self.d_model
    if choice.own is not None:
      if self.input.clusters is None:
        raise UsageError(
          f'model.output={self.output!r}: needs model.input=adaptive(...)'
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
    if self._choice.own is not None:
      raise UsageError(
        f'model.output={self.output!r}: is known to the causal '
        'objective only; take tied or untied'
      )
    table = (inputs.embed if self._choice.tied else self.head).table()
    if self._choice.bias:
      bias = self.head_bias.astype(self.dtype)[:, None]
      table = jnp.concatenate([table, bias], axis=1)
    return table

  def hidden(self, hidden: jax.Array, inputs: Inputs) -> jax.Array:
    """See `Transformer.output_hidden`."""
    if self._choice.transform:
      hidden = self._choice.transform(self.output_dense(hidden))
      hidden = self.output_norm(hidden)
    elif self._choice.tied:
      hidden = inputs.narrow(hidden)
    hidden = hidden * jnp.asarray(self._choice.scale(self._width), hidden.dtype)
    if self._choice.bias:
      ones = jnp.ones((*hidden.shape[:-1], 1), hidden.dtype)
      hidden = jnp.concatenate([hidden, ones], axis=-1)
    return hidden

  def logits(self, hidden: jax.Array, inputs: Inputs) -> jax.Array:
    """See `Transformer.logits`."""
    if self._choice.own is not None:
      return self.softmax(hidden, *self._adaptive(inputs))
    logits = jnp.einsum(
      '...D,VD->...V',
      self.hidden(hidden, inputs),
      self.table(inputs),
      preferred_element_type=jnp.float32,
    )
    softcap = self._choice.softcap
    return softcap * jnp.tanh(logits / softcap) if softcap else logits

  def nll(
    self, hidden: jax.Array, targets: jax.Array, inputs: Inputs
  ) -> jax.Array:
    """See `Transformer.nll`."""
    return self.softmax.nll(hidden, targets, *self._adaptive(inputs))

  def _adaptive(self, inputs: Inputs) -> tuple[list[jax.Array], list[Any]]:
    """What an adaptive softmax has in common with the input."""
    embed = inputs.embed
    assert isinstance(embed, AdaptiveEmbedding)
    return embed.tables(), embed.kernels()


class Pooler(nn.Module):
  """act(W h + b) of the first token's state; with tanh it is BERT's C."""

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


# Which tokens of a row are not the original ones (ELECTRA, section 2).


class ReplacedHead(nn.Module):
  """w act(W h + b) + c of each token's state.

  The paper has sigmoid(w h); the released code, and so the released models,
  have the dense layer before it.

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


# A classifier of the vocabulary for each layer (Al-Rfou et al. 2018).


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
