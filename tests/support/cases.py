# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of parametrized tests."""

import functools

import pytest

# A case that `make slow` runs.
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
