# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""mBART: BART with norms before the sublayers, and after both stacks."""

from typing import Any

from gpt_jax.hf import bart
from gpt_jax.hf.base import Family, Options, Tensor, norm
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, True)
  return {
    **bart.shared_fields(options, norm=True),
    **bart.learned_positions(options),
    'block': 'pre',
  }


def _options(model: Transformer) -> dict[str, Any]:
  return bart.shared_options(model) | {
    'bos_token_id': 0,
    'pad_token_id': 1,
    'eos_token_id': 2,
    'decoder_start_token_id': 2,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  del model
  return [
    *bart.shared_tensors(),
    *bart.input_tensors(),
    *norm('encoder_norm', 'model.encoder.layer_norm'),
    *norm('final_norm', 'model.decoder.layer_norm'),
  ]


MBART = Family(
  model_type='mbart',
  architectures={
    'MBartForConditionalGeneration': 'lm',
    'MBartForSequenceClassification': 'eos_classification',
    'MBartModel': 'body',
  },
  prefix='model.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  output_bias=bart.LOGITS_BIAS,
  scoring_body=True,
  rolled=True,
)
