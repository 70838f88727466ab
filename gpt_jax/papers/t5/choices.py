# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of the core's tables, by the field that names them."""

# Of a text that is cut or corrupted (tables 3, 5 and 7).
UNSUPERVISED = {
  'span': 'gpt_jax.papers.t5.t5:Span',
  'replace_spans': 'gpt_jax.papers.t5.t5:ReplaceSpans',
  'drop_tokens': 'gpt_jax.papers.t5.t5:DropTokens',
  'bert_style': 'gpt_jax.papers.t5.t5:BertStyle',
  'mass_style': 'gpt_jax.papers.t5.t5:MassStyle',
  'deshuffle': 'gpt_jax.papers.t5.t5:Deshuffle',
  'continuation': 'gpt_jax.papers.t5.t5:Continuation',
}

ROWS = {
  'model.position': {'t5_bias': 'gpt_jax.papers.t5.layers:t5_bias'},
  'model.init_weights': {'t5': 'gpt_jax.papers.t5.layers:t5'},
  'objective.name': {**UNSUPERVISED, 'prefix': 'gpt_jax.papers.t5.prefix:Prefix'},
}
