# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Marian: the Transformer of 2017, with all sines before all cosines."""

from typing import Any

from gpt_jax.hf import bart
from gpt_jax.hf.base import Family, Options, Tensor
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  vocab_size = options.size('vocab_size')
  for name in ('normalize_before', 'add_final_layer_norm'):
    options.only(name, False)
  options.only('normalize_embedding', False)
  options.only('static_position_embeddings', True)
  options.only('share_encoder_decoder_embeddings', True)
  options.only('decoder_vocab_size', vocab_size)
  return {
    **bart.shared_fields(options, norm=False),
    'position': "sinusoidal(layout='halves')",
    'block': 'post',
  }


def _options(model: Transformer) -> dict[str, Any]:
  return bart.shared_options(model) | {
    'decoder_vocab_size': model.vocab_size,
    'share_encoder_decoder_embeddings': True,
    'pad_token_id': 0,
    'eos_token_id': 1,
    'decoder_start_token_id': 0,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  del model
  return bart.shared_tensors()


MARIAN = Family(
  model_type='marian',
  architectures={'MarianMTModel': 'lm', 'MarianModel': 'body'},
  prefix='model.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  # The sines, which transformers computes itself; older files have them.
  buffers=(r'model\.(encoder|decoder)\.embed_positions\.weight',),
  output_bias=bart.LOGITS_BIAS,
  scoring_body=True,
)
