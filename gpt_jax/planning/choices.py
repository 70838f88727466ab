# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'planner': {
    'mesh': 'gpt_jax.planning.layouts:best_mesh',
    'batch.micro_rows': 'gpt_jax.planning.layouts:first_rows',
  }
}
