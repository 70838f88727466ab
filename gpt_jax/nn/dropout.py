# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of a training step, of which a model is given a part at a time.

Micro-batches, and within them the replicas of the model, take parts of the rows
of a batch; some rows may only fill up the last part. What is random in a row
follows from its number in the batch, and what is a mean over rows is one over
those that are no filling: so neither depends on the number of devices or of
micro-batches. Where nobody says which rows they are, in evaluation and in
tests of a model, nothing here has an effect.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.ranges import Fraction

# The axis that `jax.vmap` maps: over the replicas of a micro-batch.
REPLICAS = 'replicas'


class Rows(NamedTuple):
  """The rows at hand.

  Attributes:
    numbers_B: of each in the batch.
    count: how many rows the batch has.
    filled: whether there are rows beyond them.
  """

  numbers_B: jax.Array
  count: int
  filled: bool


_HERE: contextvars.ContextVar[Rows | None] = contextvars.ContextVar(
  'batch_rows', default=None
)


@contextlib.contextmanager
def use(rows: Rows):
  """Says which rows a model is given meanwhile."""
  token = _HERE.set(rows)
  try:
    yield
  finally:
    _HERE.reset(token)


def draw(
  function: Callable[[jax.Array, tuple[int, ...]], jax.Array],
  key: jax.Array,
  shape: tuple[int, ...],
) -> jax.Array:
  """Random numbers of which each row has its own, whatever part it is in.

  Args:
    function: a key and a shape to numbers of that shape, or with more
      dimensions after it.
    key: the same for all parts.
    shape: its first dimension is that of the rows, or of equally many groups
      in each, or of groups of equally many rows.
  """
  rows = _HERE.get()
  if rows is None:
    return function(key, shape)
  B = len(rows.numbers_B)
  own = (math.prod(shape) // B,)
  if shape[0] % B == 0:
    own = (shape[0] // B, *shape[1:])
  keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, rows.numbers_B)
  drawn = jax.vmap(lambda key: function(key, own))(keys_B)
  return drawn.reshape(*shape, *drawn.shape[1 + len(own) :])


def mean(x_U: jax.Array) -> jax.Array:
  """The mean over rows, or over groups of tokens: [U, ...] to [...].

  Of a replica's part, so that `over_replicas` has the mean of all.
  """
  rows = _HERE.get()
  if rows is None or not rows.filled:
    return jnp.mean(x_U, axis=0)
  B, U = len(rows.numbers_B), len(x_U)
  real_B = (rows.numbers_B < rows.count).astype(jnp.float32)
  real_U = jnp.repeat(real_B, U // B) if U >= B else real_B[:: B // U]
  number = over_replicas(jnp.sum(real_U))
  return jnp.einsum('u,u...->...', real_U, x_U) / jnp.maximum(number, 1)


def over_replicas(x: jax.Array) -> jax.Array:
  """The mean over the replicas."""
  try:
    return jax.lax.pmean(x, REPLICAS)
  except NameError:  # there are none
    return x


# Dropout: where it acts, at which rates, and how.


class Rates(NamedTuple):
  """Fractions that are dropped in training; evaluation drops nothing."""

  embedding: float
  residual: float
  attention: float


def rates(
  embedding: Fraction = 0.0,
  residual: Fraction = 0.0,
  attention: Fraction = 0.0,
) -> Rates:
  """GPT-1, section 4.1: 0.1 on embeddings, residuals and attention."""
  return Rates(embedding, residual, attention)


class Dropout(nn.Module):
  """As Flax's, but each row draws by itself: see `batch_rows`.

  Attributes:
    rate: the fraction that is dropped.
    deterministic: nothing is.
  """

  rate: float
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self, x: jax.Array, deterministic: bool | None = None
  ) -> jax.Array:
    """Zeros, and what stays divided by its share: [rows, ...]."""
    if self.rate == 0.0 or nn.merge_param(
      'deterministic', self.deterministic, deterministic
    ):
      return x
    kept = self.kept(x.shape)
    return jnp.where(kept, x / self.keep, jnp.zeros_like(x))

  @property
  def keep(self) -> float:
    """The fraction that stays."""
    return 1.0 - self.rate

  def kept(self, shape: tuple[int, ...]) -> jax.Array:
    """Draws what stays: bool of the shape [rows, ...]."""
    return draw(
      lambda key, shape: jax.random.bernoulli(key, self.keep, shape),
      self.make_rng('dropout'),
      shape,
    )


DROPOUTS = {'none': lambda: rates(), 'rates': rates}
