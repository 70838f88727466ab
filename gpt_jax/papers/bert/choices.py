# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'data.rows': {
    'full_sentences': 'gpt_jax.papers.bert.sentence_rows:full_sentences',
    'doc_sentences': 'gpt_jax.papers.bert.sentence_rows:doc_sentences',
    'pairs': 'gpt_jax.papers.bert.pair_rows:pairs',
    'halves': 'gpt_jax.papers.bert.pair_rows:halves',
  },
  'tokenizer.name': {
    'wordpiece': 'gpt_jax.papers.bert.wordpiece:wordpiece',
    'wordpiece_file': 'gpt_jax.papers.bert.wordpiece:wordpiece_file',
    'byte_bpe': 'gpt_jax.papers.bert.byte_bpe:byte_bpe',
    'byte_bpe_file': 'gpt_jax.papers.bert.byte_bpe:byte_bpe_file',
  },
  'objective.name': {'masked': 'gpt_jax.papers.bert.masked:Masked'},
}
