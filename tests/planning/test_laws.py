# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published laws, against the papers' own numbers."""

import math

import pytest
from scipy.optimize import minimize_scalar

from gpt_jax.planning.budget import short
from gpt_jax.planning.laws import FITS, LAWS, Fit, kaplan

# As Chinchilla's tables print them: parameters, FLOPs, tokens.
TABLE_3 = """
400M 1.92e19 8.0B
1B 1.21e20 20.2B
10B 1.23e22 205.1B
67B 5.76e23 1.5T
175B 3.85e24 3.7T
280B 9.90e24 5.9T
520B 3.43e25 11.0T
1T 1.27e26 21.2T
10T 1.30e28 216.2T
"""
TABLE_A3_APPROACH_2 = """
400M 1.84e19 7.7B
10B 1.32e22 219.5B
280B 1.18e25 7.1T
10T 1.75e28 292.0T
"""
TABLE_A3_APPROACH_3 = """
1B 1.62e20 27.1B
67B 1.71e24 4.1T
10T 8.55e28 1425.5T
"""


def rows(number, text):
  return [(number, *line.split()) for line in text.split('\n') if line]


@pytest.mark.parametrize(
  'approach, parameters, flops, tokens',
  rows(1, TABLE_3)
  + rows(2, TABLE_A3_APPROACH_2)
  + rows(3, TABLE_A3_APPROACH_3),
)
def test_the_tables_to_their_digits(approach, parameters, flops, tokens):
  found = LAWS[f'Chinchilla, approach {approach}'](float(flops))
  assert short(found.parameters).replace('.0', '') == parameters
  assert short(found.tokens) == tokens
  # All rows but that of Gopher's budget keep to C = 6 N D.
  spent = 6 * found.parameters * found.tokens
  assert spent == pytest.approx(float(flops), rel=0.06)


def test_between_and_beyond_the_rows():
  # Appendix D.4: at 1e21 FLOPs approach 1 gives 2.86 billion parameters.
  assert short(LAWS['Chinchilla, approach 1'](1e21).parameters, 2) == '2.86B'
  # Section 3.3: for Gopher's budget approach 3 gives 40 billion.
  found = LAWS['Chinchilla, approach 3'](5.76e23).parameters
  assert found == pytest.approx(40e9, rel=0.05)
  # Table 2: the exponents of N and D.
  for approach, (a, b) in {
    1: (0.50, 0.50),
    2: (0.49, 0.51),
    3: (0.46, 0.54),
  }.items():
    law = LAWS[f'Chinchilla, approach {approach}']
    for flops in (1e15, 1e30):
      less, more = law(flops), law(100 * flops)
      slopes = [math.log(y / x, 100) for x, y in zip(less, more, strict=True)]
      assert slopes == pytest.approx([a, b], abs=0.006)


@pytest.mark.parametrize('fit', FITS.values(), ids=FITS)
def test_the_closed_form_is_the_minimum(fit):
  flops = 5.76e23
  found = minimize_scalar(
    lambda log_n: fit.loss(math.exp(log_n), flops / 6 / math.exp(log_n)),
    bounds=(math.log(1e8), math.log(1e13)),
    method='bounded',
    options={'xatol': 1e-10},
  )
  optimum = fit.optimum(flops)
  assert optimum.parameters == pytest.approx(math.exp(found.x), rel=1e-4)
  assert 6 * optimum.parameters * optimum.tokens == pytest.approx(flops)
  # How the tokens follow from the loss.
  loss = fit.loss(*optimum)
  assert fit.tokens(optimum.parameters, loss) == pytest.approx(optimum.tokens)
  assert fit.tokens(optimum.parameters, fit.E) == math.inf


def test_published_numbers_of_the_fits():
  # Besiroglu et al. find a = 0.5126 from the same runs.
  assert FITS['Besiroglu et al. 2024'].a == pytest.approx(0.5126, abs=5e-5)
  # Hoffmann et al., section 4: Chinchilla and Gopher, in nats a token.
  loss = FITS['Hoffmann et al. 2022'].loss
  assert loss(70e9, 1.4e12) < loss(280e9, 300e9)
  assert Fit(1.0, 8.0, 27.0, 3.0, 1.5).loss(2.0, 9.0) == 1.0 + 1.0 + 1.0


def test_kaplan():
  # A PF-day buys 1.3e9 parameters; the exponents are 0.73 and 0.27.
  assert kaplan(8.64e19).parameters == pytest.approx(1.3e9)
  less, more = kaplan(1e20), kaplan(1e22)
  slopes = [math.log(y / x, 100) for x, y in zip(less, more, strict=True)]
  assert slopes == pytest.approx([0.73, 0.27])
