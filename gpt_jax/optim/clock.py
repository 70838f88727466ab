# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How far a run is, in steps or in tokens, as a fraction that rounds once.

Tokens reach 1.4e12: too many for int32, and float32 would lose the last
40,000. So that the traced step is all that a compiled schedule needs, the
count is written stage by stage as

  base + |step - anchor| * slope

with base and slope worked out in whole numbers and divided before they are
rounded. The anchors are chosen such that no term is negative: nothing cancels,
and the fraction is right to a few units in the last place of float32, near the
end as at the start.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.optim.amount import Amount
from gpt_jax.optim.consumption import Ramp

# Steps are int32. What lies beyond is never reached.
LAST_STEP = 2**31 - 2

# From a step, traced or not, to a float32.
Fraction = Callable[[jax.typing.ArrayLike], jax.Array]


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
    """The count, in parts of `span`."""
    return _piecewise(
      [
        _Piece(start, start, self.count(start) / span, slope / span)
        for start, slope in self._slopes()
      ]
    )

  def until(self, end: int, span: int) -> Fraction:
    """What is left of the count to `end`, in parts of `span`; then 0."""
    # The last step that does not go beyond.
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
    """Where each stage starts, and what one of its steps counts."""
    if self.unit == 'steps':
      return [(0, 1)]
    return [
      (stage.start, stage.rows * stage.length)
      for stage in self.ramp.between(0, LAST_STEP)
    ]


def _piecewise(pieces: list[_Piece]) -> Fraction:
  starts, anchors = (
    np.array([p[i] for p in pieces], np.int32) for i in range(2)
  )
  bases, slopes = (
    np.array([p[i] for p in pieces], np.float32) for i in range(2, 4)
  )

  def fraction(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step, jnp.int32)
    # Comparing with all is no loop on the device, and the stages are few.
    i = jnp.searchsorted(starts, step, side='right', method='compare_all') - 1
    distance = jnp.abs(step - jnp.asarray(anchors)[i]).astype(jnp.float32)
    return jnp.asarray(bases)[i] + distance * jnp.asarray(slopes)[i]

  return fraction
