# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The input: from tokens, their types and positions to the first vectors."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax import spec
from gpt_jax.nn.dense import Dense, parameter
from gpt_jax.nn.dropout import Dropout
from gpt_jax.nn.embed import (
  OUTPUTS,
  AdaptiveEmbedding,
  AdaptiveSoftmax,
  Embedding,
  Input,
  Projection,
)
from gpt_jax.nn.init import Initializers
from gpt_jax.nn.positions import Position
from gpt_jax.spec import UsageError


class Inputs(nn.Module):
  """What `model.input` and `model.position` name, with its dropout.

  The tokens' vectors `embed` are read by a tied output, too. Both sides of an
  encoder-decoder have them in common; positions and the norm are each side's
  own (BART), the encoder's below names that begin with `encoder_`.
  """

  choice: Input
  position: Position
  vocab_size: int
  context_length: int
  d_model: int
  norm: Callable[..., nn.Module]
  dropout: float
  inits: Initializers
  dtype: Any
  encoder: bool = False

  def setup(self):
    """Creates the parts that the choices have."""
    choice, inits = self.choice, self.inits
    self._width = choice.d_embed or self.d_model
    if choice.clusters is None:
      self.embed = self._table(self.vocab_size)
    else:
      self.embed = AdaptiveEmbedding(
        choice.clusters, self.vocab_size, self.d_model, inits, self.dtype
      )
    if choice.num_token_types:
      # The name in checkpoints since before token types were called so.
      self.token_types = self._table(choice.num_token_types, name='segments')
    if choice.norm:
      self.embed_norm = self.norm()
      if self.encoder:
        self.encoder_embed_norm = self.norm()
    if self.position.embed:
      make_positions = functools.partial(
        self.position.embed,
        context_length=self.context_length,
        initializer=inits.position,
      )
      self.positions = make_positions()
      if self.encoder:
        self.encoder_positions = make_positions()
    if choice.d_embed:
      self.embed_projection = Projection(
        choice.d_embed, self.d_model, inits.kernel, self.dtype
      )
    if choice.queries:
      self.query_embedding = parameter(
        self, 'query_embedding', inits.embedding, (self.d_model,), ('embed',)
      )
    self.embed_dropout = Dropout(self.dropout)

  def __call__(
    self,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    token_types_BL: jax.Array | None,
    *,
    side: str = '',
  ) -> jax.Array:
    """[B, L] -> [B, L, D]; see `Transformer.__call__` for the arguments.

    `side='encoder_'` takes what is the encoder's own in an encoder-decoder.
    """
    x_BLD = self.embed(tokens_BL)
    x_BLD *= jnp.asarray(self.choice.scale(self._width), x_BLD.dtype)
    if self.choice.num_token_types:
      if token_types_BL is None:
        token_types_BL = jnp.zeros_like(tokens_BL)
      x_BLD += self.token_types(token_types_BL)
    elif token_types_BL is not None:
      x_BLD += self.embed(token_types_BL)
    x_BLD = self.placed(x_BLD, positions_BL, side=side)
    return self.embed_projection(x_BLD) if self.choice.d_embed else x_BLD

  def placed(
    self, x_BLD: jax.Array, positions_BL: jax.Array | None, *, side: str = ''
  ) -> jax.Array:
    """Vectors with their positions, normalised, with dropout: [B, L, D]."""
    if self.position.embed:
      x_BLD = getattr(self, f'{side}positions')(x_BLD, positions_BL)
    if self.choice.norm:
      x_BLD = getattr(self, f'{side}embed_norm')(x_BLD)
    return self.embed_dropout(x_BLD, deterministic=not self.has_rng('dropout'))

  def queries(self, asked_BP: jax.Array) -> jax.Array:
    """The first vectors of tokens that are asked for: [B, P] -> [B, P, D]."""
    if not self.choice.queries:
      raise UsageError(
        'asked_BP: the model has no second stream; set '
        "model.input='tokens(queries=True)'"
      )
    x_D = self.query_embedding.astype(self.dtype)
    x_BPD = jnp.broadcast_to(x_D[None, None], (*asked_BP.shape, len(x_D)))
    return self.embed_dropout(x_BPD, deterministic=not self.has_rng('dropout'))

  def narrow(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to the width of the tokens' vectors."""
    return (
      self.embed_projection.narrow(hidden) if self.choice.d_embed else hidden
    )

  def _table(self, num_rows: int, name: str | None = None) -> Embedding:
    initializer = self.inits.embedding
    return Embedding(num_rows, self._width, initializer, self.dtype, name=name)


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
