# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The learning rate as a closed-form function of the step.

Every schedule warms up linearly: step s of the first `warmup` steps (from 0)
runs at peak * (s + 1) / warmup, so that no step is wasted at rate zero.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpt_jax.spec import UsageError

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]


def _warm_up(
  peak: float, warmup: int, after: Callable[[jax.Array], jax.Array]
) -> Schedule:
  """Linear warm-up, then `after`, a function of the steps since its end."""
  if peak <= 0 or warmup < 0:
    raise UsageError(
      f'schedule.name: peak={peak} must be positive, warmup={warmup} not '
      'negative'
    )

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step, jnp.float32)
    warming = peak * (step + 1) / max(warmup, 1)
    return jnp.where(step < warmup, warming, after(step - warmup))

  return schedule


def cosine(peak: float, warmup: int = 0, final: float = 0.0):
  """Gives peak * (final + (1 - final) * (1 + cos(pi x)) / 2), x from 0 to 1.

  x is the fraction of the steps after the warm-up; `final` is a fraction of
  the peak (GPT-1: 0; GPT-3, Chinchilla, LLaMA: 0.1).
  """

  def build(num_steps: int) -> Schedule:
    span = max(num_steps - warmup, 1)

    def after(step: jax.Array) -> jax.Array:
      x = jnp.clip(step / span, 0, 1)
      return peak * (final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * x)))

    return _warm_up(peak, warmup, after)

  return build


def linear(peak: float, warmup: int = 0, final: float = 0.0):
  """From peak to `final` * peak in a straight line."""

  def build(num_steps: int) -> Schedule:
    span = max(num_steps - warmup, 1)

    def after(step: jax.Array) -> jax.Array:
      return peak * (1 - (1 - final) * jnp.clip(step / span, 0, 1))

    return _warm_up(peak, warmup, after)

  return build


def constant(peak: float, warmup: int = 0):
  """The peak, to the end."""

  def build(num_steps: int) -> Schedule:
    del num_steps
    return _warm_up(peak, warmup, lambda step: jnp.full_like(step, peak))

  return build


def rsqrt(peak: float, warmup: int = 10_000):
  """Gives peak * sqrt(warmup / step) after the warm-up (T5, section 3.1.2)."""

  def build(num_steps: int) -> Schedule:
    del num_steps
    scale = max(warmup, 1)
    return _warm_up(
      peak, warmup, lambda step: peak * jnp.sqrt(scale / (step + scale))
    )

  return build


SCHEDULES = {
  'constant': constant,
  'cosine': cosine,
  'linear': linear,
  'rsqrt': rsqrt,
}
