# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'objective.name': {
    'mass': 'gpt_jax.papers.bart.denoise:Mass',
    'denoise': 'gpt_jax.papers.bart.denoise:Denoise',
  }
}
