# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-Neo: GPT-2 with local layers and scores that are not scaled."""

from typing import Any

from gpt_jax.hf.base import (
  ACTIVATIONS,
  Family,
  Options,
  Tensor,
  activation,
  choice,
  layers,
  linear,
  norm,
  same,
  shortest_period,
)
from gpt_jax.hf.parts import qkv, rates, tables
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  d_model, num_layers = options.size('hidden_size'), options.size('num_layers')
  tied = options.flag('tie_word_embeddings', True)
  residual = options.number('resid_dropout', 0.0)
  embedding = options.number('embed_dropout', 0.0)
  attention = options.number('attention_dropout', 0.0)
  return {
    'vocab_size': options.size('vocab_size'),
    'context_length': options.size('max_position_embeddings'),
    'num_layers': num_layers,
    'd_model': d_model,
    'num_heads': options.size('num_heads'),
    'd_ff': options.size('intermediate_size', 4 * d_model),
    'position': 'learned',
    'attention': _attention(options, num_layers),
    'attention_scale': 'none',
    'ffn': options.choice('activation_function', ACTIVATIONS, 'gelu_new'),
    'norm': f'layernorm(epsilon={options.number("layer_norm_epsilon", 1e-5)})',
    'block': 'pre',
    'bias': 'where(out=True, ffn=True)',
    'output': 'tied' if tied else 'untied',
    'dropout': rates(
      embedding=embedding, residual=residual, attention=attention
    ),
  }


def _attention(options: Options, num_layers: int) -> str:
  """`attention_types` is a list of [names of a period, how often]."""
  types = options.get('attention_types', [[['global', 'local'], 12]])
  try:
    names = [name for period, count in types for name in period * count]
  except (TypeError, ValueError) as e:
    raise options.fail('attention_types', 'is not [[names, count], ...]') from e
  if len(names) != num_layers:
    raise options.fail(
      'attention_types', f'gives {len(names)} layers, num_layers={num_layers}'
    )
  window = options.size('window_size', 256)
  patterns = {'global': 'full', 'local': f'local(window={window})'}
  if not {*names} <= {*patterns}:
    raise options.fail('attention_types', 'has names but global and local')
  return shortest_period([patterns[name] for name in names])


def _options(model: Transformer) -> dict[str, Any]:
  given = choice(model, 'dropout').kwargs
  patterns = layers(model)
  names = ['local' if p.name == 'local' else 'global' for p in patterns]
  windows = [p.kwargs['window'] for p in patterns if p.name == 'local']
  return {
    'vocab_size': model.vocab_size,
    'max_position_embeddings': model.context_length,
    'num_layers': model.num_layers,
    'hidden_size': model.d_model,
    'num_heads': model.num_heads,
    'intermediate_size': model.d_ff,
    'attention_types': [[names, 1]],
    'attention_layers': names,
    'window_size': windows[0] if windows else 256,
    'activation_function': activation(model),
    'layer_norm_epsilon': choice(model, 'norm').kwargs['epsilon'],
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'resid_dropout': given.get('residual', 0.0),
    'embed_dropout': given.get('embedding', 0.0),
    'attention_dropout': given.get('attention', 0.0),
  }


def _tensors(model: Transformer) -> list[Tensor]:
  h, ours = 'transformer.h.{layer}', 'layer'
  attention = f'{h}.attn.attention'
  return [
    *tables(model, 'transformer.wte.weight', 'lm_head.weight'),
    same('positions/embedding', 'transformer.wpe.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.ln_1'),
    *qkv(f'{ours}/attention', attention, bias=False),
    *linear(f'{ours}/attention/out', f'{attention}.out_proj'),
    *norm(f'{ours}/ffn_norm', f'{h}.ln_2'),
    *linear(f'{ours}/ffn/in', f'{h}.mlp.c_fc'),
    *linear(f'{ours}/ffn/out', f'{h}.mlp.c_proj'),
    *norm('final_norm', 'transformer.ln_f'),
  ]


GPT_NEO = Family(
  model_type='gpt_neo',
  architectures={
    'GPTNeoForCausalLM': 'lm',
    'GPTNeoForSequenceClassification': 'classification',
    'GPTNeoModel': 'body',
  },
  prefix='transformer.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=(r'transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)',),
  token_types=True,
)
