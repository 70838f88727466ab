# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""ELECTRA: BERT with embeddings of another width, and no pooler.

Its two classes of pre-training are the generator, a masked language model, and
the discriminator. The projection of the embeddings is there only where their
width is not that of the layers.
"""

from typing import Any

from gpt_jax.hf.base import Family, Options, Tensor, choice, linear, norm, same
from gpt_jax.hf.bert import (
  encoder_fields,
  encoder_options,
  encoder_tensors,
)
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  fields = encoder_fields(options, epsilon=1e-12)
  types = options.size('type_vocab_size', 2)
  d_embed = options.size('embedding_size', 128)
  own = f', d_embed={d_embed}' * (d_embed != fields['d_model'])
  return {
    **fields,
    'input': f'tokens(token_types={types}, norm=True{own})',
    'position': 'learned',
    # Whatever `hidden_act` is.
    'output': "tied(bias=True, transform='gelu')",
  }


def _options(model: Transformer) -> dict[str, Any]:
  d_embed = choice(model, 'input').kwargs.get('d_embed', 0)
  return {**encoder_options(model), 'embedding_size': d_embed or model.d_model}


def _tensors(model: Transformer) -> list[Tensor]:
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
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'electra\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  pooler='gelu',
  heads={
    'pooler': 'classifier.dense',
    'classifier': 'classifier.out_proj',
    'tokens/classifier': 'classifier',
  },
)
