# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learning rates against formulas, at every step of short schedules."""

import math

import jax
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.optim.schedules import SCHEDULES
from gpt_jax.spec import UsageError

PEAK = 6e-4


def cosine(step, *, warmup, num_steps, final):
  x = (step - warmup) / (num_steps - warmup)
  return PEAK * (final + (1 - final) * (1 + math.cos(math.pi * x)) / 2)


def linear(step, *, warmup, num_steps, final):
  x = (step - warmup) / (num_steps - warmup)
  return PEAK * (1 - x) + final * PEAK * x


def constant(step, *, warmup, num_steps):
  return PEAK


def rsqrt(step, *, warmup, num_steps):
  """T5: 1 / sqrt(max(n, k)), scaled to reach the peak at n = k."""
  return PEAK * math.sqrt(
    max(warmup, 1) / (max(step - warmup, 0) + max(warmup, 1))
  )


REFERENCES = {
  'cosine': cosine,
  'linear': linear,
  'constant': constant,
  'rsqrt': rsqrt,
}


def build(text, num_steps):
  return spec.build('schedule.name', text, SCHEDULES)(num_steps)


@pytest.mark.parametrize('num_steps', [31, 1009])
@pytest.mark.parametrize('warmup', [0, 1, 7, 30])
@pytest.mark.parametrize(
  'name, extra',
  [
    ('cosine', {'final': 0.0}),
    ('cosine', {'final': 0.1}),
    ('linear', {'final': 0.0}),
    ('linear', {'final': 0.25}),
    ('constant', {}),
    ('rsqrt', {}),
  ],
)
def test_schedule(name, extra, warmup, num_steps):
  arguments = {'peak': PEAK, 'warmup': warmup, **extra}
  text = ', '.join(f'{k}={v}' for k, v in arguments.items())
  schedule = build(f'{name}({text})', num_steps)
  steps = np.arange(num_steps + 1)
  expected = [
    PEAK * (step + 1) / warmup
    if step < warmup
    else REFERENCES[name](
      int(step), warmup=warmup, num_steps=num_steps, **extra
    )
    for step in steps
  ]
  found = np.asarray(jax.jit(schedule)(steps))
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6 * PEAK)


@pytest.mark.parametrize('name', ['cosine', 'linear'])
def test_boundaries(name):
  schedule = build(f'{name}(peak=0.5, warmup=10, final=0.25)', 110)
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


def test_millions_of_steps_lose_no_precision_that_matters():
  """Steps are exact in float32 up to 2^24."""
  num = 3_050_000
  schedule = build('cosine(peak=2.5e-4, warmup=2000)', num)
  for step in (1999, 2000, 2001, 1_000_003, num - 1):
    x = max(step - 2000, 0) / (num - 2000)
    expected = 2.5e-4 * (1 + math.cos(math.pi * x)) / 2
    assert float(schedule(step)) == pytest.approx(expected, rel=1e-4, abs=1e-10)


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('arguments', ['0.0', '-1.0', '1.0, warmup=-1'])
def test_bad_arguments(name, arguments):
  with pytest.raises(UsageError, match=r'^schedule\.name: peak=.*warmup='):
    build(f'{name}({arguments})', 10)


def test_peak_has_no_default():
  for name in SCHEDULES:
    with pytest.raises(UsageError, match="missing a required argument: 'peak'"):
      build(name, 10)
