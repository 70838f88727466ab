# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-J: rotary positions, and one norm for both sublayers in parallel."""

import math
from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  linear,
  norm,
  same,
)
from gpt_jax.hf.gpt2 import dropout, sizes
from gpt_jax.hf.parts import qkv
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  d_model, num_heads = options.size('n_embd'), options.size('n_head')
  # HF builds the output's bias whether it is tied or not; no such model is
  # known, and the two could not be told apart by their tensors.
  options.only('tie_word_embeddings', False)
  # It must be given: null means something else in HF than its default.
  turned, head_size = options.size('rotary_dim'), d_model // num_heads
  if turned > head_size or turned % 2:
    raise options.fail(
      'rotary_dim', f'must be even, and at most {head_size} features of a head'
    )
  fraction = turned / head_size
  if int(head_size * fraction) < turned:
    fraction = math.nextafter(fraction, 1)  # 30 / 44 * 44 < 30
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('n_positions'),
    'num_layers': options.size('n_layer'),
    'd_model': d_model,
    'num_heads': num_heads,
    'd_ff': options.size('n_inner', 4 * d_model),
    'position': f"rope(fraction={fraction}, layout='interleaved')",
    'ffn': options.choice('activation_function', ACTIVATIONS, 'gelu_new'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_epsilon", 1e-5)})',
    'block': 'parallel',
    'bias': 'where(ffn=True)',
    'output': 'untied(bias=True)',
    'dropout': dropout(options),
  }


def _options(model: Transformer) -> dict[str, Any]:
  fraction = choice(model, 'position').kwargs.get('fraction', 1.0)
  return {
    **sizes(model),
    'rotary_dim': int(model.head_size * fraction),
    'activation_function': activation(model),
    'tie_word_embeddings': False,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.h.{layer}', 'layer'
  head = choice(model, 'output').name == 'untied'
  return [
    same('embed/embedding', 'transformer.wte.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *qkv(f'{ours}/attention', f'{h}.attn', bias=False),
    *linear(f'{ours}/attention/out', f'{h}.attn.out_proj', bias=False),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.fc_in'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.fc_out'),
    *norm('final_norm', 'transformer.ln_f'),
    *[same('head/embedding', 'lm_head.weight')] * head,
    *[same('head_bias', 'lm_head.bias')] * head,
  ]


GPTJ = Family(
  model_type='gptj',
  architectures={
    'GPTJForCausalLM': 'lm',
    'GPTJForSequenceClassification': 'classification',
    'GPTJModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(
    r'transformer\.h\.\d+\.attn\.(bias|masked_bias|embed_positions)',
    r'transformer\.h\.\d+\.attn\.rotary_emb\.inv_freq',
  ),
  token_types=True,
)
