# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'model.position': {'xlnet': 'gpt_jax.papers.xlnet.two_streams:xlnet'},
  'objective.name': {'permuted': 'gpt_jax.papers.xlnet.permuted:Permuted'},
}
