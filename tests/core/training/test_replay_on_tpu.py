# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The gradients of replicas on TPUs: nothing is summed between replicas."""

import pytest

from tests.support import tpu

pytestmark = pytest.mark.tpu


def test_only_fingerprints_leave_a_replica():
  """The compiler takes its checker, as it refuses options that it lacks."""
  found = tpu.compiled('replay')
  # The model has 20 arrays, and each replica one number of each.
  assert found['data'] < 1000
  assert found['fsdp'] > 1e6
  assert found['temporary'] < 1.5 * found['of_step']
  assert found['kernels'] > 0
