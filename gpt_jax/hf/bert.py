# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT and its kin: RoBERTa, ALBERT, ELECTRA, DistilBERT and BigBird."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.hf.base import (
  ACTIVATIONS,
  BODY,
  Entry,
  Family,
  Options,
  Tensor,
  call,
  choice,
  classes,
  constant,
  dropout,
  fixed,
  linear,
  named,
  norm,
  only,
  qkv,
  same,
  sizes,
  writes,
)

_TYPES = (
  only(position_embedding_type='absolute'),
  call('input', 'tokens', token_types=('type_vocab_size', 2), norm=True),
)


def encoder(
  *own: Entry,
  types: tuple[Entry, ...] = _TYPES,
  context_length: int = 512,
  activation: str = 'gelu',
  epsilon: float = 1e-12,
  rate: float = 0.1,
) -> tuple[Entry, ...]:
  """Options that BERT and its descendants share.

  Args:
    *own: entries of the family.
    types: entries of `model.input`, and of positions.
    context_length: the default, as are `activation`, `epsilon` and `rate`, of
      dropout.
  """
  body = {**BODY, 'max_position_embeddings': ('context_length', context_length)}
  return (
    only(is_decoder=False),
    sizes(**body, intermediate_size='d_ff'),
    *types,
    named('hidden_act', 'ffn', ACTIVATIONS, activation),
    call('norm', 'layernorm', epsilon=('layer_norm_eps', epsilon)),
    dropout('hidden_dropout_prob', 'hidden_dropout_prob', 'attention_probs_dropout_prob', rate),
    constant(tie_word_embeddings=True),
    fixed(attention='bidirectional', block='post', position='learned'),
    *own,
  )


def scores_with(option: str, default: str) -> Entry:
  """Scores of the vocabulary, transformed by the activation in `option`."""

  def read(options: Options) -> dict[str, Any]:
    ffn = options.choice(option, ACTIVATIONS, default)
    return {'output': f'tied(bias=True, transform={ffn!r})'}

  return Entry(read)


_SCORES = scores_with('hidden_act', 'gelu')
# Independent of `hidden_act`.
_GELU = fixed(output="tied(bias=True, transform='gelu')")
_CLASSES = {
  'ForMaskedLM': 'lm',
  'ForPreTraining': 'pretraining',
  'ForSequenceClassification': 'pooled_classification',
  'ForQuestionAnswering': 'spans',
  'ForTokenClassification': 'tokens',
  'ForMultipleChoice': 'pooled_choice',
  'Model': 'pooled',
}


def _norm(path: str, name: str) -> list[Tensor]:
  """LayerNorm; Google's own files name its parameters gamma and beta."""
  return [
    same(f'{path}/scale', f'{name}.weight', f'{name}.gamma'),
    same(f'{path}/bias', f'{name}.bias', f'{name}.beta'),
  ]


def has_scores(model: Transformer) -> bool:
  """Whether the model has the head that scores the vocabulary."""
  return choice(model, 'output').kwargs['bias']


def _bert_tensors(model: Transformer, *, biased: bool = True) -> list[Tensor]:
  scores, head = has_scores(model), 'cls.predictions'
  decoder = [f'{head}.decoder.weight'] * scores
  return [
    *_encoder_tensors('bert', *decoder, biased=biased),
    *_scores(head, f'{head}.transform', _norm) * scores,
  ]


def _encoder_tensors(root: str, *decoder: str, biased: bool = True) -> list[Tensor]:
  """The body's tensors of BERT and of families that kept its names.

  Args:
    root: of the names, e.g. `bert`.
    *decoder: other names of the token embeddings, as the tied output's table.
    biased: whether queries, keys and values have a bias.
  """
  e, h, ours = f'{root}.embeddings', f'{root}.encoder.layer.{{layer}}', 'layer'
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    same('segments/embedding', f'{e}.token_type_embeddings.weight'),
    *_norm('embed_norm', f'{e}.LayerNorm'),
    *qkv(f'{ours}/attention', f'{h}.attention.self', bias=biased, names=('query', 'key', 'value')),
    *linear(f'{ours}/attention/out', f'{h}.attention.output.dense'),
    *_norm(f'{ours}/attention_norm', f'{h}.attention.output.LayerNorm'),
    *linear(f'{ours}/ffn/in', f'{h}.intermediate.dense'),
    *linear(f'{ours}/ffn/out', f'{h}.output.dense'),
    *_norm(f'{ours}/ffn_norm', f'{h}.output.LayerNorm'),
  ]


def _scores(
  head: str,
  transform: str,
  make_norm: Callable[[str, str], list[Tensor]] = norm,
  layer_norm: str = 'LayerNorm',
) -> list[Tensor]:
  """The head of the masked language model, without the tied table.

  Its bias has two names: each release of transformers reads one of them, and
  takes zeros if that is missing.
  """
  biases = (f'{head}.bias', f'{head}.decoder.bias')
  return [
    *linear('output_dense', f'{transform}.dense'),
    *make_norm('output_norm', f'{transform}.{layer_norm}'),
    same('head_bias', *biases)._replace(always=biases),
  ]


BERT = Family(
  model_type='bert',
  architectures=classes('Bert', _CLASSES),
  prefix='bert.',
  entries=encoder(_SCORES),
  tensors=_bert_tensors,
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
)


# RoBERTa: BERT with other position numbers, and its own heads.


def _read_rows(options: Options) -> dict[str, Any]:
  # Rows up to the one of padding belong to no token.
  offset = _pad(options) + 1
  rows = options.size('max_position_embeddings', 512)
  if rows <= offset:
    raise options.fail('max_position_embeddings', f'has no rows from {offset} on, for tokens')
  return {'context_length': rows - offset, 'position': f'learned(offset={offset})'}


def _pad(options: Options) -> int:
  pad = options.get('pad_token_id', 1)
  if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
    raise options.fail('pad_token_id', 'must be a whole number from 0')
  return pad


def _write_rows(model: Transformer) -> dict[str, Any]:
  # Without an offset the config.json reads back differently, so `save` refuses.
  offset = max(choice(model, 'position').kwargs.get('offset', 0), 1)
  return {'max_position_embeddings': model.context_length + offset, 'pad_token_id': offset - 1}


def _roberta_tensors(model: Transformer) -> list[Tensor]:
  scores = has_scores(model)
  return [
    *_encoder_tensors('roberta', *['lm_head.decoder.weight'] * scores),
    *_scores('lm_head', 'lm_head', layer_norm='layer_norm') * scores,
  ]


def _positions(model: Transformer, ids: Any, mask: Any, positions: Any) -> Any:
  """Counts the tokens that are not padding, by their ids, not by the mask.

  HF's `position_ids` are rows of the table, of which padding has its own; ours
  begin with the row of the first token.
  """
  del mask
  offset = choice(model, 'position').kwargs['offset']
  if positions is not None:
    return positions - offset
  real = ids != offset - 1
  return jnp.where(real, jnp.cumsum(real, axis=-1), 0) - 1


ROBERTA = Family(
  model_type='roberta',
  architectures=classes('Roberta', {n: k for n, k in _CLASSES.items() if k != 'pretraining'}),
  prefix='roberta.',
  entries=encoder(_GELU, Entry(_read_rows, _write_rows)),
  tensors=_roberta_tensors,
  buffers=(r'roberta\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  positions=_positions,
  # The classifier has its own pooler.
  heads={
    'pooled_classification/pooler': 'classifier.dense',
    'pooled_classification/classifier': 'classifier.out_proj',
  },
)


# ALBERT: BERT with narrower embeddings, and layers that share parameters.
#
# Layer i uses group i * groups // layers, and runs the inner layers of that
# group in turn. Our layers are the inner layers.


def _read_groups(options: Options) -> dict[str, Any]:
  num_layers = options.size('num_hidden_layers')
  groups = options.size('num_hidden_groups', 1)
  inner = options.size('inner_group_num', 1)
  if num_layers % groups:
    raise options.fail('num_hidden_groups', f'does not divide num_hidden_layers={num_layers}')
  return {'num_layers': num_layers * inner, 'share': f'all(groups={groups}, inner={inner})'}


def _write_groups(model: Transformer) -> dict[str, Any]:
  shared = choice(model, 'share').kwargs
  inner = shared.get('inner', 1)
  return {
    'num_hidden_layers': model.num_layers // inner,
    'num_hidden_groups': shared.get('groups', 1),
    'inner_group_num': inner,
  }


_NARROW = call(
  'input', 'tokens', token_types=('type_vocab_size', 2), norm=True, d_embed=('embedding_size', 128)
)


def _albert_tensors(model: Transformer) -> list[Tensor]:
  scores = has_scores(model)
  e, ours = 'albert.embeddings', 'layer'
  h = 'albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}'
  decoder = ['predictions.decoder.weight'] * scores
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    same('segments/embedding', f'{e}.token_type_embeddings.weight'),
    *norm('embed_norm', f'{e}.LayerNorm'),
    *linear('embed_projection', 'albert.encoder.embedding_hidden_mapping_in'),
    *qkv(f'{ours}/attention', f'{h}.attention', bias=True, names=('query', 'key', 'value')),
    *linear(f'{ours}/attention/out', f'{h}.attention.dense'),
    *norm(f'{ours}/attention_norm', f'{h}.attention.LayerNorm'),
    *linear(f'{ours}/ffn/in', f'{h}.ffn'),
    *linear(f'{ours}/ffn/out', f'{h}.ffn_output'),
    *norm(f'{ours}/ffn_norm', f'{h}.full_layer_layer_norm'),
    *_scores('predictions', 'predictions') * scores,
  ]


ALBERT = Family(
  model_type='albert',
  architectures=classes('Albert', _CLASSES),
  prefix='albert.',
  entries=encoder(
    scores_with('hidden_act', 'gelu_new'),
    _NARROW,
    Entry(_read_groups, _write_groups),
    activation='gelu_new',
    rate=0.0,
  ),
  tensors=_albert_tensors,
  shared_layers=True,
  buffers=(r'albert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={'pooler': 'albert.pooler', 'pair': 'sop_classifier.classifier'},
  pair=('sentence_order_label', 'sop_logits'),
  files={'tokenizer.model': 'spiece.model'},
)


# ELECTRA: BERT with embeddings of another width, and no pooler.
#
# Its two classes for pre-training are the generator, a masked language model,
# and the discriminator. Embeddings are projected only if their width differs
# from that of the layers.


def _read_width(options: Options) -> dict[str, Any]:
  types = options.size('type_vocab_size', 2)
  d_embed = options.size('embedding_size', 128)
  own = f', d_embed={d_embed}' * (d_embed != options.size('hidden_size'))
  return {'input': f'tokens(token_types={types}, norm=True{own})'}


def _write_width(model: Transformer) -> dict[str, Any]:
  d_embed = choice(model, 'input').kwargs.get('d_embed', 0)
  return {'embedding_size': d_embed or model.d_model}


def _electra_tensors(model: Transformer) -> list[Tensor]:
  scores = has_scores(model)
  projected = choice(model, 'input').kwargs['d_embed'] > 0
  head = [
    *linear('output_dense', 'generator_predictions.dense'),
    *norm('output_norm', 'generator_predictions.LayerNorm'),
    same('head_bias', 'generator_lm_head.bias'),
  ]
  return [
    *_encoder_tensors('electra', *['generator_lm_head.weight'] * scores),
    *linear('embed_projection', 'electra.embeddings_project') * projected,
    *head * scores,
  ]


ELECTRA = Family(
  model_type='electra',
  architectures=classes(
    'Electra',
    {
      'ForMaskedLM': 'lm',
      'ForPreTraining': 'replaced',
      'ForSequenceClassification': 'gelu_classification',
      'ForQuestionAnswering': 'spans',
      'ForTokenClassification': 'tokens',
      'Model': 'body',
    },
  ),
  prefix='electra.',
  entries=encoder(_GELU, Entry(_read_width, _write_width)),
  tensors=_electra_tensors,
  buffers=(r'electra\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  pooler='gelu',
  heads={
    'pooler': 'classifier.dense',
    'classifier': 'classifier.out_proj',
    'tokens/classifier': 'classifier',
  },
)


# DistilBERT: BERT without token types and pooler, with its own names.


def _distilbert_tensors(model: Transformer) -> list[Tensor]:
  scores = has_scores(model)
  e, h = 'distilbert.embeddings', 'distilbert.transformer.layer.{layer}'
  decoder = ['vocab_projector.weight'] * scores
  head = [
    *linear('output_dense', 'vocab_transform'),
    *norm('output_norm', 'vocab_layer_norm'),
    same('head_bias', 'vocab_projector.bias'),
  ]
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    *norm('embed_norm', f'{e}.LayerNorm'),
    *qkv('layer/attention', f'{h}.attention', bias=True, names=('q_lin', 'k_lin', 'v_lin')),
    *linear('layer/attention/out', f'{h}.attention.out_lin'),
    *norm('layer/attention_norm', f'{h}.sa_layer_norm'),
    *linear('layer/ffn/in', f'{h}.ffn.lin1'),
    *linear('layer/ffn/out', f'{h}.ffn.lin2'),
    *norm('layer/ffn_norm', f'{h}.output_layer_norm'),
    *head * scores,
  ]


DISTILBERT = Family(
  model_type='distilbert',
  architectures=classes(
    'DistilBert',
    {
      'ForMaskedLM': 'lm',
      'ForSequenceClassification': 'relu_classification',
      'ForQuestionAnswering': 'spans',
      'ForTokenClassification': 'tokens',
      'Model': 'body',
    },
  ),
  prefix='distilbert.',
  entries=(
    sizes(
      vocab_size='vocab_size',
      max_position_embeddings=('context_length', 512),
      n_layers=('num_layers', 6),
      dim=('d_model', 768),
      n_heads=('num_heads', 12),
      hidden_dim=('d_ff', 3072),
    ),
    named('activation', 'ffn', ACTIVATIONS, 'gelu'),
    dropout('dropout', 'dropout', 'attention_dropout', 0.1),
    # If true, the table is in the file all the same.
    writes(sinusoidal_pos_embds=False),
    constant(tie_word_embeddings=True),
    fixed(
      input='tokens(norm=True)',
      position='learned',
      attention='bidirectional',
      norm='layernorm(epsilon=1e-12)',
      block='post',
    ),
    scores_with('activation', 'gelu'),
  ),
  tensors=_distilbert_tensors,
  buffers=(r'distilbert\.embeddings\.position_ids',),
  pooler='relu',
  heads={'pooler': 'pre_classifier'},
)


# BigBird: BERT with block-sparse attention, and another name for the pooler.
#
# transformers draws random blocks in training only; in evaluation it replaces
# each by the first block, which is `draw='first'` here. A model trained here
# always uses drawn blocks; its config.json then has `random_blocks_seed`, which
# transformers keeps and ignores.


_SEED = 'random_blocks_seed'
_SCALES = {True: 'sqrt', False: 'none'}


def _read_bias(options: Options) -> dict[str, Any]:
  """Bias of queries, keys and values, and the scale of the embeddings."""
  biased = options.flag('use_bias', True)
  scale = _SCALES[options.flag('rescale_embeddings', False)]
  types = options.size('type_vocab_size', 2)
  return {
    'bias': 'all' if biased else 'where(out=True, ffn=True)',
    'input': f'tokens(scale={scale!r}, token_types={types}, norm=True)',
  }


def _write_bias(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'input').kwargs.get('scale')
  return {'use_bias': ModelChoices.of(model).bias.qkv, 'rescale_embeddings': scale == 'sqrt'}


def _read_attention(options: Options) -> dict[str, Any]:
  options.only('attention_type', 'block_sparse', 'original_full')
  if options.get('attention_type') == 'original_full':
    return {'attention': 'bidirectional'}
  block = options.size('block_size', 64)
  random = options.size('num_random_blocks', 3)
  drawn = "draw='first'"
  if options.has(_SEED):
    drawn = f'seed={options.number(_SEED)}'
  return {'attention': f'bigbird(block={block}, random={random}, {drawn})'}


def _write_attention(model: Transformer) -> dict[str, Any]:
  # `save` refuses what these options cannot express: windows, extra tokens.
  attention = choice(model, 'attention')
  if attention.name != 'bigbird':
    return {'attention_type': 'original_full'}
  out = {
    'attention_type': 'block_sparse',
    'block_size': attention.kwargs['block'],
    'num_random_blocks': attention.kwargs['random'],
  }
  if attention.kwargs['draw'] == 'uniform':
    out[_SEED] = attention.kwargs['seed']
  return out


BIG_BIRD = Family(
  model_type='big_bird',
  architectures=classes(
    'BigBird',
    {
      'ForMaskedLM': 'lm',
      'ForPreTraining': 'pretraining',
      'ForSequenceClassification': 'dense_classification',
      'ForTokenClassification': 'pooled_tokens',
      'ForMultipleChoice': 'pooled_choice',
      'Model': 'pooled',
    },
  ),
  prefix='bert.',
  entries=encoder(
    scores_with('hidden_act', 'gelu_new'),
    Entry(_read_bias, _write_bias),
    Entry(_read_attention, _write_attention),
    context_length=4096,
    activation='gelu_new',
  ),
  tensors=lambda model: _bert_tensors(model, biased=ModelChoices.of(model).bias.qkv),
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={
    'pooler': 'bert.pooler',
    'dense': 'classifier.dense',
    'dense_classification/classifier': 'classifier.out_proj',
  },
)
