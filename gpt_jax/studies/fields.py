# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The section `sweep` of the config."""

from gpt_jax.core.entries import Field, Section
from gpt_jax.core.ranges import NotNegative, Positive

SWEEP = Section(
  'The grid of `gpt-jax scaling`; budgets and sizes may be added later.',
  free=True,
  budgets=Field('', str, "Training FLOPs, 6ND, of each IsoFLOP curve: '1e12, 3e12'."),
  sizes=Field(
    '',
    str,
    'The models to train, as a list of size(num_layers, d_model, num_heads, '
    'peak), where peak is the peak learning rate, and 0 that of the schedule.',
  ),
  min_tokens_per_parameter=Field(
    8.0, NotNegative, 'A size is left out of a curve if it would see fewer tokens.'
  ),
  max_tokens_per_parameter=Field(
    1000.0, Positive, 'A size is left out of a curve if it would see more tokens.'
  ),
)
