# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

ROWS = {
  'model': {'encoder_decoder': 'gpt_jax.papers.transformer.encoder_decoder:EncoderDecoderModel'},
  'model.share': {'stacks': 'gpt_jax.papers.transformer.encoder_decoder:stacks'},
  'option': {'model.share.stacks': 'gpt_jax.papers.transformer.rules:STACKS'},
  'data.rows': {'parallel': 'gpt_jax.papers.transformer.parallel_rows:parallel'},
  'data.source of pairs': {
    'parallel_text': 'gpt_jax.papers.transformer.pairs:parallel_text',
    'parallel_jsonl': 'gpt_jax.papers.transformer.pairs:parallel_jsonl',
    'parallel_tfds': 'gpt_jax.papers.transformer.pairs:parallel_tfds',
    'parallel_tfds_dir': 'gpt_jax.papers.transformer.pairs:parallel_tfds_dir',
  },
  'objective.name': {'seq2seq': 'gpt_jax.papers.transformer.seq2seq:Seq2Seq'},
}
