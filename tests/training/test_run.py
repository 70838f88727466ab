# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""When a run gives up."""

import pytest

from gpt_jax.training import run


@pytest.mark.parametrize(
  'values, patience, over',
  [
    ([3, 2, 1], 1, False),
    ([3, 2, 2], 1, True),
    ([3, 1, 2, 0.5], 2, False),
    ([3, 1, 2, 1.5], 2, True),
    ([3, 4], 2, False),
    ([1, 2, 3, 4], 0, False),
  ],
)
def test_patience(values, patience, over):
  assert run.gave_up([*enumerate(values)], patience) is over
