# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {'model.position': {'deberta': 'gpt_jax.papers.deberta.deberta:deberta'}}
