# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where dropout acts, and at which rates."""

from typing import NamedTuple

from gpt_jax.spec import UsageError


class Rates(NamedTuple):
  """Fractions that are dropped in training; evaluation drops nothing."""

  embedding: float
  residual: float
  attention: float


def rates(
  embedding: float = 0.0, residual: float = 0.0, attention: float = 0.0
) -> Rates:
  """GPT-1, section 4.1: 0.1 on embeddings, residuals and attention."""
  out = Rates(embedding, residual, attention)
  for name, rate in out._asdict().items():
    if not 0 <= rate < 1:
      raise UsageError(f'model.dropout: {name}={rate} is not in [0, 1)')
  return out


DROPOUTS = {'none': lambda: rates(), 'rates': rates}
