# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Vectors of words, from their characters (Kim et al., 2016; ELMo).

  f_w = relu(max over places of conv_w(characters) + b_w), for each width w
  x = [f_1 ... f_n], then for each highway (Srivastava et al., 2015)
  x <- g x + (1 - g) relu(n), [n, sigmoid^-1(g)] = x W + b
  vector = x W_projection + b

Sizes are those of ELMo's released code. Legend: N words, C characters of a
word, E width of a character's vector, F filters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.layers import Dense, Initializers, parameter
from gpt_jax.core.spec import UsageError

# Bias of a new highway's gate: at first most of x passes (the released code).
_CARRY = 2.0
# Axes of parameters that are too small to be split over devices.
_SMALL = ('position', 'head', 'cluster')


class Characters(NamedTuple):
  """The sizes of a `CharacterCnn`.

  Attributes:
    filters: the width of each convolution, and its number of filters.
    d_embed: E.
    num_highways: layers after the convolutions.
    num_characters: rows of the table of characters.
    length: C.
  """

  filters: tuple[tuple[int, int], ...]
  d_embed: int
  num_highways: int
  num_characters: int
  length: int

  @property
  def num_filters(self) -> int:
    """F, of all widths."""
    return sum(count for _, count in self.filters)

  def uses(self, shape: tuple[int, ...]) -> int:
    """How often a word uses a kernel: a convolution's at each place."""
    return self.length - shape[0] + 1 if len(shape) == 3 else 1


class CharacterCnn(nn.Module):
  """Convolutions over the characters of a word, highways and a projection.

  Attributes:
    features: width of a word's vector.
  """

  sizes: Characters
  features: int
  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, characters_BLC: jax.Array) -> jax.Array:
    """[B, L, C] -> [B, L, features]; ids as of `word_characters`."""
    own, inits = self.sizes, self.inits
    if characters_BLC.ndim == 2:
      if not self.is_initializing():
        raise UsageError(
          "model.input='characters(...)': reads the characters of words, and "
          'is given ids of tokens; such a model is trained by '
          'objective.name=bilm, fine-tuned and evaluated'
        )
      characters_BLC = jnp.broadcast_to(
        characters_BLC[..., None], (*characters_BLC.shape, own.length)
      )
    B, L, C = characters_BLC.shape
    shape = own.num_characters, own.d_embed
    table = parameter(self, 'embedding', inits.embedding, shape, _SMALL[:2])
    ids_NC = characters_BLC.reshape(B * L, C)
    x_NCE = jnp.take(table.astype(self.dtype), ids_NC, axis=0)
    zeros, found = nn.initializers.zeros, []
    for i, (width, count) in enumerate(own.filters):
      shape = width, own.d_embed, count
      kernel = parameter(self, f'kernel_{i}', inits.kernel, shape, _SMALL)
      # As a matrix product: on a mesh of several axes, in micro-batches, XLA's
      # gradient of the convolution's kernel was wrong on CPUs.
      windows = [x_NCE[:, k : k + C - width + 1] for k in range(width)]
      kernel = kernel.reshape(-1, count).astype(self.dtype)
      y_NCF = jnp.concatenate(windows, axis=-1) @ kernel
      bias_F = parameter(self, f'bias_{i}', zeros, (count,), _SMALL[2:])
      y_NF = jnp.max(y_NCF, axis=1) + bias_F.astype(self.dtype)[None]
      found.append(jax.nn.relu(y_NF))
    x_NF = jnp.concatenate(found, axis=-1)
    for i in range(own.num_highways):
      x_NF = Highway(inits, self.dtype, name=f'highway_{i}')(x_NF)
    axes = 'mlp', 'embed'
    projection = Dense(self.features, axes, inits.kernel, True, self.dtype, name='projection')
    return projection(x_NF.reshape(B, L, -1))


class Highway(nn.Module):
  """g x + (1 - g) relu(n); the kernel's first half is n's."""

  inits: Initializers
  dtype: Any

  @nn.compact
  def __call__(self, x_NF: jax.Array) -> jax.Array:
    """[N, F] -> [N, F]."""
    F, axes = x_NF.shape[-1], ('embed', 'mlp')

    def draw(key, shape, dtype):
      del key
      return jnp.where(jnp.arange(shape[0]) < F, 0.0, _CARRY).astype(dtype)

    carrying: Any = draw
    kernel = parameter(self, 'kernel', self.inits.kernel, (F, 2 * F), axes)
    bias = parameter(self, 'bias', carrying, (2 * F,), axes[1:])
    both = x_NF @ layout.weight(kernel, axes, self.dtype)
    n_NF, gate_NF = jnp.split(both + bias.astype(self.dtype)[None], 2, axis=-1)
    gate_NF = jax.nn.sigmoid(gate_NF)
    return gate_NF * x_NF + (1 - gate_NF) * jax.nn.relu(n_NF)
