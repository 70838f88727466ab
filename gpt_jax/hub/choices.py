# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'data.source': {'hub': 'gpt_jax.hub.datasets:hub'},
  'revision of data.source': {'hub': 'gpt_jax.hub.datasets:at_commit'},
}
