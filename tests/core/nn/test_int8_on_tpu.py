# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Products in int8, in programs compiled for TPUs."""

import pytest

from tests.support import tpu

pytestmark = [pytest.mark.tpu, pytest.mark.long]


@pytest.mark.parametrize('chip', ['v5e', 'v6e'])
def test_a_wide_layer_is_faster_by_the_compilers_cycles(chip):
  """Forward and in both gradients of both kernels: six products."""
  found = tpu.compiled('matmul', f'{chip}:2x2')
  sums = {name: x['sums in int32'] for name, x in found.items()}
  assert sums == {'plain': 0, 'int8': 6, "int8(gradients='inputs')": 4}
  plain, narrow = found['plain'], found['int8']
  assert plain['products'] > 1.5 * narrow['products']
  assert plain['compiler'] > narrow['compiler']
