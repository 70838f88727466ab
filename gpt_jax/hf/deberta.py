# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa, as first released, and as versions 2 and 3.

Published files also hold the absolute positions of the enhanced mask decoder,
and those of version 3 the head for replaced tokens. transformers has neither;
they are kept for an export alone, since fine-tuning does not use them.
"""

from typing import Any

from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Entry,
  Family,
  Options,
  Tensor,
  call_text,
  choice,
  classes,
  fixed,
  fused_qkv,
  hf_name,
  linear,
  norm,
  qkv,
  same,
  transposed,
)
from gpt_jax.hf.bert import encoder, has_scores, scores_with

# Prefix of the head that transformers calls not legacy.
_NEW = 'lm_predictions.lm_head'


def _read_types(options: Options) -> dict[str, Any]:
  types = options.whole('type_vocab_size', 0)
  return {'input': f'tokens(token_types={types}, norm=True)'}


def _write_types(model: Transformer) -> dict[str, Any]:
  token_types = choice(model, 'input').kwargs.get('token_types', 0)
  return {'type_vocab_size': token_types}


def _distances(options: Options) -> dict[str, Any]:
  """The arguments of `deberta(...)` of all versions."""
  if not options.flag('relative_attention', False):
    raise options.fail('relative_attention', 'is not supported, only true')
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  for name, value in (
    ('talking_head', False),
    ('pooler_hidden_act', 'gelu'),
    ('pooler_hidden_size', d_model),
    ('embedding_size', d_model),
    ('attention_head_size', d_model // num_heads),
  ):
    options.only(name, value)
  farthest = options.whole('max_relative_positions', -1)
  terms = options.get('pos_att_type', [])
  terms = terms.split('|') if isinstance(terms, str) else terms
  if not isinstance(terms, list) or any(term not in ('c2p', 'p2c') for term in terms):
    raise options.fail('pos_att_type', 'is not supported, only c2p and p2c')
  length = options.size('max_position_embeddings', 512)
  return {
    'max_distance': farthest if farthest > 0 else length,
    'c2p': 'c2p' in terms,
    'p2c': 'p2c' in terms,
    'absolute': options.flag('position_biased_input', True),
  }


def _read_1(options: Options) -> dict[str, Any]:
  return {'position': call_text('deberta', **_distances(options))}


def _read_2(options: Options) -> dict[str, Any]:
  normed = options.get('norm_rel_ebd', 'none')
  if normed not in ('none', 'layer_norm'):
    raise options.fail('norm_rel_ebd', 'is not supported')
  width = options.whole('conv_kernel_size', 0)
  options.only('conv_groups', 1)
  own = {
    'buckets': max(options.whole('position_buckets', -1), 0),
    'shared': options.flag('share_att_key', False),
    'norm': normed == 'layer_norm',
  }
  if width:
    own['convolution'] = width
    own['activation'] = options.choice('conv_act', ACTIVATIONS, 'tanh')
  return {'position': call_text('deberta', **_distances(options), **own)}


def _write_1(model: Transformer) -> dict[str, Any]:
  position = choice(model, 'position').kwargs
  return {
    'relative_attention': True,
    'max_relative_positions': position.get('max_distance', -1),
    'pos_att_type': [n for n in ('c2p', 'p2c') if position.get(n)],
    'position_biased_input': position.get('absolute', False),
    'legacy': True,
  }


def _write_2(model: Transformer) -> dict[str, Any]:
  position = choice(model, 'position').kwargs
  activation = position.get('activation', 'gelu')
  return {
    **_write_1(model),
    'position_buckets': position.get('buckets') or -1,
    'share_att_key': position.get('shared', False),
    'norm_rel_ebd': 'layer_norm' if position.get('norm') else 'none',
    'conv_kernel_size': position.get('convolution', 0),
    'conv_act': hf_name(activation, ACTIVATIONS),
  }


def _table(*own: Entry) -> tuple[Entry, ...]:
  types = (Entry(_read_types, _write_types),)
  scores = scores_with('hidden_act', 'gelu')
  return encoder(scores, *own, types=types, epsilon=1e-7)


def _tensors(model: Transformer) -> list[Tensor]:
  """All tensors without the projections to queries and keys."""
  scores = has_scores(model)
  e, h, ours = 'deberta.embeddings', 'deberta.encoder.layer.{layer}', 'layer'
  position = choice(model, 'position').kwargs
  types = choice(model, 'input').kwargs['token_types']
  absolute = same('positions/embedding', f'{e}.position_embeddings.weight')
  segments = same('segments/embedding', f'{e}.token_type_embeddings.weight')
  decoder = ['cls.predictions.decoder.weight'] * scores
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    *[absolute] * position['absolute'],
    *[segments] * (types > 0),
    *norm('embed_norm', f'{e}.LayerNorm'),
    same('distances/embedding', 'deberta.encoder.rel_embeddings.weight'),
    *norm('distances/norm', 'deberta.encoder.LayerNorm') * position['norm'],
    *linear(f'{ours}/attention/out', f'{h}.attention.output.dense'),
    *norm(f'{ours}/attention_norm', f'{h}.attention.output.LayerNorm'),
    *linear(f'{ours}/ffn/in', f'{h}.intermediate.dense'),
    *linear(f'{ours}/ffn/out', f'{h}.output.dense'),
    *norm(f'{ours}/ffn_norm', f'{h}.output.LayerNorm'),
    *_head() * scores,
  ]


def _head() -> list[Tensor]:
  """The head of the masked language model, without the tied table.

  Its tensors have two names, of which the first is what transformers calls
  legacy.
  """
  names = {
    'output_dense/kernel': 'dense.weight',
    'output_dense/bias': 'dense.bias',
    'output_norm/scale': 'LayerNorm.weight',
    'output_norm/bias': 'LayerNorm.bias',
  }
  tensors = [same('head_bias', 'cls.predictions.bias', f'{_NEW}.bias')]
  for path, name in names.items():
    both = f'cls.predictions.transform.{name}', f'{_NEW}.{name}'
    make = transposed if path.endswith('kernel') else same
    tensors.append(make(path, *both))
  return tensors


def _tensors_1(model: Transformer) -> list[Tensor]:
  h, ours = 'deberta.encoder.layer.{layer}.attention.self', 'layer/attention'
  position = choice(model, 'position').kwargs
  to_key = linear(f'{ours}/relative_key', f'{h}.pos_proj', bias=False)
  to_query = linear(f'{ours}/relative_query', f'{h}.pos_q_proj')
  return [
    *_tensors(model),
    *fused_qkv(
      ours,
      f'{h}.in_proj',
      groups=model.num_heads,
      heads=(1, 1, 1),
      head_size=model.head_size,
      bias=False,
    ),
    same(f'{ours}/query/bias', f'{h}.q_bias'),
    same(f'{ours}/value/bias', f'{h}.v_bias'),
    *to_key * position['c2p'],
    *to_query * position['p2c'],
  ]


def _tensors_2(model: Transformer) -> list[Tensor]:
  h, ours = 'deberta.encoder.layer.{layer}.attention.self', 'layer/attention'
  position = choice(model, 'position').kwargs
  own = not position['shared']
  names = 'query_proj', 'key_proj', 'value_proj'
  to_key = linear(f'{ours}/relative_key', f'{h}.pos_key_proj')
  to_query = linear(f'{ours}/relative_query', f'{h}.pos_query_proj')
  convolution = [
    # From [out, in, width].
    *linear('convolution', 'deberta.encoder.conv.conv'),
    *norm('convolution/norm', 'deberta.encoder.conv.LayerNorm'),
  ]
  return [
    *_tensors(model),
    *qkv(ours, h, bias=True, names=names),
    *convolution * (position['convolution'] > 0),
    *to_key * (own and position['c2p']),
    *to_query * (own and position['p2c']),
  ]


_CLASSES = {
  'ForMaskedLM': 'lm',
  'ForSequenceClassification': 'gelu_classification',
  'ForQuestionAnswering': 'spans',
  'ForTokenClassification': 'tokens',
  'Model': 'body',
}
_UNREAD = (r'deberta\.embeddings\.position_embeddings\.weight', r'mask_predictions\..*')

DEBERTA = Family(
  model_type='deberta',
  architectures=classes('Deberta', _CLASSES),
  prefix='deberta.',
  entries=_table(
    fixed(bias='where(qkv=True, out=True, ffn=True, key=False)'), Entry(_read_1, _write_1)
  ),
  tensors=_tensors_1,
  buffers=(r'deberta\.embeddings\.position_ids',),
  unread=_UNREAD,
  token_types=True,
  heads={'pooler': 'pooler.dense'},
  pooler='gelu',
)
DEBERTA_V2 = DEBERTA._replace(
  model_type='deberta-v2',
  architectures=classes('DebertaV2', _CLASSES),
  entries=_table(Entry(_read_2, _write_2)),
  tensors=_tensors_2,
  files={'tokenizer.model': 'spm.model'},
)
