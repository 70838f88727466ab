# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""RoBERTa: BERT with another count of positions, and heads of its own."""

from typing import Any

import jax.numpy as jnp

from gpt_jax.hf.base import Family, Options, Tensor, choice, linear, norm
from gpt_jax.hf.bert import (
  encoder_fields,
  encoder_options,
  encoder_tensors,
  output_bias,
)
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  # Rows up to that of padding are no token's.
  offset = _pad(options) + 1
  rows = options.size('max_position_embeddings', 512)
  if rows <= offset:
    raise options.fail(
      'max_position_embeddings', f'has no rows from {offset} on, for tokens'
    )
  return {
    **encoder_fields(options, epsilon=1e-12),
    'context_length': rows - offset,
    'position': f'learned(offset={offset})',
    # Whatever `hidden_act` is.
    'output': "tied(bias=True, transform='gelu')",
  }


def _pad(options: Options) -> int:
  pad = options.get('pad_token_id', 1)
  if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
    raise options.fail('pad_token_id', 'must be a whole number from 0')
  return pad


def _options(model: Transformer) -> dict[str, Any]:
  # Where there is no such offset, fields come back other than they were.
  offset = max(choice(model, 'position').kwargs.get('offset', 0), 1)
  return {
    **encoder_options(model),
    'max_position_embeddings': model.context_length + offset,
    'pad_token_id': offset - 1,
  }


def _tensors(model: Transformer) -> list[Tensor]:
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
  architectures={
    'RobertaForMaskedLM': 'lm',
    'RobertaForSequenceClassification': 'pooled_classification',
    'RobertaForQuestionAnswering': 'spans',
    'RobertaForTokenClassification': 'tokens',
    'RobertaForMultipleChoice': 'pooled_choice',
    'RobertaModel': 'pooled',
  },
  prefix='roberta.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'roberta\.embeddings\.(position_ids|token_type_ids)',),
  token_types=True,
  positions=_positions,
  # Its class has a pooler of its own.
  heads={
    'pooled_classification/pooler': 'classifier.dense',
    'pooled_classification/classifier': 'classifier.out_proj',
  },
)
