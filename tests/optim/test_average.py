# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The moving average of the weights against its sum written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import spec
from gpt_jax.optim.rounding import AVERAGES
from gpt_jax.spec import UsageError


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_average_is_the_weighted_sum(dtype):
  """decay^n p_0 + (1 - decay) sum_i decay^(n - i) p_i, in float64."""
  rng = np.random.default_rng(0)
  steps, decay = 20, 0.8
  history = rng.normal(size=(steps + 1, 3, 5)).astype(dtype)
  update = jax.jit(spec.build('optim.ema', f'ema(decay={decay})', AVERAGES))
  average = {'kernel': history[0].astype(np.float32)}
  for params in history[1:]:
    average = update(average, {'kernel': params})
  weights = (1 - decay) * decay ** np.arange(steps, -1, -1.0)
  weights[0] = decay**steps
  expected = np.tensordot(weights, history.astype(np.float64), 1)
  assert average['kernel'].dtype == jnp.float32
  np.testing.assert_allclose(average['kernel'], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  'decay, why', [(-0.1, 'must be at least 0'), (1.0, 'must be below 1')]
)
def test_a_decay_that_averages_nothing(decay, why):
  with pytest.raises(UsageError, match=f'decay={decay} {why}'):
    spec.build('optim.ema', f'ema(decay={decay})', AVERAGES)
