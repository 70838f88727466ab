# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'model.input': {'adaptive': 'gpt_jax.papers.transformer_xl.adaptive:adaptive'},
  'model.output': {'adaptive': 'gpt_jax.papers.transformer_xl.adaptive:adaptive_softmax'},
  'model.position': {
    'transformer_xl': ('gpt_jax.papers.transformer_xl.transformer_xl:transformer_xl')
  },
}
