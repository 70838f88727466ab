# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'model.attention': {'lstm': 'gpt_jax.papers.lstm.lstm:lstm'},
  'model.input': {'characters': 'gpt_jax.papers.lstm.word_characters:characters'},
  'objective.name': {
    'recurrent': 'gpt_jax.papers.lstm.recurrent:Recurrent',
    'bilm': 'gpt_jax.papers.lstm.bilm:BiLm',
  },
  'option': {
    'model.attention.lstm': 'gpt_jax.papers.lstm.rules:LAYERS',
    'model.block.plain': 'gpt_jax.papers.lstm.rules:PLAIN',
    'model.encoder_attention.lstm': 'gpt_jax.papers.lstm.rules:LAYERS',
    'model.input.characters': 'gpt_jax.papers.lstm.word_characters:OPTION',
  },
}
