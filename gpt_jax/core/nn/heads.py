# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Output heads: scores of the vocabulary, of classes, of spans."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.embed import SCALES, Embedding, Input, Inputs, Scale, Transform
from gpt_jax.core.nn.layers import ACTIVATIONS, Activation, Dense, Initializers, parameter
from gpt_jax.core.ranges import NotNegative
from gpt_jax.core.spec import UsageError


class OutputHead(NamedTuple):
  """How hidden states score the vocabulary.

  Attributes:
    tied: with the token embeddings instead of a separate table.
    bias: whether each token has a bias.
    scale: of the hidden states, by the width.
    transform: activation of a dense layer, followed by `model.norm`, that
      hidden states go through first; None: there is none.
    softmax: makes the module that scores the vocabulary by the embeddings, as
      `adaptive.AdaptiveSoftmax`; None: a product with a table does.
    softcap: logits x become softcap * tanh(x / softcap); 0: unchanged.
  """

  tied: bool
  bias: bool
  scale: Callable[[int], float]
  transform: Activation | None
  softmax: Callable[..., nn.Module] | None = None
  softcap: float = 0.0


def tied(
  bias: bool = False,
  scale: Scale = 'none',
  transform: Transform = 'none',
  softcap: NotNegative = 0.0,
) -> OutputHead:
  """Scores by the token embeddings.

  Args:
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
    if choice.softmax:
      self.softmax = choice.softmax(
        input=self.input,
        vocab_size=self.vocab_size,
        d_model=self.d_model,
        initializer=inits.embedding,
        dtype=self.dtype,
      )
    if not choice.tied:
      self.head = Embedding(
        self.vocab_size, self.d_model, inits.output or inits.embedding, self.dtype
      )
    if choice.transform:
      self.output_dense = Dense(self._width, ('embed', 'mlp'), inits.kernel, True, self.dtype)
      self.output_norm = self.norm()
    if choice.bias:
      zeros = nn.initializers.zeros
      self.head_bias = parameter(self, 'head_bias', zeros, (self.vocab_size,), ('vocab',))

  def table(self, inputs: Inputs) -> jax.Array:
    """See `Transformer.output_table`."""
    if self.choice.softmax:
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
    if self.choice.softmax:
      return self.softmax(hidden, inputs.embed)
    logits = jnp.einsum(
      '...D,VD->...V',
      self.hidden(hidden, inputs),
      self.table(inputs),
      preferred_element_type=jnp.float32,
    )
    softcap = self.choice.softcap
    return softcap * jnp.tanh(logits / softcap) if softcap else logits

  def nll(self, hidden: jax.Array, targets: jax.Array, inputs: Inputs) -> jax.Array:
    """See `Transformer.nll`."""
    return self.softmax.nll(hidden, targets, inputs.embed)
