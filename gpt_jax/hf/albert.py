# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ALBERT: BERT with narrower embeddings, and layers that share parameters.

Layer i uses group i * groups // layers, and runs the inner layers of that
group in turn; ours are the inner layers.
"""

from typing import Any

from gpt_jax.hf.base import Family, Options, Tensor, choice, linear, norm, same
from gpt_jax.hf.bert import encoder_fields, encoder_options, output_bias
from gpt_jax.hf.parts import qkv
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  fields = encoder_fields(options, epsilon=1e-12)
  groups = options.size('num_hidden_groups', 1)
  inner = options.size('inner_group_num', 1)
  if fields['num_layers'] % groups:
    raise options.fail(
      'num_hidden_groups',
      f'does not divide num_hidden_layers={fields["num_layers"]}',
    )
  d_embed = options.size('embedding_size', 128)
  types = options.size('type_vocab_size', 2)
  return {
    **fields,
    'num_layers': fields['num_layers'] * inner,
    'share': f'all(groups={groups}, inner={inner})',
    'input': f'tokens(token_types={types}, norm=True, d_embed={d_embed})',
    'position': 'learned',
    'output': f'tied(bias=True, transform={fields["ffn"]!r})',
  }


def _options(model: Transformer) -> dict[str, Any]:
  shared = choice(model, 'share').kwargs
  inner = shared.get('inner', 1)
  return {
    **encoder_options(model),
    'embedding_size': choice(model, 'input').kwargs.get('d_embed', 0),
    'num_hidden_layers': model.num_layers // inner,
    'num_hidden_groups': shared.get('groups', 1),
    'inner_group_num': inner,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  scores = choice(model, 'output').kwargs['bias']
  e, ours = 'albert.embeddings', 'layer'
  h = 'albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}'
  decoder = ('predictions.decoder.weight',) if scores else ()
  head = [
    *linear('output_dense', 'predictions.dense'),
    *norm('output_norm', 'predictions.LayerNorm'),
    output_bias('predictions'),
  ]
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    same('segments/embedding', f'{e}.token_type_embeddings.weight'),
    *norm('embed_norm', f'{e}.LayerNorm'),
    *linear('embed_projection', 'albert.encoder.embedding_hidden_mapping_in'),
    *qkv(
      f'{ours}/attention',
      f'{h}.attention',
      bias=True,
      names=('query', 'key', 'value'),
    ),
    *linear(f'{ours}/attention/out', f'{h}.attention.dense'),
    *norm(f'{ours}/attention_norm', f'{h}.attention.LayerNorm'),
    *linear(f'{ours}/ffn/in', f'{h}.ffn'),
    *linear(f'{ours}/ffn/out', f'{h}.ffn_output'),
    *norm(f'{ours}/ffn_norm', f'{h}.full_layer_layer_norm'),
    *(head if scores else []),
  ]


ALBERT = Family(
  model_type='albert',
  architectures={
    'AlbertForMaskedLM': 'lm',
    'AlbertForPreTraining': 'pretraining',
    'AlbertForSequenceClassification': 'pooled_classification',
    'AlbertForQuestionAnswering': 'spans',
    'AlbertForTokenClassification': 'tokens',
    'AlbertForMultipleChoice': 'pooled_choice',
    'AlbertModel': 'pooled',
  },
  prefix='albert.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'albert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={'pooler': 'albert.pooler', 'pair': 'sop_classifier.classifier'},
  pair=('sentence_order_label', 'sop_logits'),
  files={'tokenizer.model': 'spiece.model'},
)
