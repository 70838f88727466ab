# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""OLMo 2: LLaMA whose norms stand after the sublayers, and on queries, keys."""

from typing import Any

from gpt_jax.hf.base import Family, Options, Tensor, linear, norm
from gpt_jax.hf.llama import (
  BIASES,
  BUFFERS,
  LAYER,
  biases,
  shared_fields,
  shared_options,
)
from gpt_jax.hf.parts import gated, qk_norms, qkv, tables
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  return shared_fields(options) | {
    'context_length': options.size('max_position_embeddings', 2048),
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-5)})',
    'block': "reordered(qk_norm='all_heads')",
    'bias': BIASES[attention, False],
  }


def _options(model: Transformer) -> dict[str, Any]:
  attention, _ = biases(model)
  return {**shared_options(model), 'attention_bias': attention}


def _tensors(model: Transformer) -> list[Tensor]:
  attention, _ = biases(model)
  h = LAYER
  after = ('attention', 'feedforward')
  norms = [f'{h}.post_{name}_layernorm' for name in after]
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *qkv('layer/attention', f'{h}.self_attn', bias=attention),
    *qk_norms(),
    *linear('layer/attention/out', f'{h}.self_attn.o_proj', attention),
    *norm('layer/attention_output_norm', norms[0], bias=False),
    *gated(bias=False),
    *norm('layer/ffn_output_norm', norms[1], bias=False),
    *norm('final_norm', 'model.norm', bias=False),
  ]


OLMO2 = Family(
  model_type='olmo2',
  architectures={
    'Olmo2ForCausalLM': 'lm',
    'Olmo2ForSequenceClassification': 'classification',
    'Olmo2Model': 'body',
  },
  prefix='model.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=BUFFERS,
)
