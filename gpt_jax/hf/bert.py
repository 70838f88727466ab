# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT and its kin: RoBERTa, ALBERT, ELECTRA, DistilBERT and BigBird."""

from typing import Any

import jax.numpy as jnp

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
from gpt_jax.nn.build import build
from gpt_jax.nn.transformer import Transformer

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
) -> tuple[Entry, ...]:
  """What BERT's descendants call by the same names.

  Args:
    *own: entries of the family.
    types: of `model.input`, and of positions.
    context_length: the default, as are `activation` and `epsilon`.
  """
  body = {**BODY, 'max_position_embeddings': ('context_length', context_length)}
  return (
    only(is_decoder=False),
    sizes(**body, intermediate_size='d_ff'),
    *types,
    named('hidden_act', 'ffn', ACTIVATIONS, activation),
    call('norm', 'layernorm', epsilon=('layer_norm_eps', epsilon)),
    dropout(
      *('hidden_dropout_prob', 'hidden_dropout_prob'),
      *('attention_probs_dropout_prob', 0.1),
    ),
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
# Whatever `hidden_act` is.
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
  """LayerNorm, which Google's own files call gamma and beta."""
  return [
    same(f'{path}/scale', f'{name}.weight', f'{name}.gamma'),
    same(f'{path}/bias', f'{name}.bias', f'{name}.beta'),
  ]


def _bert_tensors(model: Transformer) -> list[Tensor]:
  scored = choice(model, 'output').kwargs['bias']
  decoder = ('cls.predictions.decoder.weight',) if scored else ()
  return [
    *encoder_tensors('bert', *decoder),
    *(scores() if scored else []),
  ]


def encoder_tensors(
  root: str, *decoder: str, biased: bool = True
) -> list[Tensor]:
  """The body's tensors of BERT and those who kept its names.

  Args:
    root: of the names, e.g. `bert`.
    *decoder: other names that the token embeddings have as the output's table.
    biased: whether queries, keys and values have a bias.
  """
  e, h, ours = f'{root}.embeddings', f'{root}.encoder.layer.{{layer}}', 'layer'
  return [
    same('embed/embedding', f'{e}.word_embeddings.weight', *decoder),
    same('positions/embedding', f'{e}.position_embeddings.weight'),
    same('segments/embedding', f'{e}.token_type_embeddings.weight'),
    *_norm('embed_norm', f'{e}.LayerNorm'),
    *qkv(
      f'{ours}/attention',
      f'{h}.attention.self',
      bias=biased,
      names=('query', 'key', 'value'),
    ),
    *linear(f'{ours}/attention/out', f'{h}.attention.output.dense'),
    *_norm(f'{ours}/attention_norm', f'{h}.attention.output.LayerNorm'),
    *linear(f'{ours}/ffn/in', f'{h}.intermediate.dense'),
    *linear(f'{ours}/ffn/out', f'{h}.output.dense'),
    *_norm(f'{ours}/ffn_norm', f'{h}.output.LayerNorm'),
  ]


def scores() -> list[Tensor]:
  """The head of the masked language model, but for the tied table."""
  transform = 'cls.predictions.transform'
  return [
    *linear('output_dense', f'{transform}.dense'),
    *_norm('output_norm', f'{transform}.LayerNorm'),
    output_bias('cls.predictions'),
  ]


def output_bias(head: str) -> Tensor:
  """A bias of each token of the vocabulary, which has two names.

  Some releases take the one, some the other, and zeros if it is missing.
  """
  biases = (f'{head}.bias', f'{head}.decoder.bias')
  return same('head_bias', *biases)._replace(always=biases)


BERT = Family(
  model_type='bert',
  architectures=classes('Bert', _CLASSES),
  prefix='bert.',
  entries=encoder(_SCORES),
  tensors=_bert_tensors,
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
)


# RoBERTa: BERT with another count of positions, and heads of its own.


def _read_rows(options: Options) -> dict[str, Any]:
  # Rows up to that of padding are no token's.
  offset = _pad(options) + 1
  rows = options.size('max_position_embeddings', 512)
  if rows <= offset:
    raise options.fail(
      'max_position_embeddings', f'has no rows from {offset} on, for tokens'
    )
  return {
    'context_length': rows - offset,
    'position': f'learned(offset={offset})',
  }


def _pad(options: Options) -> int:
  pad = options.get('pad_token_id', 1)
  if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
    raise options.fail('pad_token_id', 'must be a whole number from 0')
  return pad


def _write_rows(model: Transformer) -> dict[str, Any]:
  # Where there is no such offset, fields come back other than they were.
  offset = max(choice(model, 'position').kwargs.get('offset', 0), 1)
  return {
    'max_position_embeddings': model.context_length + offset,
    'pad_token_id': offset - 1,
  }


def _roberta_tensors(model: Transformer) -> list[Tensor]:
  scores = choice(model, 'output').kwargs['bias']
  decoder = ('lm_head.decoder.weight',) if scores else ()
  head = [
    *linear('output_dense', 'lm_head.dense'),
    *norm('output_norm', 'lm_head.layer_norm'),
    output_bias('lm_head'),
  ]
  return [*encoder_tensors('roberta', *decoder), *(head if scores else [])]


def _positions(model: Transformer, ids: Any, mask: Any, positions: Any) -> Any:
  """Tokens are counted that are not padding, by their ids, not by the mask.

  Theirs are rows of the table, of which padding has its own; ours begin with
  the row of the first token.
  """
  del mask
  offset = choice(model, 'position').kwargs['offset']
  if positions is not None:
    return positions - offset
  real = ids != offset - 1
  return jnp.where(real, jnp.cumsum(real, axis=-1), 0) - 1


ROBERTA = Family(
  model_type='roberta',
  architectures=classes(
    'Roberta', {n: k for n, k in _CLASSES.items() if k != 'pretraining'}
  ),
  prefix='roberta.',
  entries=encoder(_GELU, Entry(_read_rows, _write_rows)),
  tensors=_roberta_tensors,
  buffers=(r'roberta\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  positions=_positions,
  # Its class has a pooler of its own.
  heads={
    'pooled_classification/pooler': 'classifier.dense',
    'pooled_classification/classifier': 'classifier.out_proj',
  },
)


# ALBERT: BERT with narrower embeddings, and layers that share parameters.
#
# Layer i uses group i * groups // layers, and runs the inner layers of that
# group in turn; ours are the inner layers.


def _read_groups(options: Options) -> dict[str, Any]:
  num_layers = options.size('num_hidden_layers')
  groups = options.size('num_hidden_groups', 1)
  inner = options.size('inner_group_num', 1)
  if num_layers % groups:
    raise options.fail(
      'num_hidden_groups', f'does not divide num_hidden_layers={num_layers}'
    )
  return {
    'num_layers': num_layers * inner,
    'share': f'all(groups={groups}, inner={inner})',
  }


def _write_groups(model: Transformer) -> dict[str, Any]:
  shared = choice(model, 'share').kwargs
  inner = shared.get('inner', 1)
  return {
    'num_hidden_layers': model.num_layers // inner,
    'num_hidden_groups': shared.get('groups', 1),
    'inner_group_num': inner,
  }


_NARROW = call(
  *('input', 'tokens'),
  token_types=('type_vocab_size', 2),
  norm=True,
  d_embed=('embedding_size', 128),
)


def _albert_tensors(model: Transformer) -> list[Tensor]:
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
  architectures=classes('Albert', _CLASSES),
  prefix='albert.',
  entries=encoder(_SCORES, _NARROW, Entry(_read_groups, _write_groups)),
  tensors=_albert_tensors,
  buffers=(r'albert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={'pooler': 'albert.pooler', 'pair': 'sop_classifier.classifier'},
  pair=('sentence_order_label', 'sop_logits'),
  files={'tokenizer.model': 'spiece.model'},
)


# ELECTRA: BERT with embeddings of another width, and no pooler.
#
# Its two classes of pre-training are the generator, a masked language model,
# and the discriminator. The projection of the embeddings is there only where
# their width is not that of the layers.


def _read_width(options: Options) -> dict[str, Any]:
  types = options.size('type_vocab_size', 2)
  d_embed = options.size('embedding_size', 128)
  own = f', d_embed={d_embed}' * (d_embed != options.size('hidden_size'))
  return {'input': f'tokens(token_types={types}, norm=True{own})'}


def _write_width(model: Transformer) -> dict[str, Any]:
  d_embed = choice(model, 'input').kwargs.get('d_embed', 0)
  return {'embedding_size': d_embed or model.d_model}


def _electra_tensors(model: Transformer) -> list[Tensor]:
  scores = choice(model, 'output').kwargs['bias']
  decoder = ('generator_lm_head.weight',) if scores else ()
  projected = choice(model, 'input').kwargs['d_embed'] > 0
  head = [
    *linear('output_dense', 'generator_predictions.dense'),
    *norm('output_norm', 'generator_predictions.LayerNorm'),
    same('head_bias', 'generator_lm_head.bias'),
  ]
  return [
    *encoder_tensors('electra', *decoder),
    *(linear('embed_projection', 'electra.embeddings_project') * projected),
    *(head if scores else []),
  ]


ELECTRA = Family(
  model_type='electra',
  architectures={
    'ElectraForMaskedLM': 'lm',
    'ElectraForPreTraining': 'replaced',
    'ElectraForSequenceClassification': 'gelu_classification',
    'ElectraForQuestionAnswering': 'spans',
    'ElectraForTokenClassification': 'tokens',
    'ElectraModel': 'body',
  },
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


# DistilBERT: BERT without token types and pooler, under names of its own.


def _distilbert_tensors(model: Transformer) -> list[Tensor]:
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
    # Where it is true the table is in the file all the same.
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


# BigBird: BERT with block-sparse attention, and a pooler of another name.
#
# transformers draws random blocks in training only: in evaluation the first
# block stands for each of them, which is `draw='first'` here. A model that was
# trained here has drawn ones always; its config.json says so by
# `random_blocks_seed`, which transformers keeps and does not read.


_SEED = 'random_blocks_seed'


_SCALES = {True: 'sqrt', False: 'none'}


def _read_bias(options: Options) -> dict[str, Any]:
  """That of queries, keys and values; and the scale of the embeddings."""
  biased = options.flag('use_bias', True)
  scale = _SCALES[options.flag('rescale_embeddings', False)]
  types = options.size('type_vocab_size', 2)
  return {
    'bias': 'all' if biased else 'where(out=True, ffn=True)',
    'input': f'tokens(scale={scale!r}, token_types={types}, norm=True)',
  }


def _write_bias(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'input').kwargs.get('scale')
  return {
    'use_bias': build(model, 'bias').qkv,
    'rescale_embeddings': scale == 'sqrt',
  }


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
  # `save` refuses what fields of it are not: other windows, extra tokens.
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


def _big_bird_tensors(model: Transformer) -> list[Tensor]:
  scored = choice(model, 'output').kwargs['bias']
  decoder = ('cls.predictions.decoder.weight',) if scored else ()
  return [
    *encoder_tensors('bert', *decoder, biased=build(model, 'bias').qkv),
    *(scores() if scored else []),
  ]


BIG_BIRD = Family(
  model_type='big_bird',
  architectures={
    'BigBirdForMaskedLM': 'lm',
    'BigBirdForPreTraining': 'pretraining',
    'BigBirdForSequenceClassification': 'dense_classification',
    'BigBirdForTokenClassification': 'pooled_tokens',
    'BigBirdForMultipleChoice': 'pooled_choice',
    'BigBirdModel': 'pooled',
  },
  prefix='bert.',
  entries=encoder(
    scores_with('hidden_act', 'gelu_new'),
    Entry(_read_bias, _write_bias),
    Entry(_read_attention, _write_attention),
    context_length=4096,
    activation='gelu_new',
  ),
  tensors=_big_bird_tensors,
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  heads={
    'pooler': 'bert.pooler',
    'dense': 'classifier.dense',
    'dense_classification/classifier': 'classifier.out_proj',
  },
)
