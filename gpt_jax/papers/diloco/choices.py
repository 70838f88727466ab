# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'optim.outer': {'diloco': 'gpt_jax.papers.diloco.diloco:DiLoCo'},
  'option': {'optim.outer.diloco': 'gpt_jax.papers.diloco.rules:OPTION'},
}
