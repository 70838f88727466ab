# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The learning rate as a closed-form function of the step.

Lengths are steps (2000, '2k_steps') or tokens ('375M_tokens'); what is given
in tokens follows the tokens that were consumed, through any batch ramp. An
entry, called with its arguments, gives a function from the run's ramp and its
number of steps to the schedule.

Every schedule can warm up linearly: step s of the first `warmup` steps (from
0) runs at peak * (s + 1) / warmup, so that no step is wasted at rate zero.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.optim import amount
from gpt_jax.optim.amount import Amount
from gpt_jax.optim.clock import LAST_STEP, Clock
from gpt_jax.optim.consumption import Ramp
from gpt_jax.ranges import Count, Probability, Rate
from gpt_jax.spec import UsageError

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]

# From the batch ramp and the number of steps of a run.
Build = Callable[[Ramp, int], Schedule]


def constant(peak: Rate, warmup: int | str = 0) -> Build:
  """The peak, to the end."""
  warm = _length('warmup', warmup)
  return lambda ramp, num_steps: _warm_up(
    peak, warm, ramp, lambda step: jnp.full_like(step, peak, jnp.float32)
  )


def cosine(
  peak: Rate,
  warmup: int | str = 0,
  final: Probability = 0.0,
  decay: int | str = '',
) -> Build:
  """Gives peak * (final + (1 - final) * (1 + cos(pi x)) / 2), x from 0 to 1.

  Args:
    peak: the rate at the end of the warm-up.
    warmup: its length.
    final: the last rate as a fraction of the peak (GPT-1: 0; GPT-3,
      Chinchilla, LLaMA: 0.1).
    decay: where x reaches 1, counted from the first step; empty: the last.
  """

  def half_cosine(left: jax.Array) -> jax.Array:
    # (1 + cos(pi x)) / 2 of x = 1 - left, without a difference near its end.
    return jnp.square(jnp.sin(np.float32(np.pi / 2) * left))

  return _decay(half_cosine, peak, warmup, final, decay)


def linear(
  peak: Rate,
  warmup: int | str = 0,
  final: Probability = 0.0,
  decay: int | str = '',
) -> Build:
  """From peak to `final` * peak in a straight line; arguments as `cosine`."""
  return _decay(lambda left: left, peak, warmup, final, decay)


def rsqrt(peak: Rate, hold: int | str = 10_000, warmup: int | str = 0) -> Build:
  """Gives peak * sqrt(hold / max(n, hold)), n the steps or tokens before.

  T5, section 3.1.2, and PaLM, section 5: 1e-2 for 10,000 steps, then
  1 / sqrt(n). A warm-up, which they do without, is a part of `hold`.

  Raises:
    UsageError: the warm-up is longer.
  """
  warm, held = _length('warmup', warmup), _length('hold', hold)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    del num_steps
    clock = Clock(ramp, held.unit)
    if held.count < max(1, clock.at(warm)):
      raise UsageError(
        f'schedule.name: hold={hold!r} must be positive, and no shorter than '
        f'warmup={warmup!r}'
      )
    held_times = clock.since_start(held.count)
    return _warm_up(
      peak,
      warm,
      ramp,
      lambda step: peak * jax.lax.rsqrt(jnp.maximum(held_times(step), 1.0)),
    )

  return build


def noam(d_model: Count, warmup: Count = 4000, factor: Rate = 1.0) -> Build:
  """Transformer, equation 3, times `factor`; n is 1 at the first step.

  d_model^-0.5 * min(n^-0.5, n * warmup^-1.5)
  """
  peak = factor * (d_model * warmup) ** -0.5

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    del num_steps
    part = Clock(ramp, 'steps').since_start(warmup)

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
      n = part(jnp.asarray(step, jnp.int32) + 1)
      return peak * jnp.minimum(jax.lax.rsqrt(n), n)

    return schedule

  return build


def wsd(
  peak: Rate,
  cooldown: int | str,
  warmup: int | str = 0,
  final: Probability = 0.0,
  shape: str = 'linear',
) -> Build:
  """Warm-up, stable, decay: the peak, until `cooldown` before the end.

  Args:
    peak: the rate between warm-up and decay.
    cooldown: length of the decay to `final` * peak, at the end of the run.
    warmup: length of the warm-up.
    final: the last rate as a fraction of the peak.
    shape: linear (1 - x), or sqrt (1 - sqrt(x)), x from 0 to 1 in the decay
      (Haegele et al., 2024: Scaling Laws and Compute-Optimal Training Beyond
      Fixed Training Durations, equations 1 and 2).

  Raises:
    UsageError: the shape is unknown; warm-up and decay do not fit the run.
  """
  warm, cool = _length('warmup', warmup), _length('cooldown', cooldown)
  if shape not in _SHAPES:
    raise UsageError(
      f'schedule.name: shape={shape!r}: unknown; one of ' + ', '.join(_SHAPES)
    )

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    clock = Clock(ramp, cool.unit)
    end = clock.count(num_steps)
    if not 0 < cool.count <= end - clock.at(warm):
      raise UsageError(
        f'schedule.name: cooldown={cooldown!r} after warmup={warmup!r} does '
        f'not fit the {end:,} {cool.unit} of the run'
      )
    left = clock.until(end, cool.count)

    def after(step: jax.Array) -> jax.Array:
      shaped = _SHAPES[shape](jnp.minimum(left(step), 1.0))
      return peak * (final + (1 - final) * shaped)

    return _warm_up(peak, warm, ramp, after)

  return build


_SHAPES = {
  'linear': lambda left: left,
  # 1 - sqrt(1 - left), without a difference near its end.
  'sqrt': lambda left: left / (1 + jnp.sqrt(1 - left)),
}


def _decay(
  shape: Callable[[jax.Array], jax.Array],
  peak: float,
  warmup: int | str,
  final: float,
  decay: int | str,
) -> Build:
  """From the peak after the warm-up to `final` * peak at `decay`.

  `shape` maps the part that is left, 1 to 0, to the height, 1 to 0.
  """
  warm = _length('warmup', warmup)
  stop = None if decay == '' else _length('decay', decay)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    end = stop or Amount(num_steps, 'steps')
    clock = Clock(ramp, end.unit)
    # A run that ends within its warm-up never comes to decay.
    span = clock.at(end) - clock.at(warm)
    if stop and span < 1:
      raise UsageError(
        f'schedule.name: decay={decay!r} ends no later than warmup={warmup!r}; '
        'it is counted from the first step'
      )
    left = clock.until(clock.at(end), max(span, 1))

    def after(step: jax.Array) -> jax.Array:
      height = shape(jnp.minimum(left(step), 1.0))
      return peak * (final + (1 - final) * height)

    return _warm_up(peak, warm, ramp, after)

  return build


def _warm_up(
  peak: float,
  warm: Amount,
  ramp: Ramp,
  after: Callable[[jax.Array], jax.Array],
) -> Schedule:
  """Linear warm-up, then `after`, a function of the step."""
  end = min(ramp.step_at(warm), LAST_STEP)
  part = Clock(ramp, warm.unit).since_start(max(warm.count, 1))

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step, jnp.int32)
    warming = peak * jnp.minimum(part(step + 1), 1.0)
    return jnp.where(step < end, warming, after(step))

  return schedule


def _length(name: str, value: int | str) -> Amount:
  return amount.parse(f'schedule.name: {name}', value)


SCHEDULES = {
  'constant': constant,
  'cosine': cosine,
  'linear': linear,
  'noam': noam,
  'rsqrt': rsqrt,
  'wsd': wsd,
}
