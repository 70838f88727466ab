# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Falcon: 7B (multi-query), 40B (grouped), and RW (ALiBi, sequential)."""

from typing import Any

import jax.numpy as jnp

from gpt_jax.hf import rope
from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  body_sizes,
  choice,
  fused_qkv,
  linear,
  norm,
)
from gpt_jax.hf.parts import tables
from gpt_jax.nn.transformer import Transformer

_ALIBI = "alibi(scale='rsqrt', dtype='bfloat16')"


def _fields(options: Options) -> dict[str, Any]:
  options.only('apply_residual_connection_post_layernorm', False)
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  if d_model % num_heads or d_model // num_heads % 2:
    raise options.fail(
      'num_attention_heads', f'must divide hidden_size={d_model} evenly in 2s'
    )
  alibi = options.flag('alibi', False)
  tied = options.flag('tie_word_embeddings', True)
  bias = options.flag('bias', False)
  hidden = options.number('hidden_dropout', 0.0)
  attention = options.number('attention_dropout', 0.0)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings', 2048),
    'num_layers': options.size('num_hidden_layers'),
    'd_model': d_model,
    'num_heads': num_heads,
    'num_kv_heads': _num_kv_heads(options, num_heads),
    'd_ff': options.size('ffn_hidden_size', 4 * d_model),
    'position': _ALIBI if alibi else rope.read(options),
    'ffn': options.choice('activation', ACTIVATIONS, 'gelu'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_epsilon", 1e-5)})',
    'block': _block(options),
    'bias': 'all' if bias else 'none',
    'output': 'tied' if tied else 'untied',
    'dropout': f'rates(residual={hidden}, attention={attention})',
  }


def _num_kv_heads(options: Options, num_heads: int) -> int:
  groups = options.size('num_kv_heads', num_heads)
  if options.flag('new_decoder_architecture', False):
    if num_heads % groups:
      raise options.fail(
        'num_kv_heads', f'must divide num_attention_heads={num_heads}'
      )
    return groups
  if options.flag('multi_query', True):
    return 1
  if groups != num_heads:
    raise options.fail(
      'num_kv_heads',
      f'with neither multi_query nor new_decoder_architecture must be '
      f'{num_heads}, as num_attention_heads is',
    )
  return groups


def _block(options: Options) -> str:
  new = options.flag('new_decoder_architecture', False)
  norms = options.get('num_ln_in_parallel_attn', 2 if new else 1)
  if not options.flag('parallel_attn', True):
    if new:
      raise options.fail(
        'parallel_attn', 'is not supported with new_decoder_architecture'
      )
    return 'pre'
  # The other combinations fail in HF.
  if norms not in (1, 2) if new else norms == 2:
    raise options.fail(
      'num_ln_in_parallel_attn',
      f'is not supported with new_decoder_architecture={new}',
    )
  return f'parallel(num_norms={norms if new else 1})'


def _positions(model: Transformer, ids: Any, mask: Any, positions: Any) -> Any:
  """ALiBi counts the tokens that are seen; rotary positions, all of them."""
  del ids
  alibi = choice(model, 'position').name == 'alibi'
  if positions is not None or mask is None or not alibi:
    return positions
  return jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)


def _options(model: Transformer) -> dict[str, Any]:
  block = choice(model, 'block')
  norms = block.kwargs.get('num_norms')
  new = norms == 2 or model.num_kv_heads not in (1, model.num_heads)
  rates = choice(model, 'dropout').kwargs
  return {
    **body_sizes(model),
    'num_kv_heads': model.num_kv_heads,
    'ffn_hidden_size': model.d_ff,
    'new_decoder_architecture': new,
    'multi_query': model.num_kv_heads < model.num_heads,
    'parallel_attn': block.name == 'parallel',
    'num_ln_in_parallel_attn': norms if new else None,
    'alibi': choice(model, 'position').name == 'alibi',
    **rope.write(model),
    'activation': activation(model),
    'layer_norm_epsilon': choice(model, 'norm').kwargs['epsilon'],
    'bias': choice(model, 'bias').name == 'all',
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'hidden_dropout': rates.get('residual', 0.0),
    'attention_dropout': rates.get('attention', 0.0),
  }


def _tensors(model: Transformer) -> list[Tensor]:
  bias = choice(model, 'bias').name == 'all'
  block = choice(model, 'block')
  norms = {'attention_norm': 'input_layernorm'}
  if block.name == 'pre':
    norms['ffn_norm'] = 'post_attention_layernorm'
  elif block.kwargs.get('num_norms') == 2:
    norms = {'attention_norm': 'ln_attn', 'ffn_norm': 'ln_mlp'}
  h, ours = 'transformer.h.{layer}', 'layer'
  return [
    *tables(model, 'transformer.word_embeddings.weight', 'lm_head.weight'),
    *[t for p, n in norms.items() for t in norm(f'{ours}/{p}', f'{h}.{n}')],
    # 7B has one group of all queries, RW one for each head.
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.self_attention.query_key_value',
      groups=model.num_kv_heads,
      heads=(model.num_heads // model.num_kv_heads, 1, 1),
      head_size=model.head_size,
      bias=bias,
    ),
    *linear(f'{ours}/attention/out', f'{h}.self_attention.dense', bias),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.dense_h_to_4h', bias),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.dense_4h_to_h', bias),
    *norm('final_norm', 'transformer.ln_f'),
  ]


FALCON = Family(
  model_type='falcon',
  architectures={
    'FalconForCausalLM': 'lm',
    'FalconForSequenceClassification': 'classification',
    'FalconModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(
    r'transformer\.rotary_emb\.inv_freq',
    r'transformer\.h\.\d+\.self_attention\.(maybe_rotary|rotary_emb)'
    r'\.inv_freq',
  ),
  positions=_positions,
)
