# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dropout: where it acts, at which rates, and how."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import batch_rows
from gpt_jax.ranges import Fraction


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
    return batch_rows.draw(
      lambda key, shape: jax.random.bernoulli(key, self.keep, shape),
      self.make_rng('dropout'),
      shape,
    )


DROPOUTS = {'none': lambda: rates(), 'rates': rates}
