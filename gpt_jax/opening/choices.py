# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'origin': {
    'optim.vectors': 'gpt_jax.opening.word_vectors:VECTORS',
    'optim.start': 'gpt_jax.opening.starting:START',
    'objective.teacher': 'gpt_jax.opening.teachers:TEACHER',
  },
  'tokenizer.name': {'words_file': 'gpt_jax.opening.vector_words:word_list_file'},
  'teacher': {'objective.teacher': 'gpt_jax.opening.teaching:opened'},
}
