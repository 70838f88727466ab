# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1: GPT-2's tensors, with norms after the sublayers."""

from typing import Any

from gpt_jax.hf.base import Family, Options, Tensor, choice, same
from gpt_jax.hf.gpt2 import block_tensors, dropout, sizes
from gpt_jax.nn.transformer import Transformer

# Here, and only here, HF's `gelu` is the tanh form.
_ACTIVATIONS = {'gelu': 'gelu_tanh', 'relu': 'relu', 'silu': 'silu'}
_SWISH = {'swish': 'silu'}


def _fields(options: Options) -> dict[str, Any]:
  d_model = options.size('n_embd')
  options.only('tie_word_embeddings', True)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('n_positions'),
    'num_layers': options.size('n_layer'),
    'd_model': d_model,
    'num_heads': options.size('n_head'),
    'd_ff': 4 * d_model,
    'position': 'learned',
    'ffn': options.choice('afn', _ACTIVATIONS | _SWISH, 'gelu'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_epsilon", 1e-5)})',
    'block': 'post',
    'dropout': dropout(options),
  }


def _options(model: Transformer) -> dict[str, Any]:
  options = sizes(model)
  del options['n_inner']  # it is always 4 * n_embd
  names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  ffn = choice(model, 'ffn').name
  return {**options, 'afn': names.get(ffn, ffn), 'tie_word_embeddings': True}


def _tensors(model: Transformer) -> list[Tensor]:
  return [
    same(
      'embed/embedding', 'transformer.tokens_embed.weight', 'lm_head.weight'
    ),
    same('positions/embedding', 'transformer.positions_embed.weight'),
    *block_tensors(model),
  ]


OPENAI_GPT = Family(
  model_type='openai-gpt',
  architectures={
    'OpenAIGPTLMHeadModel': 'lm',
    'OpenAIGPTDoubleHeadsModel': 'double',
    'OpenAIGPTForSequenceClassification': 'classification',
    'OpenAIGPTModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(
    r'transformer\.h\.\d+\.attn\.bias',
    r'transformer\.position_ids',
  ),
  token_types=True,
)
