# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Schedules of the learning rate, and how much a run has consumed."""

import fractions
import itertools
import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.optim.schedules import SCHEDULES, Amount, Clock
from gpt_jax.core.spec import UsageError

PEAK = 6e-4
CONSTANT = batch_ramp.constant(11, row_tokens=13)
GROWING = batch_ramp.build('ramp(0:2, 5_steps:3, 17_steps:11, 900_steps:7)', row_tokens=13)


def build(text, num_steps, ramp=CONSTANT):
  return spec.build('schedule.name', text, SCHEDULES)(ramp, num_steps)


class Time(NamedTuple):
  """Steps or tokens: n before the step, `after` it, `end` of the run."""

  n: float
  after: float
  end: float


def cosine(t, *, warmup=0, final=0.0, decay=None):
  """GPT-3, appendix B; the warm-up is GPT-1's, from the first step on."""
  if t.n < warmup:
    return PEAK * min(t.after / warmup, 1)
  x = min((t.n - warmup) / max((decay or t.end) - warmup, 1), 1)
  return PEAK * (final + (1 - final) * (1 + math.cos(math.pi * x)) / 2)


def linear(t, *, warmup=0, final=0.0, decay=None):
  if t.n < warmup:
    return PEAK * min(t.after / warmup, 1)
  x = min((t.n - warmup) / max((decay or t.end) - warmup, 1), 1)
  return PEAK * (1 - x) + final * PEAK * x


def constant(t, *, warmup=0):
  return PEAK * min(t.after / warmup, 1) if t.n < warmup else PEAK


def rsqrt(t, *, hold, warmup=0):
  """T5, section 3.1.2: 1 / sqrt(max(n, k)), scaled to start at the peak."""
  if t.n < warmup:
    return PEAK * min(t.after / warmup, 1)
  return PEAK * math.sqrt(hold) / math.sqrt(max(t.n, hold))


def wsd(t, *, cooldown, warmup=0, final=0.0, shape='linear'):
  """Haegele et al., equations 1 and 2."""
  if t.n < warmup:
    return PEAK * min(t.after / warmup, 1)
  x = max(min((t.n - (t.end - cooldown)) / cooldown, 1), 0)
  f = {'linear': 1 - x, 'sqrt': 1 - math.sqrt(x)}[shape]
  return PEAK * (final + (1 - final) * f)


REFERENCES = {f.__name__: f for f in (cosine, linear, constant, rsqrt, wsd)}


def check(name, ramp, num_steps, tokens, arguments):
  """Compares all steps of a run, and some beyond."""
  unit = '_tokens' if tokens else '_steps'
  lengths = ('warmup', 'decay', 'hold', 'cooldown')
  written = {k: f'{v}{unit}' if k in lengths else v for k, v in arguments.items()}
  text = ', '.join(f'{k}={v!r}' for k, v in {'peak': PEAK, **written}.items())
  schedule = build(f'{name}({text})', num_steps, ramp)

  def count(step):
    return ramp.tokens(step) if tokens else step

  steps = range(num_steps + 3)
  expected = [
    REFERENCES[name](Time(count(s), count(s + 1), count(num_steps)), **arguments) for s in steps
  ]
  found = np.asarray(jax.jit(schedule)(np.array(steps)))
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-9 * PEAK)


@pytest.mark.parametrize('warmup', [0, 1, 7, 30])
@pytest.mark.parametrize(
  'name, extra',
  [
    ('cosine', {'final': 0.1}),
    ('cosine', {'final': 0.0, 'decay': 33}),
    ('linear', {'final': 0.0}),
    ('linear', {'final': 0.25, 'decay': 31}),
    ('constant', {}),
    ('rsqrt', {'hold': 30}),
    ('wsd', {'cooldown': 11}),
    ('wsd', {'cooldown': 11, 'final': 0.2, 'shape': 'sqrt'}),
  ],
)
def test_in_steps(name, extra, warmup):
  arguments = {'warmup': warmup, **extra}
  check(name, CONSTANT, 41, False, arguments)
  # Steps are steps, however many rows they take.
  check(name, GROWING, 41, False, arguments)


@pytest.mark.parametrize('warmup', [0, 1, 300, 26 * 5])
@pytest.mark.parametrize(
  'name, extra',
  [
    ('cosine', {'final': 0.1, 'decay': 3001}),
    ('linear', {'decay': 1000}),
    ('constant', {}),
    ('rsqrt', {'hold': 301}),
    ('wsd', {'cooldown': 2003}),
    ('wsd', {'cooldown': 2003, 'shape': 'sqrt'}),
  ],
)
def test_in_tokens_of_a_growing_batch(name, extra, warmup):
  check(name, GROWING, 41, True, {'warmup': warmup, **extra})


def test_tokens_and_steps_agree_where_the_batch_is_constant():
  tokens = 11 * 13
  a = build(f"cosine(1.0, '{7 * tokens}_tokens', 0.1, decay='{40 * tokens}_tokens')", 40)
  b = build('cosine(1.0, 7, 0.1)', 40)
  np.testing.assert_allclose(a(np.arange(43)), b(np.arange(43)), rtol=1e-6)


def test_a_warm_up_in_steps_before_a_decay_in_tokens():
  # Gopher's: the cosine begins where the warm-up ends, in tokens.
  end = GROWING.tokens(100)
  rate = build(f"cosine(1.0, warmup=20, decay='{end}_tokens')", 100, GROWING)
  begin = GROWING.tokens(20)
  assert [float(rate(s)) for s in (19, 20)] == [1, 1]
  for step in (21, 50, 99):
    x = (GROWING.tokens(step) - begin) / (end - begin)
    expected = (1 + math.cos(math.pi * x)) / 2
    assert float(rate(step)) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize('d_model, warmup', [(512, 4000), (1024, 7)])
def test_noam(d_model, warmup):
  """Transformer, equation 3, with step_num from 1."""
  n = np.array([*range(1, 31), 3999, 4000, 4001, 10**6])
  expected = d_model**-0.5 * np.minimum(n**-0.5, n * warmup**-1.5)
  rate = build(f'noam(d_model={d_model}, warmup={warmup})', 10)
  np.testing.assert_allclose(jax.jit(rate)(n - 1), expected, rtol=1e-6)
  twice = build(f'noam({d_model}, {warmup}, factor=2.0)', 10)
  np.testing.assert_allclose(twice(n - 1), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize('steps, cut, ratio', [(101, 0.1, 32), (37, 0.25, 5)])
def test_slanted(steps, cut, ratio):
  """ULMFiT, equation 3."""
  rise, t = int(cut * steps), np.arange(steps)
  p = np.where(t < rise, t / rise, 1 - (t - rise) / (rise * (1 / cut - 1)))
  rate = build(f'slanted(peak=0.01, cut={cut}, ratio={ratio})', steps)
  found = jax.jit(rate)(t)
  expected = 0.01 * (1 + np.maximum(p, 0) * (ratio - 1)) / ratio
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert found[0] == pytest.approx(0.01 / ratio)
  assert np.argmax(found) == rise
  assert found[rise] == pytest.approx(0.01)


def test_sqrt_decay():
  """CVT's released code, whose rate is 0 at its first step, n = 0."""
  n = np.array([0, 1, 4_998, 4_999, 5_000, 90_000])
  warm, lower = np.minimum((n + 1) / 5000, 1), 1 + 0.005 * np.sqrt(n)
  rate = build('sqrt_decay(peak=0.5, decay=0.005, warmup=5000)', 100_000)
  np.testing.assert_allclose(jax.jit(rate)(n), 0.5 * warm / lower, rtol=1e-6)


def test_palm():
  """Section 5: 1e-2 for the first 10,000 steps, then 1 / sqrt(k)."""
  rate = build('rsqrt(peak=1e-2)', 255_000)
  k = np.array([0, 1, 9_999, 10_000, 10_001, 100_000, 255_000])
  expected = np.where(k < 10_000, 1e-2, 1 / np.sqrt(np.maximum(k, 1)))
  np.testing.assert_allclose(rate(k), expected, rtol=1e-6)


def test_trillions_of_tokens_lose_nothing():
  """GPT-3's and PaLM's sizes: the rate of neighbouring steps differs."""
  ramp = batch_ramp.build('ramp(0:512, 50k_steps:1024, 115k_steps:2048)', row_tokens=2048)
  end = 780 * 10**9
  last = ramp.step_at_tokens(end)
  text = "cosine(1.0, warmup='375M_tokens', decay='780B_tokens')"
  rate = jax.jit(build(text, last, ramp))
  steps = np.array([357, 358, 359, 49_999, 50_000, 50_001, 114_999, 115_000])
  steps = np.concatenate([steps, [200_001, last - 2, last - 1, last]])
  tokens = np.array([ramp.tokens(s) for s in steps.tolist()])
  left = np.clip((end - tokens) / (end - 375e6), 0, 1)
  expected = np.where(tokens < 375e6, (tokens + 512 * 2048) / 375e6, np.sin(np.pi / 2 * left) ** 2)
  np.testing.assert_allclose(rate(steps), np.minimum(expected, 1), rtol=1e-6)


def test_boundaries():
  schedule = build('cosine(peak=0.5, warmup=10, final=0.25)', 110)
  at = {s: float(schedule(s)) for s in (0, 8, 9, 10, 60, 110, 111, 10**6)}
  assert at[0] == pytest.approx(0.05)
  assert at[8] == pytest.approx(0.45)
  # The last step of the warm-up, and the first after it, run at the peak.
  assert at[9] == at[10] == pytest.approx(0.5)
  assert at[60] == pytest.approx((0.5 + 0.125) / 2)
  # After the end the rate stays.
  assert at[110] == at[111] == at[10**6] == pytest.approx(0.125)


def test_a_warm_up_as_long_as_the_run():
  schedule = build('cosine(peak=0.5, warmup=20)', 20)
  assert [float(schedule(s)) for s in (0, 19)] == pytest.approx([0.025, 0.5])


@pytest.mark.parametrize(
  'text, why',
  [
    ('cosine(0.0)', 'peak=0.0 must be above 0'),
    ('wsd(-1.0, 5)', 'peak=-1.0 must be above 0'),
    ('constant(1.0, warmup=-1)', 'warmup=-1: give a whole number'),
    ("linear(1.0, warmup='5k')", "warmup='5k': give a whole number"),
    ('linear(1.0, decay=2.5)', 'decay=2.5 must be a whole number or a text'),
    ('slanted(1.0, cut=0.0)', 'cut=0.0 must be above 0'),
    ('cosine(1.0, warmup=5, decay=5)', 'decay=5 must end after warmup=5'),
    ('rsqrt(1.0, hold=0)', 'hold=0 must be positive, and no shorter'),
    ('rsqrt(1.0, hold=4, warmup=5)', 'no shorter than warmup=5'),
    ('wsd(1.0, cooldown=0)', 'cooldown=0 after warmup=0 does not fit the 10'),
    ('wsd(1.0, 8, warmup=3)', 'cooldown=8 after warmup=3 does not fit the 10'),
    ("wsd(1.0, 8, shape='cubic')", "shape='cubic' is unknown; one of linear, s"),
    ('noam(d_model=0)', 'd_model=0 must be at least 1'),
    ('noam(512, warmup=0)', 'warmup=0 must be at least 1'),
    ('cosine(1e999)', 'peak=inf must be a finite number'),
    ('cosine(1.0, final=-5)', 'final=-5 must be at least 0'),
    ('wsd(1.0, 5, final=1.5)', 'final=1.5 must be at most 1'),
    ("linear(1.0, warmup='99999999999T_steps')", 'give a whole number'),
  ],
)
def test_bad_arguments(text, why):
  with pytest.raises(UsageError) as error:
    build(text, 10)
  assert str(error.value).startswith('schedule.name')
  assert why in str(error.value)


def test_peak_has_no_default():
  for name in SCHEDULES.keys() - {'noam'}:
    with pytest.raises(UsageError, match="missing a required argument: 'peak'"):
      build(name, 10)


# Fractions of huge token counts, against whole numbers.


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
  ramp = batch_ramp.build(RAMPS[name], LENGTHS.get(name), row_tokens=2048, num_steps=1_500_000)
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
  np.testing.assert_allclose(left(np.array([0, 2**31 - 2])), [1, 1 - 2147483646e-13], rtol=RTOL)
