# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The output: from the last hidden states to scores for the vocabulary."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from gpt_jax.nn.dense import Dense, parameter
from gpt_jax.nn.embed import OUTPUTS, Embedding, Input
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.inputs import Inputs
from gpt_jax.spec import UsageError


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
