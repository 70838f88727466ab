# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT: an encoder, with the head that it was trained with or another."""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  body_sizes,
  choice,
  linear,
  same,
)
from gpt_jax.hf.parts import qkv, rates
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  fields = encoder_fields(options, epsilon=1e-12)
  return {
    **fields,
    'position': 'learned',
    'output': f'tied(bias=True, transform={fields["ffn"]!r})',
  }


def encoder_fields(options: Options, *, epsilon: float) -> dict[str, Any]:
  """What BERT's descendants call by the same names.

  Args:
    options: of config.json.
    epsilon: of the norms, where it does not say.
  """
  options.only('is_decoder', False)
  options.only('position_embedding_type', 'absolute')
  options.only('tie_word_embeddings', True)
  residual = options.number('hidden_dropout_prob', 0.1)
  attention = options.number('attention_probs_dropout_prob', 0.1)
  token_types = options.size('type_vocab_size', 2)
  epsilon = options.number('layer_norm_eps', epsilon)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings', 512),
    'num_layers': options.size('num_hidden_layers'),
    'd_model': options.size('hidden_size'),
    'num_heads': options.size('num_attention_heads'),
    'd_ff': options.size('intermediate_size'),
    'input': f'tokens(token_types={token_types}, norm=True)',
    'attention': 'bidirectional',
    'ffn': options.choice('hidden_act', ACTIVATIONS, 'gelu'),
    'norm': f'layernorm(epsilon={epsilon})',
    'block': 'post',
    'dropout': rates(
      embedding=residual, residual=residual, attention=attention
    ),
  }


def encoder_options(model: Transformer) -> dict[str, Any]:
  """The way back from `encoder_fields`."""
  dropout = choice(model, 'dropout').kwargs
  return {
    **body_sizes(model),
    'intermediate_size': model.d_ff,
    'type_vocab_size': choice(model, 'input').kwargs.get('token_types', 0),
    'hidden_act': activation(model),
    'layer_norm_eps': choice(model, 'norm').kwargs['epsilon'],
    'hidden_dropout_prob': dropout.get('residual', 0.0),
    'attention_probs_dropout_prob': dropout.get('attention', 0.0),
    'tie_word_embeddings': True,
  }


def _norm(path: str, name: str) -> list[Tensor]:
  """LayerNorm, which Google's own files call gamma and beta."""
  return [
    same(f'{path}/scale', f'{name}.weight', f'{name}.gamma'),
    same(f'{path}/bias', f'{name}.bias', f'{name}.beta'),
  ]


def _tensors(model: Transformer) -> list[Tensor]:
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
  architectures={
    'BertForMaskedLM': 'lm',
    'BertForPreTraining': 'pretraining',
    'BertForSequenceClassification': 'pooled_classification',
    'BertForQuestionAnswering': 'spans',
    'BertForTokenClassification': 'tokens',
    'BertForMultipleChoice': 'pooled_choice',
    'BertModel': 'pooled',
  },
  prefix='bert.',
  fields=_fields,
  options=encoder_options,
  tensors=_tensors,
  buffers=(r'bert\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
)
