# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-2."""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  conv1d,
  fused_qkv,
  norm,
  same,
)
from gpt_jax.hf.parts import rates, tables
from gpt_jax.nn.transformer import Transformer

_SCALES = {
  # (scale_attn_weights, scale_attn_by_inverse_layer_idx)
  (True, False): 'rsqrt',
  (False, False): 'none',
  (True, True): 'by_layer',
  (False, True): 'by_layer(per_head=False)',
}


def _fields(options: Options) -> dict[str, Any]:
  d_model, num_heads = options.size('n_embd'), options.size('n_head')
  scale = (
    options.flag('scale_attn_weights', True),
    options.flag('scale_attn_by_inverse_layer_idx', False),
  )
  tied = options.flag('tie_word_embeddings', True)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('n_positions'),
    'num_layers': options.size('n_layer'),
    'd_model': d_model,
    'num_heads': num_heads,
    'd_ff': options.size('n_inner', 4 * d_model),
    'position': 'learned',
    'attention_scale': _SCALES[scale],
    'ffn': options.choice('activation_function', ACTIVATIONS, 'gelu_new'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_epsilon", 1e-5)})',
    'block': 'pre',
    'output': 'tied' if tied else 'untied',
    'dropout': dropout(options),
  }


def dropout(options: Options) -> str:
  """HF's three rates."""
  embedding = options.number('embd_pdrop', 0.1)
  residual = options.number('resid_pdrop', 0.1)
  attention = options.number('attn_pdrop', 0.1)
  return rates(embedding=embedding, residual=residual, attention=attention)


def _options(model: Transformer) -> dict[str, Any]:
  scale = choice(model, 'attention_scale')
  return {
    **sizes(model),
    'activation_function': activation(model),
    'scale_attn_weights': scale.name == 'rsqrt'
    or scale.kwargs.get('per_head', False),
    'scale_attn_by_inverse_layer_idx': scale.name == 'by_layer',
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
  }


def sizes(model: Transformer) -> dict[str, Any]:
  """The options that GPT-1, GPT-2 and GPT-J share."""
  given = choice(model, 'dropout').kwargs
  return {
    'vocab_size': model.vocab_size,
    'n_positions': model.context_length,
    'n_layer': model.num_layers,
    'n_embd': model.d_model,
    'n_head': model.num_heads,
    'n_inner': None if model.d_ff == 4 * model.d_model else model.d_ff,
    'layer_norm_epsilon': choice(model, 'norm').kwargs['epsilon'],
    'embd_pdrop': given.get('embedding', 0.0),
    'resid_pdrop': given.get('residual', 0.0),
    'attn_pdrop': given.get('attention', 0.0),
  }


def block_tensors(model: Transformer) -> list[Tensor]:
  """One block of GPT-1 or GPT-2."""
  h, ours = 'transformer.h.{layer}', 'layer'
  heads = model.num_heads
  return [
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.attn.c_attn',
      groups=1,
      heads=(heads, heads, heads),
      head_size=model.head_size,
      bias=True,
      layout='conv1d',
    ),
    *conv1d(f'{ours}/attention/out', f'{h}.attn.c_proj'),
    *norm(f'{ours}/ffn_norm', f'{h}.ln_2'),
    *conv1d(f'{ours}/ffn/in', f'{h}.mlp.c_fc'),
    *conv1d(f'{ours}/ffn/out', f'{h}.mlp.c_proj'),
  ]


def _tensors(model: Transformer) -> list[Tensor]:
  return [
    *tables(model, 'transformer.wte.weight', 'lm_head.weight'),
    same('positions/embedding', 'transformer.wpe.weight'),
    *block_tensors(model),
    *norm('final_norm', 'transformer.ln_f'),
  ]


GPT2 = Family(
  model_type='gpt2',
  architectures={
    'GPT2LMHeadModel': 'lm',
    'GPT2DoubleHeadsModel': 'double',
    'GPT2ForSequenceClassification': 'classification',
    'GPT2Model': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'transformer\.h\.\d+\.attn\.(bias|masked_bias)',),
  token_types=True,
)
