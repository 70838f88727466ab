# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The learning rate and the rows of each step, counted from 0: closed forms of its number."""

import math

from gpt_jax.plain.recipe import (
  BATCH_ROWS,
  CONTEXT_LENGTH,
  D_MODEL,
  DECAY_BY_TOKENS,
  DECAY_END,
  DECAY_START,
  FINAL_RATE,
  HOLD,
  PEAK_RATE,
  STAGES,
  WARMUP,
  WARMUP_BY_TOKENS,
  WARMUP_STEPS,
  WARMUP_TOKENS,
)


def even_batch(step: int) -> tuple[int, int, int, int]:
  """Rows of a step, tokens of a row, and the rows and tokens of the steps before."""
  before = step * BATCH_ROWS
  return BATCH_ROWS, CONTEXT_LENGTH, before, before * CONTEXT_LENGTH


def ramped_batch(step: int) -> tuple[int, int, int, int]:
  """Rows of a step, tokens of a row, and the rows and tokens of the steps before."""
  first, rows, length = STAGES[0]
  before = tokens = 0
  for start, next_rows, next_length in STAGES[1:]:
    if step < start:
      break
    before += (start - first) * rows
    tokens += (start - first) * rows * length
    first, rows, length = start, next_rows, next_length
  done = (step - first) * rows
  return rows, length, before + done, tokens + done * length


shape_of = even_batch


def cosine(step: int) -> float:
  """Linear warm-up, then half a cosine from the peak rate down to a part of it."""
  if WARMUP_BY_TOKENS and step < WARMUP_STEPS:
    return PEAK_RATE * min(shape_of(step + 1)[3] / WARMUP_TOKENS, 1.0)
  if not WARMUP_BY_TOKENS and step < WARMUP:
    return PEAK_RATE * (step + 1) / WARMUP
  if DECAY_BY_TOKENS:
    left = (DECAY_END - shape_of(step)[3]) / (DECAY_END - DECAY_START)
  else:
    left = (DECAY_END - step) / (DECAY_END - DECAY_START)
  left = min(max(left, 0.0), 1.0)
  # (1 + cos(pi x)) / 2 at x = 1 - left.
  return PEAK_RATE * (FINAL_RATE + (1 - FINAL_RATE) * math.sin(math.pi / 2 * left) ** 2)


def linear(step: int) -> float:
  """Linear warm-up, then a straight line from the peak rate down to a part of it."""
  if step < WARMUP:
    return PEAK_RATE * (step + 1) / WARMUP
  left = min(max((DECAY_END - step) / (DECAY_END - DECAY_START), 0.0), 1.0)
  return PEAK_RATE * (FINAL_RATE + (1 - FINAL_RATE) * left)


def inverse_sqrt(step: int) -> float:
  """The peak rate for HOLD steps, then falling with the square root of the steps."""
  return PEAK_RATE * max(step / HOLD, 1.0) ** -0.5


def noam(step: int) -> float:
  """d_model^-0.5 * min(n^-0.5, n * warmup^-1.5), n from 1 (Vaswani et al., 2017, eq. 3)."""
  n = step + 1
  return D_MODEL**-0.5 * min(n**-0.5, n * WARMUP**-1.5)
