# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The biattentive classification network (McCann et al., 2017, section 5).

  x = ReLU(W w + b), X = biLSTM(x)                      of each text
  A = X Y^T, C_y = softmax(A) Y, C_x = softmax(A^T) X   attention
  X_y = biLSTM([X; X - C_y; X * C_y]), Y_x likewise     integration
  pool(X) = [max; mean; min; softmax(X v + d)^T X]

and a maxout layer and a linear one on [pool(X_y); pool(Y_x)]. A single text
attends to itself. The paper has three maxout layers with batch normalisation,
whose statistics would make a row's output depend on other rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn.attend import HIDDEN
from gpt_jax.core.nn.layers import Dense, Dropout, Initializers
from gpt_jax.core.nn.row import Context, Visibility
from gpt_jax.papers.lstm.lstm import Clips, Direction, Recurrence

SIZE = 256  # of the dense layer, and of the cells of both directions together
_PIECES = 4  # of which a maxout unit is the largest


class Biattentive(nn.Module):
  """Two texts to the scores of K classes.

  Attributes:
    num_outputs: K.
  """

  num_outputs: int
  inits: Initializers
  dropout: float

  @nn.compact
  def __call__(
    self, x_BLD: jax.Array, y_BLD: jax.Array, real_x_BL: jax.Array, real_y_BL: jax.Array
  ) -> jax.Array:
    """Vectors [B, L, D] of two texts and their real tokens to [B, K]."""
    narrow = self._dense(SIZE, 'narrow')
    encoder = self._both_ways('encoder')
    x_BLD, y_BLD = (
      encoder(jax.nn.relu(narrow(self._dropped(states))), real)
      for states, real in ((x_BLD, real_x_BL), (y_BLD, real_y_BL))
    )
    scores_BLM = jnp.einsum('BLD,BMD->BLM', x_BLD, y_BLD)
    integrate_x = self._both_ways('integrate_first')
    integrate_y = self._both_ways('integrate_second')
    pooled = []
    for name, integrate, one, other, scores, real_one, real_other in (
      ('first', integrate_x, x_BLD, y_BLD, scores_BLM, real_x_BL, real_y_BL),
      ('second', integrate_y, y_BLD, x_BLD, scores_BLM.swapaxes(1, 2), real_y_BL, real_x_BL),
    ):
      scores = jnp.where(real_other[:, None], scores, HIDDEN)
      seen = jax.nn.softmax(scores, axis=-1) @ other
      joined = jnp.concatenate([one, one - seen, one * seen], axis=-1)
      states = integrate(self._dropped(joined), real_one)
      pooled += self._pooled(states, real_one, self._dense(1, f'pool_{name}'))
    pooled_BD = self._dropped(jnp.concatenate(pooled, axis=-1))
    hidden = self._dense(_PIECES * SIZE, 'maxout')(pooled_BD)
    hidden = jnp.max(hidden.reshape(len(hidden), SIZE, _PIECES), axis=-1)
    return self._dense(self.num_outputs, 'classifier')(self._dropped(hidden))

  def _dense(self, size: int, name: str) -> Dense:
    # So narrow a kernel is not split.
    axes = ('embed', 'head')
    kernel = self.inits.head or self.inits.kernel
    return Dense(size, axes, kernel, True, jnp.float32, name=name)

  def _both_ways(self, name: str) -> Any:
    settings = Recurrence(SIZE // 2, 0, 1, Clips(), 0.0)
    both = [
      Direction(settings, reverse, self.inits, jnp.float32, name=f'{name}_{to}')
      for to, reverse in (('forward', False), ('backward', True))
    ]

    def run(x_BLD: jax.Array, real_BL: jax.Array) -> jax.Array:
      context = Context(visibility=Visibility(real_BL))
      found = [direction(x_BLD, context, None)[0] for direction in both]
      return jnp.concatenate(found, axis=-1)

    return run

  def _pooled(self, x_BLD: jax.Array, real_BL: jax.Array, dense: Dense) -> list[jax.Array]:
    real_BL1 = real_BL[..., None]
    count_B1 = jnp.sum(real_BL, axis=1, keepdims=True)
    weights_BL1 = jax.nn.softmax(jnp.where(real_BL1, dense(x_BLD), HIDDEN), 1)
    return [
      jnp.max(jnp.where(real_BL1, x_BLD, -jnp.inf), axis=1),
      jnp.sum(jnp.where(real_BL1, x_BLD, 0), axis=1) / count_B1,
      jnp.min(jnp.where(real_BL1, x_BLD, jnp.inf), axis=1),
      jnp.sum(weights_BL1 * x_BLD, axis=1),
    ]

  def _dropped(self, x: jax.Array) -> jax.Array:
    if not self.dropout or not self.has_rng('dropout'):
      return x
    return Dropout(self.dropout)(x, deterministic=False)
