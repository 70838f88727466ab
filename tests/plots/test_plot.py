# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The smoothed curve."""

import numpy as np

from gpt_jax.plots import runs


def test_running_mean_weights_newer_values_more():
  values, decay = [3.0, 5.0, 11.0], 0.7
  expected = []
  for n in range(1, 4):
    weights = decay ** np.arange(n - 1, -1, -1)
    expected.append(np.average(values[:n], weights=weights))
  np.testing.assert_allclose(runs.running_mean(values, decay), expected)
