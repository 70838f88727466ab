# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-NeoX and Pythia."""

from typing import Any

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
from gpt_jax.hf.parts import rates, tables
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError


def _fields(options: Options) -> dict[str, Any]:
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  parallel = options.flag('use_parallel_residual', True)
  tied = options.flag('tie_word_embeddings', False)
  bias = options.flag('attention_bias', True)
  hidden = options.number('hidden_dropout', 0.0)
  attention = options.number('attention_dropout', 0.0)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings'),
    'num_layers': options.size('num_hidden_layers'),
    'd_model': d_model,
    'num_heads': num_heads,
    'd_ff': options.size('intermediate_size', 4 * d_model),
    'position': _position(options, d_model, num_heads),
    'ffn': options.choice('hidden_act', ACTIVATIONS, 'gelu'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_eps", 1e-5)})',
    'block': 'parallel(num_norms=2)' if parallel else 'pre',
    'bias': 'all' if bias else 'where(ffn=True)',
    'output': 'tied' if tied else 'untied',
    'dropout': rates(embedding=hidden, residual=hidden, attention=attention),
  }


def _position(options: Options, d_model: int, num_heads: int) -> str:
  """All spellings; where several are given, the newest counts."""
  theta = options.number(
    'rotary_emb_base', options.number('rope_theta', rope.THETA)
  )
  name = 'partial_rotary_factor'
  fraction = options.number('rotary_pct', options.number(name, 0.25))
  values = rope.values(options)
  fraction = values.number(name, fraction)
  head_size = d_model // num_heads
  turned = int(head_size * fraction)
  if not 0 < fraction <= 1 or turned % 2 or not turned:
    raise UsageError(
      f'config.json: {name}={fraction} (or rotary_pct) turns {turned} of '
      f'{head_size} features of a head: must be an even number from 2'
    )
  return rope.read(options, theta, fraction)


def _options(model: Transformer) -> dict[str, Any]:
  given = choice(model, 'dropout').kwargs
  return {
    **body_sizes(model),
    'intermediate_size': model.d_ff,
    **rope.write(model, partial=True),
    'hidden_act': activation(model),
    'layer_norm_eps': choice(model, 'norm').kwargs['epsilon'],
    'use_parallel_residual': choice(model, 'block').name == 'parallel',
    'attention_bias': _has_attention_bias(model),
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'hidden_dropout': given.get('residual', 0.0),
    'attention_dropout': given.get('attention', 0.0),
  }


def _has_attention_bias(model: Transformer) -> bool:
  bias = choice(model, 'bias')
  return bias.name == 'all' or bias.kwargs.get('qkv', False)


def _tensors(model: Transformer) -> list[Tensor]:
  bias = _has_attention_bias(model)
  # The first is how HF writes it; its module is called by the second.
  heads = ('embed_out.weight', 'lm_head.weight')
  h, ours = 'gpt_neox.layers.{layer}', 'layer'
  return [
    *tables(model, 'gpt_neox.embed_in.weight', *heads),
    *norm(f'{ours}/attention_norm', f'{h}.input_layernorm'),
    *fused_qkv(
      f'{ours}/attention',
      f'{h}.attention.query_key_value',
      groups=model.num_heads,
      heads=(1, 1, 1),
      head_size=model.head_size,
      bias=bias,
    ),
    *linear(f'{ours}/attention/out', f'{h}.attention.dense', bias=bias),
    *norm(f'{ours}/ffn_norm', f'{h}.post_attention_layernorm'),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.dense_h_to_4h'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.dense_4h_to_h'),
    *norm('final_norm', 'gpt_neox.final_layer_norm'),
  ]


GPT_NEOX = Family(
  model_type='gpt_neox',
  architectures={
    'GPTNeoXForCausalLM': 'lm',
    'GPTNeoXForSequenceClassification': 'classification',
    'GPTNeoXModel': 'body',
  },
  prefix='gpt_neox.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(
    r'gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)',
    r'gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq',
    r'gpt_neox\.rotary_emb\.inv_freq',
  ),
)
