# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DistilBERT: BERT without token types and pooler, under names of its own."""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  linear,
  norm,
  same,
)
from gpt_jax.hf.parts import qkv, rates
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  options.only('tie_word_embeddings', True)
  # With sinusoidal_pos_embds the table is in the file all the same.
  ffn = options.choice('activation', ACTIVATIONS, 'gelu')
  residual = options.number('dropout', 0.1)
  attention = options.number('attention_dropout', 0.1)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings', 512),
    'num_layers': options.size('n_layers', 6),
    'd_model': options.size('dim', 768),
    'num_heads': options.size('n_heads', 12),
    'd_ff': options.size('hidden_dim', 3072),
    'input': 'tokens(norm=True)',
    'position': 'learned',
    'attention': 'bidirectional',
    'ffn': ffn,
    # No option says so.
    'norm': 'layernorm(epsilon=1e-12)',
    'block': 'post',
    'output': f'tied(bias=True, transform={ffn!r})',
    'dropout': rates(
      embedding=residual, residual=residual, attention=attention
    ),
  }


def _options(model: Transformer) -> dict[str, Any]:
  dropout = choice(model, 'dropout').kwargs
  return {
    'vocab_size': model.vocab_size,
    'max_position_embeddings': model.context_length,
    'n_layers': model.num_layers,
    'dim': model.d_model,
    'n_heads': model.num_heads,
    'hidden_dim': model.d_ff,
    'activation': activation(model),
    'dropout': dropout.get('residual', 0.0),
    'attention_dropout': dropout.get('attention', 0.0),
    'sinusoidal_pos_embds': False,
    'tie_word_embeddings': True,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  scores = choice(model, 'output').kwargs['bias']
  e, h = 'distilbert.embeddings', 'distilbert.transformer.layer.{layer}'
  decoder = ('vocab_projector.weight',) if scores else ()
  head = [
    *linear('output_dense', 'vocab_transform'),
    *norm('output_norm', 'vocab_layer_norm'),
    same('head_bias', 'vocab_projector.bias'),
  ]
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    *norm('embed_norm', f'{e}.LayerNorm'),
    *qkv(
      'layer/attention',
      f'{h}.attention',
      bias=True,
      names=('q_lin', 'k_lin', 'v_lin'),
    ),
    *linear('layer/attention/out', f'{h}.attention.out_lin'),
    *norm('layer/attention_norm', f'{h}.sa_layer_norm'),
    *linear('layer/ffn/in', f'{h}.ffn.lin1'),
    *linear('layer/ffn/out', f'{h}.ffn.lin2'),
    *norm('layer/ffn_norm', f'{h}.output_layer_norm'),
    *(head if scores else []),
  ]


DISTILBERT = Family(
  model_type='distilbert',
  architectures={
    'DistilBertForMaskedLM': 'lm',
    'DistilBertForSequenceClassification': 'relu_classification',
    'DistilBertForQuestionAnswering': 'spans',
    'DistilBertForTokenClassification': 'tokens',
    'DistilBertModel': 'body',
  },
  prefix='distilbert.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'distilbert\.embeddings\.position_ids',),
  pooler='relu',
  heads={'pooler': 'pre_classifier'},
)
