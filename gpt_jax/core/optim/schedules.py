# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Amounts of training, ramps of the batch, and learning-rate schedules.

An amount is a number of steps or tokens: 2000, '50k_steps', '1.5T_tokens'. All
are integers of at most 64 bits.
"""

import bisect
import dataclasses
import fractions
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from etils import epy

from gpt_jax.core import ranges
from gpt_jax.core.ranges import Count, NotNegative, Probability, Rate
from gpt_jax.core.spec import UsageError, shown

with epy.lazy_imports():
  import jax
  import jax.numpy as jnp

_PATTERN = re.compile(r'(\d[\d_]{,30}(?:\.\d{1,30})?)([kMGBT]?)_(steps|tokens)')
_STEPS = re.compile(r'\d[\d_]{,30}')
_SUFFIXES = {'': 1, 'k': 10**3, 'M': 10**6, 'G': 10**9, 'B': 10**9, 'T': 10**12}


class Amount(NamedTuple):
  """`count` steps or tokens."""

  count: int
  unit: str  # 'steps' or 'tokens'


def parse(field: str, value: Any) -> Amount:
  """Parses a number of steps, or a string with a unit.

  Args:
    field: that holds the value, for errors.
    value: an int (steps), also as a string, as a call-string has it; or a
      string such as '50k_steps' or '4.5B_tokens' with one of the suffixes k, M,
      G or B, T (powers of 1000) or none.
  """
  if isinstance(value, str) and _STEPS.fullmatch(value):
    value = int(value.replace('_', ''))
  if type(value) is int and 0 <= value <= ranges.INT64:
    return Amount(value, 'steps')
  match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
  if match:
    number, suffix, unit = match.groups()
    count = fractions.Fraction(number.replace('_', '')) * _SUFFIXES[suffix]
    if count.denominator == 1 and count <= ranges.INT64:
      return Amount(int(count), unit)
  raise UsageError(
    f'{field}={shown(value)}: give a whole number of steps or tokens, as '
    "in 2000, '50k_steps', '375M_tokens', '1.5T_tokens'"
  )


# Consumption: the rows and tokens of each step, in closed form, in integers.


class Shape(NamedTuple):
  """The shape of a batch; each shape has its own compiled program."""

  rows: int
  length: int
  task: str = ''  # whose examples it has, of several; '': the only task

  @property
  def tokens(self) -> int:
    """Tokens in a batch."""
    return self.rows * self.length


class Stage(NamedTuple):
  """Steps whose batches have the same shape."""

  start: int  # first step
  rows: int  # in a batch
  length: int  # targets in a row
  offset: int  # rows consumed before, of whatever length
  tokens: int  # tokens consumed before
  task: str = ''  # see `Shape`

  @property
  def shape(self) -> Shape:
    """The shape of its batches."""
    return Shape(self.rows, self.length, self.task)

  @property
  def index(self) -> int:
    """The position of its first row in the order of all rows of its length.

    As many tokens precede it in that order as were consumed, so that counts of
    tokens and epochs continue from the previous stage.
    """
    return -(-self.tokens // self.length)


@dataclasses.dataclass(frozen=True)
class Ramp:
  """The rows of every step: closed forms of the step, counted from 0."""

  stages: tuple[Stage, ...]  # the last one has no end

  def stage(self, step: int) -> Stage:
    """The stage that `step` belongs to."""
    return self.stages[bisect.bisect_right(self.stages, step, key=lambda s: s.start) - 1]

  def rows(self, step: int) -> int:
    """Rows in the batch of `step`."""
    return self.stage(step).rows

  def shape(self, step: int) -> Shape:
    """Rows in the batch of `step`, and their length."""
    return self.stage(step).shape

  def offset(self, step: int) -> int:
    """Rows of all steps before `step`."""
    stage = self.stage(step)
    return stage.offset + (step - stage.start) * stage.rows

  def batch(self, step: int) -> tuple[int, int, int, int]:
    """(offset, count, length, index): the rows of the run that `step` takes.

    The first has the number `offset` in the run, and is row `index` in the
    order of all rows of its length.
    """
    stage = self.stage(step)
    before = (step - stage.start) * stage.rows
    return (stage.offset + before, stage.rows, stage.length, stage.index + before)

  def tokens(self, step: int) -> int:
    """Tokens of all steps before `step`."""
    stage = self.stage(step)
    return stage.tokens + (step - stage.start) * stage.rows * stage.length

  def tokens_by_shape(self, start: int, stop: int) -> dict[Shape, int]:
    """Tokens of the steps [start, stop), by the shape of their batch."""
    stages = self.between(start, stop)
    totals: dict[Shape, int] = {}
    for i, stage in enumerate(stages):
      end = stages[i + 1].start if i + 1 < len(stages) else stop
      steps = end - max(start, stage.start)
      before = totals.get(stage.shape, 0)
      totals[stage.shape] = before + steps * stage.shape.tokens
    return totals

  def step_at_tokens(self, tokens: int) -> int:
    """The first step before which at least `tokens` were consumed."""
    before = bisect.bisect_left(self.stages, tokens, key=lambda s: s.tokens)
    stage = self.stages[max(before - 1, 0)]
    return stage.start - (stage.tokens - tokens) // (stage.rows * stage.length)

  def step_at(self, when: Amount) -> int:
    """The first step at or after `when`."""
    if when.unit == 'steps':
      return when.count
    return self.step_at_tokens(when.count)

  def tokens_at(self, when: Amount) -> int:
    """`when` in tokens."""
    return when.count if when.unit == 'tokens' else self.tokens(when.count)

  def between(self, start: int, stop: int) -> list[Stage]:
    """The stages of the steps [start, stop)."""
    first = self.stage(start).start
    return [s for s in self.stages if first <= s.start < stop]

  @property
  def longest(self) -> int:
    """Targets in the longest rows."""
    return max(stage.length for stage in self.stages)


# Progress: the fraction of a run that is done, in steps or in tokens.
#
# Tokens reach 1.4e12: too many for int32, and float32 would lose the last
# 40,000. A compiled schedule gets only the traced step, so the count is written
# stage by stage as
#
#   base + |step - anchor| * slope
#
# with base and slope computed in integers and divided before they are rounded.
# The anchors are chosen such that no term is negative: nothing cancels, and the
# fraction is exact to a few units in the last place of float32, near the end as
# at the start.


# Steps are int32; later ones are never reached.
LAST_STEP = 2**31 - 2

# From a step, traced or not, to a float32.
Fraction = Callable[['jax.typing.ArrayLike'], 'jax.Array']


class _Piece(NamedTuple):
  """base + |step - anchor| * slope, from step `start` on."""

  start: int
  anchor: int
  base: float
  slope: float


class Clock(NamedTuple):
  """Counts the steps, or the tokens, before a step."""

  ramp: Ramp
  unit: str  # 'steps' or 'tokens'

  def count(self, step: int) -> int:
    """Steps or tokens before `step`."""
    return step if self.unit == 'steps' else self.ramp.tokens(step)

  def at(self, when: Amount) -> int:
    """`when` in the unit of this clock."""
    if self.unit == 'tokens':
      return self.ramp.tokens_at(when)
    return self.ramp.step_at(when)

  def since_start(self, span: int) -> Fraction:
    """The count, as a fraction of `span`."""
    return _piecewise(
      [
        _Piece(start, start, self.count(start) / span, slope / span)
        for start, slope in self._slopes()
      ]
    )

  def until(self, end: int, span: int) -> Fraction:
    """The count left until `end`, as a fraction of `span`; 0 afterwards."""
    # The last step whose count does not exceed `end`.
    last = self.ramp.step_at(Amount(end, self.unit))
    last = min(last - (self.count(last) > end), LAST_STEP)
    pieces, stop = [], last
    for start, slope in reversed(self._slopes()):
      if start <= last:
        base = (end - self.count(stop)) / span
        pieces.append(_Piece(start, stop, base, slope / span))
        stop = start
    pieces.reverse()
    left = _piecewise(pieces)
    return lambda step: jnp.where(jnp.asarray(step) > last, 0.0, left(step))

  def _slopes(self) -> list[tuple[int, int]]:
    """The start of each stage, and the count of each of its steps."""
    if self.unit == 'steps':
      return [(0, 1)]
    return [(stage.start, stage.rows * stage.length) for stage in self.ramp.between(0, LAST_STEP)]


def _piecewise(pieces: list[_Piece]) -> Fraction:
  starts, anchors = (np.array([p[i] for p in pieces], np.int32) for i in range(2))
  bases, slopes = (np.array([p[i] for p in pieces], np.float32) for i in range(2, 4))

  def fraction(step: 'jax.typing.ArrayLike') -> 'jax.Array':
    step = jnp.asarray(step, jnp.int32)
    # compare_all needs no loop on the device, and the stages are few.
    i = jnp.searchsorted(starts, step, side='right', method='compare_all') - 1
    distance = jnp.abs(step - jnp.asarray(anchors)[i]).astype(jnp.float32)
    return jnp.asarray(bases)[i] + distance * jnp.asarray(slopes)[i]

  return fraction


# Learning-rate schedules, as closed-form functions of the step.
#
# Lengths are steps (2000, '2k_steps') or tokens ('375M_tokens'); lengths in
# tokens follow the tokens consumed, through any batch ramp. An entry, called
# with its arguments, returns a function from the run's ramp and its number of
# steps to the schedule.
#
# Every schedule can warm up linearly: step s of the first `warmup` steps (from
# 0) runs at peak * (s + 1) / warmup, so that no step is wasted at rate zero.


Schedule = Callable[['jax.typing.ArrayLike'], 'jax.Array']

# From the batch ramp and the number of steps of a run.
Build = Callable[[Ramp, int], Schedule]


def constant(peak: Rate, warmup: int | str = 0) -> Build:
  """The peak rate until the end."""
  warm = _length('warmup', warmup)
  return lambda ramp, num_steps: _warm_up(
    peak, warm, ramp, lambda step: jnp.full_like(step, peak, jnp.float32)
  )


def cosine(
  peak: Rate, warmup: int | str = 0, final: Probability = 0.0, decay: int | str = ''
) -> Build:
  """Gives peak * (final + (1 - final) * (1 + cos(pi x)) / 2), x from 0 to 1.

  Args:
    peak: the rate at the end of the warm-up.
    warmup: its length.
    final: the last rate as a fraction of the peak (GPT-1: 0; GPT-3,
      Chinchilla, LLaMA: 0.1).
    decay: where x reaches 1, counted from the first step; empty: the last.
  """

  def half_cosine(left: 'jax.Array') -> 'jax.Array':
    # (1 + cos(pi x)) / 2 at x = 1 - left, without cancellation near the end.
    return jnp.square(jnp.sin(np.float32(np.pi / 2) * left))

  return _decay(half_cosine, peak, warmup, final, decay)


def linear(
  peak: Rate, warmup: int | str = 0, final: Probability = 0.0, decay: int | str = ''
) -> Build:
  """From peak to `final` * peak in a straight line; arguments as `cosine`."""
  return _decay(lambda left: left, peak, warmup, final, decay)


def rsqrt(peak: Rate, hold: int | str = 10_000, warmup: int | str = 0) -> Build:
  """Gives peak * sqrt(hold / max(n, hold)), n the steps or tokens before.

  T5, section 3.1.2, and PaLM, section 5: 1e-2 for 10,000 steps, then
  1 / sqrt(n). A warm-up, which neither uses, is part of `hold`.
  """
  warm, held = _length('warmup', warmup), _length('hold', hold)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    del num_steps
    clock = Clock(ramp, held.unit)
    if held.count < max(1, clock.at(warm)):
      raise UsageError(
        f'schedule.name: hold={hold!r} must be positive, and no shorter than warmup={warmup!r}'
      )
    held_times = clock.since_start(held.count)
    return _warm_up(
      peak, warm, ramp, lambda step: peak * jax.lax.rsqrt(jnp.maximum(held_times(step), 1.0))
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

    def schedule(step: 'jax.typing.ArrayLike') -> 'jax.Array':
      n = part(jnp.asarray(step, jnp.int32) + 1)
      return peak * jnp.minimum(jax.lax.rsqrt(n), n)

    return schedule

  return build


def slanted(
  peak: Rate,
  cut: Annotated[float, ranges.number(0, 1, above=True, below=True)] = 0.1,
  ratio: Annotated[float, ranges.number(1)] = 32.0,
) -> Build:
  """Up in a short part of the run, then down in the rest of it, both linear.

  ULMFiT's slanted triangular rates (Howard and Ruder 2018, equation 3):
  peak * (1 + p (ratio - 1)) / ratio; p rises from 0 to 1 in the first floor(cut
  * num_steps) steps t, and falls as 1 - (t - those) / (those * (1 / cut - 1)).

  Args:
    peak: the largest rate.
    cut: the fraction of the steps in which it rises.
    ratio: of the largest rate to the smallest.
  """

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    del ramp
    rise = max(int(cut * num_steps), 1)
    fall = rise * (1 / cut - 1)

    def schedule(step: 'jax.typing.ArrayLike') -> 'jax.Array':
      t = jnp.asarray(step, jnp.float32)
      p = jnp.where(t < rise, t / rise, 1 - (t - rise) / fall)
      return peak * (1 + jnp.clip(p, 0.0, 1.0) * (ratio - 1)) / ratio

    return schedule

  return build


def sqrt_decay(peak: Rate, decay: NotNegative = 0.005, warmup: int | str = 0) -> Build:
  """Gives peak * min((n + 1) / warmup, 1) / (1 + decay * sqrt(n)).

  n is the number of steps before. CVT's released code (Clark et al., 2018): 0.5
  with 0.005 and 5,000 steps.

  Args:
    peak: the rate without warm-up and decay.
    warmup: length of the warm-up.
  """
  warm = _length('warmup', warmup)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    del num_steps
    part = Clock(ramp, warm.unit).since_start(max(warm.count, 1))

    def schedule(step: 'jax.typing.ArrayLike') -> 'jax.Array':
      step = jnp.asarray(step, jnp.int32)
      lower = 1 + decay * jnp.sqrt(step.astype(jnp.float32))
      return peak * jnp.minimum(part(step + 1), 1.0) / lower

    return schedule

  return build


def wsd(
  peak: Rate,
  cooldown: int | str,
  warmup: int | str = 0,
  final: Probability = 0.0,
  shape: Literal['linear', 'sqrt'] = 'linear',
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
  """
  warm, cool = _length('warmup', warmup), _length('cooldown', cooldown)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    clock = Clock(ramp, cool.unit)
    end = clock.count(num_steps)
    if not 0 < cool.count <= end - clock.at(warm):
      raise UsageError(
        f'schedule.name: cooldown={cooldown!r} after warmup={warmup!r} does not fit the '
        f'{end:,} {cool.unit} of the run; shorten one, or raise schedule.num_steps'
      )
    left = clock.until(end, cool.count)

    def after(step: 'jax.Array') -> 'jax.Array':
      shaped = _SHAPES[shape](jnp.minimum(left(step), 1.0))
      return peak * (final + (1 - final) * shaped)

    return _warm_up(peak, warm, ramp, after)

  return build


_SHAPES = {
  'linear': lambda left: left,
  # 1 - sqrt(1 - left), without cancellation near the end.
  'sqrt': lambda left: left / (1 + jnp.sqrt(1 - left)),
}


def _decay(
  shape: Callable[['jax.Array'], 'jax.Array'],
  peak: float,
  warmup: int | str,
  final: float,
  decay: int | str,
) -> Build:
  """From the peak after the warm-up to `final` * peak at `decay`.

  `shape` maps the fraction left, 1 to 0, to the relative height, 1 to 0.
  """
  warm = _length('warmup', warmup)
  stop = None if decay == '' else _length('decay', decay)

  def build(ramp: Ramp, num_steps: int) -> Schedule:
    end = stop or Amount(num_steps, 'steps')
    clock = Clock(ramp, end.unit)
    # A run that ends within its warm-up never decays.
    span = clock.at(end) - clock.at(warm)
    if stop and span < 1:
      raise UsageError(
        f'schedule.name: decay={decay!r} must end after warmup={warmup!r}; '
        'both count from the first step'
      )
    left = clock.until(clock.at(end), max(span, 1))

    def after(step: 'jax.Array') -> 'jax.Array':
      height = shape(jnp.minimum(left(step), 1.0))
      return peak * (final + (1 - final) * height)

    return _warm_up(peak, warm, ramp, after)

  return build


def _warm_up(
  peak: float, warm: Amount, ramp: Ramp, after: Callable[['jax.Array'], 'jax.Array']
) -> Schedule:
  """Linear warm-up, then `after`, a function of the step."""
  end = min(ramp.step_at(warm), LAST_STEP)
  part = Clock(ramp, warm.unit).since_start(max(warm.count, 1))

  def schedule(step: 'jax.typing.ArrayLike') -> 'jax.Array':
    step = jnp.asarray(step, jnp.int32)
    warming = peak * jnp.minimum(part(step + 1), 1.0)
    return jnp.where(step < end, warming, after(step))

  return schedule


def _length(name: str, value: int | str) -> Amount:
  return parse(f'schedule.name: {name}', value)


SCHEDULES = {
  'constant': constant,
  'cosine': cosine,
  'linear': linear,
  'noam': noam,
  'rsqrt': rsqrt,
  'slanted': slanted,
  'sqrt_decay': sqrt_decay,
  'wsd': wsd,
}
