# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'model.attention': {'bigbird': 'gpt_jax.papers.bigbird.bigbird:bigbird'},
  'model.attention_backend': {'blocks': 'gpt_jax.papers.bigbird.bigbird_kernel:blocks'},
}
