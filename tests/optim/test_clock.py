# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fractions of huge token counts, against whole numbers."""

import fractions
import itertools

import jax
import numpy as np
import pytest

from gpt_jax.optim import batch_ramp
from gpt_jax.optim.schedules import Amount, Clock

RAMPS = {
  'gpt3': "linear_ramp(16, 1568, over='12B_tokens', stages=9)",
  'palm': 'ramp(0:512, 50k_steps:1024, 115k_steps:2048)',
  'constant': 2048,
  'falling': 'ramp(0:999, 7_steps:3)',
  'lengths': 'ramp(0:512, 4B_tokens:768)',
}
LENGTHS = {'lengths': 'stages(128, 20%:512, 700B_tokens:2048)'}
# A few units in the last place of float32.
RTOL = 4 * 2.0**-24


def steps_of(ramp, end):
  """Both ends, every boundary and the middles of the stages."""
  starts = [*(s.start for s in ramp.stages if s.start < end), end]
  middles = [(a + b) // 2 for a, b in itertools.pairwise(starts)]
  near = [s + d for s in [*starts, *middles] for d in (-2, -1, 0, 1, 2)]
  return np.array(sorted({s for s in near if s >= 0}))


@pytest.mark.parametrize('unit', ['steps', 'tokens'])
@pytest.mark.parametrize('name', RAMPS)
def test_fractions_are_exact_to_rounding(name, unit):
  ramp = batch_ramp.build(
    RAMPS[name], LENGTHS.get(name), row_tokens=2048, num_steps=1_500_000
  )
  clock = Clock(ramp, unit)
  # 1.4e12 + 1 tokens: no step ends there.
  end = clock.at(Amount(1_400_000_000_001, 'tokens'))
  span = end - 375_000_001 if unit == 'tokens' else end - 2000
  steps = steps_of(ramp, ramp.step_at(Amount(end, unit)))
  counts = [s if unit == 'steps' else ramp.tokens(s) for s in steps.tolist()]

  found = np.asarray(jax.jit(clock.since_start(span))(steps))
  assert found.dtype == np.float32
  expected = [float(fractions.Fraction(c, span)) for c in counts]
  np.testing.assert_allclose(found, expected, rtol=RTOL)

  found = np.asarray(jax.jit(clock.until(end, span))(steps))
  assert found.dtype == np.float32
  expected = [float(fractions.Fraction(max(end - c, 0), span)) for c in counts]
  np.testing.assert_allclose(found, expected, rtol=RTOL)
  # The last step before the end is told from the end.
  last = np.flatnonzero(found)[-1]
  assert found[last] > 0 and found[-1] == 0


def test_what_lies_beyond_int32_is_never_reached():
  ramp = batch_ramp.build('ramp(0:1, 9T_tokens:2)', row_tokens=1)
  left = Clock(ramp, 'tokens').until(10**13, 10**13)
  np.testing.assert_allclose(
    left(np.array([0, 2**31 - 2])), [1, 1 - 2147483646e-13], rtol=RTOL
  )
