# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'listener': {'replay.every_steps': 'gpt_jax.resilience.replay:Replay'},
  'tier': {'local': 'gpt_jax.resilience.local:LocalCheckpoints'},
}
