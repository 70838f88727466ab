# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights of classes, against sums."""

import numpy as np

from gpt_jax.finetuning.data import CLASS_WEIGHTS


def test_balanced_weights_count_the_classes_alike():
  labels = np.array([0, 0, 0, 1], np.int32)
  build = CLASS_WEIGHTS['balanced']()
  np.testing.assert_allclose(build(labels, 2), [4 / 6, 2])
  np.testing.assert_allclose(build(labels, 2)[labels].mean(), 1)
