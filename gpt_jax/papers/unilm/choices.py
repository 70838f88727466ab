# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'objective.name': {
    'unified': 'gpt_jax.papers.unilm.unified:Unified',
    'unified_target': 'gpt_jax.papers.unilm.unified:UnifiedTarget',
  }
}
