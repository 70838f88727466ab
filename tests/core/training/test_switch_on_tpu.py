# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts compile for TPU; what their kernels compute: `test_moe`."""

import pytest

from tests.support import tpu

pytestmark = pytest.mark.tpu


def test_the_train_step_compiles():
  assert tpu.compiled('switch', 'v5e:2x4') == {
    # There and back, and the same for the gradient.
    'capacity': [0, 4, 0],
    # Two products, and for each those of its two gradients.
    'dropless': [6, 0, 4],
  }
