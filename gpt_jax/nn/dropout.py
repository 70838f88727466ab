# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where dropout acts, and at which rates."""

from typing import NamedTuple

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


DROPOUTS = {'none': lambda: rates(), 'rates': rates}
