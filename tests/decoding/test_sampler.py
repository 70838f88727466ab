# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws follow the distribution asked for, in each row by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from gpt_jax.decoding import sampler as sampler_lib
from gpt_jax.decoding.settings import Sampler

DRAWS = 20_011
# Not sorted, the differences large enough to tell the tokens apart.
DRAW = jax.jit(sampler_lib.draw)
LOGITS = np.float32([0.3, -1.0, 1.7, 0.9, -0.4, 1.2, -2.2])


def draw(logits, samplers, seeds, index):
  stacked = sampler_lib.stack(samplers, seeds)
  return np.asarray(DRAW(logits, stacked, np.int32(index)))


def frequencies(sampler, logits=LOGITS):
  """Of the first draws of one row."""
  rows = np.broadcast_to(logits, (DRAWS, len(logits)))
  ids = draw(rows, [sampler] * DRAWS, [3] * DRAWS, np.arange(DRAWS))
  assert ids.shape == (DRAWS,)
  return np.bincount(ids, minlength=len(logits)) / DRAWS


def assert_drawn_from(found, probs):
  """Nothing outside the support; the rest within 5 standard errors."""
  np.testing.assert_array_equal(found[probs == 0], 0)
  errors = np.sqrt(probs * (1 - probs) / DRAWS)
  assert np.all(np.abs(found - probs) <= 5 * errors + 1e-12)


def restricted(probs, kept):
  out = np.zeros_like(probs)
  out[kept] = probs[kept] / probs[kept].sum()
  return out


@pytest.mark.parametrize('temperature', [0.5, 1.0, 2.5])
def test_temperature(temperature):
  probs = special.softmax(np.float64(LOGITS) / temperature)
  assert_drawn_from(frequencies(Sampler(temperature)), probs)


@pytest.mark.parametrize('top_k', [1, 3, 7, 100])
def test_top_k(top_k):
  probs = special.softmax(np.float64(LOGITS) / 0.7)
  kept = np.argsort(-LOGITS)[:top_k]
  found = frequencies(Sampler(0.7, top_k=top_k))
  assert_drawn_from(found, restricted(probs, kept))


# The sorted probabilities sum to .42, .67, .86, .97 and so on.
@pytest.mark.parametrize(
  'top_p, num_kept', [(0.0, 1), (0.3, 1), (0.5, 2), (0.8, 3), (0.9, 4), (1, 7)]
)
def test_top_p(top_p, num_kept):
  probs = special.softmax(np.float64(LOGITS))
  order = np.argsort(-probs)
  reached = np.cumsum(probs[order])
  assert num_kept == 7 or num_kept == 1 + np.sum(reached < top_p)
  found = frequencies(Sampler(top_p=top_p))
  assert_drawn_from(found, restricted(probs, order[:num_kept]))


def test_top_p_is_taken_of_what_top_k_left():
  """Of the best three, renormalised to .49, .29 and .22, two reach 0.75."""
  probs = special.softmax(np.float64(LOGITS))
  order = np.argsort(-probs)
  of_three = probs[order[:3]] / probs[order[:3]].sum()
  assert of_three[:1].sum() < 0.75 < of_three[:2].sum()
  assert probs[order[:2]].sum() < 0.75
  found = frequencies(Sampler(top_k=3, top_p=0.75))
  assert_drawn_from(found, restricted(probs, order[:2]))


# Of the largest probability, .42: .25, .19, .11 and .08 are .60, .45, .27, .18.
@pytest.mark.parametrize('min_p, num_kept', [(0.0, 7), (0.2, 4), (0.5, 2), (1.0, 1)])
def test_min_p(min_p, num_kept):
  probs = special.softmax(np.float64(LOGITS))
  kept = np.flatnonzero(probs >= min_p * probs.max())
  assert len(kept) == num_kept
  found = frequencies(Sampler(min_p=min_p))
  assert_drawn_from(found, restricted(probs, kept))


def test_min_p_is_taken_after_the_temperature_and_with_the_others():
  """At 2, seven are at least 0.1; of those top_k takes five."""
  probs = special.softmax(np.float64(LOGITS) / 2)
  kept = np.flatnonzero(probs >= 0.3 * probs.max())
  assert len(kept) == 5
  sampler = Sampler(2.0, top_k=6, top_p=0.99, min_p=0.3)
  assert_drawn_from(frequencies(sampler), restricted(probs, kept))


@pytest.mark.parametrize('V', [1, 7, 1009, 50257])
@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_any_score_that_is_no_number_breaks_its_row(V, wrong):
  """Wherever it is, and also one alone among as many as GPT-2 has."""
  places = sorted({0, 1 % V, V // 3, V - 1})
  logits = np.random.default_rng(V).normal(size=(2 * len(places) + 1, V))
  logits[-1, : V // 2] = -np.inf  # ruled out: sound
  for row, place in enumerate(places):
    logits[row, place] = wrong
    logits[len(places) + row, place:] = wrong
  found = jax.jit(sampler_lib.broken)(jnp.float32(logits))
  assert found.tolist() == [True] * 2 * len(places) + [False]


@pytest.mark.parametrize('V', [1, 7, 127, 128, 129, 1009])
def test_the_largest_is_numpys(V):
  """Also of equal logits, and of none that is finite."""
  rng = np.random.default_rng(V)
  logits = rng.integers(-3, 3, (23, V)).astype(np.float32)  # many are equal
  logits[5] = -np.inf
  logits[7, V // 2] = np.inf
  logits[13] = rng.normal(size=V)
  found = jax.jit(sampler_lib.largest)(logits)
  np.testing.assert_array_equal(found, np.argmax(logits, axis=-1))


def test_rows_of_one_batch_have_samplers_of_their_own():
  """Each draws what it draws alone, whatever the others use."""
  samplers = [
    Sampler(temperature=0),
    Sampler(0.7),
    Sampler(top_k=2),
    Sampler(top_p=0.5),
    Sampler(2.0, min_p=0.4),
  ]
  logits = np.random.default_rng(0).normal(size=(5, 131)).astype(np.float32)
  seeds = [3, 3, 5, 7, 2**32 - 1]
  for index in range(7):
    together = draw(logits, samplers, seeds, [index] * 5)
    for i, sampler in enumerate(samplers):
      alone = draw(logits[i : i + 1], [sampler], seeds[i : i + 1], [index])
      assert alone == together[i : i + 1]


def test_filters_of_many_tokens_equal_those_of_sorted_ones():
  """Which tokens are kept, on logits of all sizes and signs."""
  rng, V = np.random.default_rng(0), 1009
  sizes = np.float32([1e-30, 0.1, 1, 3, 30, 1e3, 1e30])
  logits = rng.normal(size=(7, V)).astype(np.float32) * sizes[:, None]
  samplers = [
    Sampler(top_k=17),
    Sampler(top_p=0.4),
    Sampler(top_k=100, top_p=0.9),
    Sampler(top_p=0.97),
    Sampler(top_k=2),
    Sampler(),
    Sampler(top_k=503),
  ]
  stacked = sampler_lib.stack(samplers, [0] * 7)
  found = np.asarray(sampler_lib._kept(jnp.array(logits), stacked))
  for row, sampler, kept in zip(logits, samplers, found, strict=True):
    best = np.sort(np.float64(row))[::-1][: sampler.top_k or V]
    if sampler.top_p < 1:
      reached = np.cumsum(special.softmax(best))
      best = best[: 1 + int(np.sum(reached < sampler.top_p))]
    least = best[-1]
    np.testing.assert_array_equal(kept, np.where(row < least, -np.inf, row))


def test_repetition_penalty():
  """Positive logits are divided, negative ones multiplied, of seen tokens."""
  rows = np.stack([LOGITS, LOGITS[::-1], LOGITS])
  seen = np.zeros(rows.shape, bool)
  seen[0, [2, 6]] = seen[1, [1, 5]] = seen[2] = True
  penalties = (1.3, 2.0, 1.0)
  expected = rows.copy()
  expected[0, 2], expected[0, 6] = 1.7 / 1.3, -2.2 * 1.3
  expected[1, 1], expected[1, 5] = 1.2 / 2, -1.0 * 2
  samplers = [Sampler(repetition_penalty=p) for p in penalties]
  stacked = sampler_lib.stack(samplers, [0] * 3)
  found = sampler_lib.penalize(jnp.array(rows), jnp.array(seen), stacked)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_seeds_of_rows_differ_and_do_not_depend_on_their_number():
  seeds = sampler_lib.seeds_of(7, 11)
  assert seeds[0] == 7 and len({*seeds}) == 11
  assert sampler_lib.seeds_of(7, 5) == seeds[:5]
  assert not {*sampler_lib.seeds_of(8, 11)} & {*seeds}
