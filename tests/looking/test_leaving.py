# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The first step at which a quantity leaves its band."""

import math

import pytest

from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.looking import leaving
from gpt_jax.looking.course import Course
from gpt_jax.looking.layers import Measuring
from gpt_jax.looking.leaving import Band


def test_bands():
  assert Band.of(':50') == (-math.inf, 50)
  assert Band.of('-2.5:3') == (-2.5, 3)
  assert Band.of('1:').has(1) and not Band.of('1:').has(0.99)
  assert not Band.of(':50').has(math.nan)
  for text in (':', '3', '3:2', 'a:b', 'nan:1'):
    with pytest.raises(UsageError, match=r'^--band=.*: give LOW:HIGH'):
      Band.of(text)


def test_finds_the_first_step_outside(run):
  """Of all steps that the run took, where the loss is lower than ever from there on."""
  with Course.open(run, 1) as course:
    losses = []
    while course.done < 24:
      losses.append(float(course.take().out['loss']))
    falls = [s for s in range(3, 25) if max(losses[s - 1 :]) < min(losses[: s - 1])]
    assert len(falls) > 3
    step = falls[len(falls) // 2]
    found = leaving.first_outside(course, 2, 24, 'loss', Band(min(losses[: step - 1]), math.inf))
    assert found.step == step
    assert found.values == {s: losses[s - 1] for s in found.values}
    # The steps between two checkpoints, and some ends of the others.
    assert len(found.values) <= 8 + 3
    with pytest.raises(FailedError, match=r'^--bisect=2:3: loss is .* at step 3, within the band'):
      leaving.first_outside(course, 2, 3, 'loss', Band(-math.inf, 1e9))
    with pytest.raises(UsageError, match='--quantity=logit: give loss, grad_norm, gradient_norm'):
      leaving.first_outside(course, 2, 3, 'logit', Band(0, 1))


def test_a_kind_of_norm_is_the_largest_of_all_layers(run):
  with Course.open(run, 2) as course:
    course.advance(1)
    norms = Measuring(course.parts).of(course.take()).norms
    found = leaving.first_outside(course, 2, 3, 'largest_logit', Band(math.inf, math.inf))
  layers = [norms[f'largest_logit/decoder/layer_{i}'] for i in (0, 1)]
  assert found == (2, {2: max(layers)})
  assert layers[0] != layers[1]
