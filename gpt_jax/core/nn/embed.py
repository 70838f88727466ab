# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Embeddings: the input vectors of tokens."""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.layers import ACTIVATIONS, Dropout, Initializer, Initializers, Rates, parameter
from gpt_jax.core.nn.positions import Position
from gpt_jax.core.ranges import OneOf, Whole

AXES = ('vocab', 'embed')


class Embedding(nn.Module):
  """A table with one row for each token: the first layer, or the last."""

  num_rows: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the table."""
    shape = (self.num_rows, self.d_model)
    self.embedding = parameter(self, 'embedding', self.initializer, shape, AXES)

  def __call__(self, tokens_BL: jax.Array) -> jax.Array:
    """Looks tokens up: [B, L] -> [B, L, D]."""
    x_BLD: Any = look_up(self.embedding, tokens_BL, self.dtype)
    return layout.stream(layout.constrain(x_BLD, ('batch', 'length', None)))

  def table(self) -> jax.Array:
    """The table in the compute dtype, [V, D]: logits are x table^T."""
    return self.embedding.astype(self.dtype)


class Projection(nn.Module):
  """From embeddings of their own width to the model's: x W + b.

  W^T, without the bias, leads back for a tied output.
  """

  d_embed: int
  d_model: int
  initializer: Initializer
  dtype: Any

  def setup(self):
    """Creates the kernel and the bias."""
    axes, zeros = ('cluster', 'embed'), nn.initializers.zeros
    shape = (self.d_embed, self.d_model)
    self._kernel = parameter(self, 'kernel', self.initializer, shape, axes)
    self._bias = parameter(self, 'bias', zeros, shape[1:], axes[1:])

  def __call__(self, x_BLE: jax.Array) -> jax.Array:
    """[B, L, E] -> [B, L, D]."""
    x_BLD = jnp.einsum('BLE,ED->BLD', x_BLE, self._matrix())
    return layout.stream(x_BLD + self._bias.astype(self.dtype)[None, None])

  def narrow(self, hidden: jax.Array) -> jax.Array:
    """[..., D] -> [..., E]."""
    return jnp.einsum('...D,ED->...E', hidden, self._matrix())

  def _matrix(self) -> jax.Array:
    return layout.weight(self._kernel, ('cluster', 'embed'), self.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(stored_VD: jax.Array, tokens_BL: jax.Array, dtype: Any):
  """Rows of a table in the compute dtype: [B, L] -> [B, L, D].

  The table is sent in that dtype too, but its gradient is summed in float32:
  else the sum for a frequent token would be rounded each time.
  """
  # Whole rows: the TPU compiler fails on a gather from a table that is split
  # over both axes. Each device along the vocabulary's mesh axis then looks up
  # its own rows, so their number has to divide.
  table_VD = layout.pad_rows(stored_VD.astype(dtype), AXES[0])
  return jnp.take(layout.weight(table_VD, AXES, dtype), tokens_BL, axis=0)


def _look_up(stored_VD, tokens_BL, dtype):
  return look_up(stored_VD, tokens_BL, dtype), (stored_VD, tokens_BL)


def _look_up_gradient(dtype, saved, dy_BLD):
  del dtype
  stored_VD, tokens_BL = saved
  zeros_VD = layout.pad_rows(jnp.zeros(stored_VD.shape, jnp.float32), AXES[0])
  zeros_VD = layout.constrain(zeros_VD, (AXES[0], None))
  dy_BLD = layout.constrain(dy_BLD, ('batch', 'length', None))
  dy_VD = zeros_VD.at[tokens_BL].add(dy_BLD.astype(jnp.float32), mode='drop')
  dy_VD = layout.constrain(dy_VD, AXES).astype(stored_VD.dtype)
  return layout.constrain(dy_VD[: len(stored_VD)], AXES), None


look_up.defvjp(_look_up, _look_up_gradient)


class Input(NamedTuple):
  """How tokens become vectors.

  Attributes:
    scale: of the embeddings, by the width: 1 or sqrt(D).
    num_token_types: rows of a second table, for the type of each token; 0:
      none.
    norm: whether `model.norm` follows (BERT).
    d_embed: width of all vectors that are summed, before a projection to the
      model's; 0: the model's, without a projection.
    queries: whether a second stream predicts tokens (XLNet).
    embedding: makes the module that looks tokens up, from `num_rows`,
      `d_model`, `inits` and `dtype`; None: an `Embedding`.
    widths: of its parameters, beside the model's.
    reader: what the host makes of tokens for it: see `forward.read`; None: it
      reads their ids.
  """

  scale: Callable[[int], float]
  num_token_types: int = 0
  norm: bool = False
  d_embed: int = 0
  queries: bool = False
  embedding: Callable[..., nn.Module] | None = None
  widths: tuple[int, ...] = ()
  reader: Any = None


Scale = Literal['none', 'rsqrt', 'sqrt']


SCALES: dict[Scale, Callable[[int], float]] = {
  'none': lambda d_model: 1.0,
  'rsqrt': lambda d_model: d_model**-0.5,
  'sqrt': lambda d_model: d_model**0.5,
}


Transform = Annotated[str, OneOf(('none', *ACTIVATIONS))]


def tokens(
  scale: Scale = 'none',
  token_types: Whole = 0,
  norm: bool = False,
  d_embed: Whole = 0,
  queries: bool = False,
) -> Input:
  """A table of embeddings, with one row per token.

  Args:
    scale: none; sqrt: times sqrt(d_model) (Vaswani et al., section 3.4).
    token_types: number of types, each with its own vector (BERT: 2).
    norm: normalise the sum of token, type and position vectors (BERT).
    d_embed: width of all these vectors, instead of d_model; a dense layer with
      a bias then leads to d_model, even from the same width (ALBERT, section
      3.1). 0: they are d_model wide, without such a layer.
    queries: a trained vector stands for each token that is predicted by a
      second stream (XLNet, section 2.3).
  """
  by_width = SCALES[scale]
  return Input(by_width, token_types, norm, d_embed=d_embed, queries=queries)


class Inputs(nn.Module):
  """The input layer: `model.input` and `model.position`, with dropout.

  A tied output reads the token vectors `embed` too. Both sides of an
  encoder-decoder share them, unless `encoder_vocab_size` gives the encoder a
  table of its own; each has its own positions and norm (BART), the encoder's
  under names that begin with `encoder_`.
  """

  choice: Input
  position: Position
  vocab_size: int
  context_length: int
  d_model: int
  norm: Callable[..., nn.Module]
  rates: Rates
  inits: Initializers
  dtype: Any
  encoder: bool = False
  encoder_vocab_size: int = 0

  def setup(self):
    """Creates the parts that the choices need."""
    choice, inits = self.choice, self.inits
    self._width = choice.d_embed or self.d_model
    if choice.embedding is None:
      self.embed = self._table(self.vocab_size)
    else:
      self.embed = choice.embedding(
        num_rows=self.vocab_size, d_model=self.d_model, inits=inits, dtype=self.dtype
      )
    if self.encoder_vocab_size:
      self.encoder_embed = self._table(self.encoder_vocab_size)
    if choice.num_token_types:
      # The name in checkpoints, from before the term token types was used.
      self.token_types = self._table(choice.num_token_types, name='segments')
    if choice.norm:
      self.embed_norm = self.norm()
      if self.encoder:
        self.encoder_embed_norm = self.norm()
    if self.position.embed:
      make_positions = functools.partial(
        self.position.embed, context_length=self.context_length, initializer=inits.position
      )
      self.positions = make_positions()
      if self.encoder:
        self.encoder_positions = make_positions()
    if choice.d_embed:
      self.embed_projection = Projection(choice.d_embed, self.d_model, inits.kernel, self.dtype)
    self.embed_dropout = Dropout(self.rates.embedding)

  def __call__(
    self,
    tokens_BL: jax.Array,
    positions_BL: jax.Array | None,
    token_types_BL: jax.Array | None,
    *,
    side: str = '',
  ) -> jax.Array:
    """[B, L] -> [B, L, D]; see `Transformer.__call__` for the arguments.

    Tokens are as `choice.reader` gives them.

    `side='encoder_'` uses the encoder's own parts in an encoder-decoder.
    """
    own = side and self.encoder_vocab_size
    embed, vocab_size = self.embed, self.vocab_size
    if own:
      embed, vocab_size = self.encoder_embed, self.encoder_vocab_size
    x_BLD = self._without_words(embed(tokens_BL), tokens_BL, vocab_size)
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
    """Adds positions, normalises, applies dropout: [B, L, D]."""
    if self.position.embed:
      x_BLD = getattr(self, f'{side}positions')(x_BLD, positions_BL)
    if self.choice.norm:
      x_BLD = getattr(self, f'{side}embed_norm')(x_BLD)
    return self.dropped(x_BLD)

  def dropped(self, x_BLD: jax.Array) -> jax.Array:
    """Applies the dropout of input vectors."""
    return self.embed_dropout(x_BLD, deterministic=not self.has_rng('dropout'))

  def _without_words(self, x_BLD: jax.Array, tokens_BL: jax.Array, vocab_size: int) -> jax.Array:
    """Drops the same words in all rows, in training."""
    if not self.rates.words or not self.has_rng('dropout'):
      return x_BLD
    keep = 1 - self.rates.words
    key = self.make_rng('dropout')
    kept_V = jax.random.bernoulli(key, keep, (vocab_size,))
    kept_BL1 = kept_V[tokens_BL][..., None]
    return jnp.where(kept_BL1, x_BLD / keep, jnp.zeros_like(x_BLD))

  def narrow(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to the width of the tokens' vectors."""
    return self.embed_projection.narrow(hidden) if self.choice.d_embed else hidden

  def _table(self, num_rows: int, name: str | None = None) -> Embedding:
    initializer = self.inits.embedding
    return Embedding(num_rows, self._width, initializer, self.dtype, name=name)
