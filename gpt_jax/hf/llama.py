# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA 1 to 3, and Mistral: LLaMA that looks back over a window."""

from typing import Any

from gpt_jax.hf import rope
from gpt_jax.hf.base import (
  Family,
  Options,
  Tensor,
  body_sizes,
  choice,
  linear,
  norm,
)
from gpt_jax.hf.parts import LAYER as LAYER
from gpt_jax.hf.parts import gated, qkv, tables
from gpt_jax.nn.transformer import Transformer

# HF's names of activations -> our `model.ffn`, which multiplies by them.
GATED = {
  'silu': 'swiglu',
  'swish': 'swiglu',
  'gelu': 'geglu',
  'gelu_new': 'geglu_tanh',
  'gelu_fast': 'geglu_tanh',
  'gelu_pytorch_tanh': 'geglu_tanh',
  'relu': 'reglu',
  'sigmoid': 'glu',
  'linear': 'bilinear',
}

# (attention_bias, mlp_bias)
BIASES = {
  (False, False): 'none',
  (False, True): 'where(ffn=True)',
  (True, False): 'where(qkv=True, out=True)',
  (True, True): 'all',
}


def shared_fields(
  options: Options,
  default_kv_heads: int | None = None,
  *,
  default_head_size: int | None = None,
  default_tied: bool = False,
  position: str | None = None,
  activation: tuple[str, str] = ('hidden_act', 'silu'),
) -> dict[str, Any]:
  """What LLaMA and its descendants call by the same names.

  Args:
    options: of config.json.
    default_kv_heads: None: as many as of queries.
    default_head_size: None: hidden_size / num_attention_heads.
    default_tied: whether the output reads the token embeddings.
    position: `model.position`; None: LLaMA's.
    activation: what the option is called, and its default.
  """
  d_model = options.size('hidden_size')
  num_heads = options.size('num_attention_heads')
  by_width = d_model // num_heads
  head_size = options.size('head_dim', default_head_size or by_width)
  if head_size % 2:
    raise options.fail('head_dim', f'{head_size} features do not form pairs')
  tied = options.flag('tie_word_embeddings', default_tied)
  dropout = options.number('attention_dropout', 0.0)
  groups = options.size('num_key_value_heads', default_kv_heads or num_heads)
  if num_heads % groups:
    raise options.fail(
      'num_key_value_heads', f'must divide num_attention_heads={num_heads}'
    )
  return {
    'vocab_size': options.size('vocab_size'),
    'num_layers': options.size('num_hidden_layers'),
    'd_model': d_model,
    'num_heads': num_heads,
    'num_kv_heads': groups,
    'head_size': head_size,
    'd_ff': options.size('intermediate_size'),
    'position': position or rope.read(options),
    'ffn': options.choice(activation[0], GATED, activation[1]),
    'norm': f'rmsnorm(epsilon={options.number("rms_norm_eps", 1e-6)})',
    'block': 'pre',
    'output': 'tied' if tied else 'untied',
    'dropout': f'rates(attention={dropout})',
  }


def _llama_fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  ffn = options.flag('mlp_bias', False)
  return shared_fields(options) | {
    'context_length': options.size('max_position_embeddings', 2048),
    'bias': BIASES[attention, ffn],
  }


def _mistral_fields(options: Options) -> dict[str, Any]:
  window = options.get('sliding_window')
  if not options.has('sliding_window'):
    window = 4096
  elif window is not None:
    window = options.size('sliding_window')
  kinds = set(options.get('layer_types', []))
  if kinds - {'full_attention' if window is None else 'sliding_attention'}:
    raise options.fail(
      'layer_types', f'does not agree with sliding_window={window} in all'
    )
  kv_heads = None if options.has('num_key_value_heads') else 8
  return shared_fields(options, kv_heads) | {
    'context_length': options.size('max_position_embeddings', 131_072),
    'attention': 'full' if window is None else f'local(window={window})',
    'bias': 'none',
  }


def shared_options(model: Transformer) -> dict[str, Any]:
  """The way back from `shared_fields`."""
  ffn = choice(model, 'ffn').name
  names = {ours: theirs for theirs, ours in reversed(GATED.items())}
  return {
    **body_sizes(model),
    'num_key_value_heads': model.num_kv_heads,
    'head_dim': model.head_size,
    'intermediate_size': model.d_ff,
    **rope.write(model),
    'hidden_act': names.get(ffn, ffn),
    'rms_norm_eps': choice(model, 'norm').kwargs['epsilon'],
    'tie_word_embeddings': choice(model, 'output').name == 'tied',
    'attention_dropout': choice(model, 'dropout').kwargs.get('attention', 0.0),
  }


def _llama_options(model: Transformer) -> dict[str, Any]:
  attention, ffn = biases(model)
  return {
    **shared_options(model),
    'attention_bias': attention,
    'mlp_bias': ffn,
    'pretraining_tp': 1,
  }


def _mistral_options(model: Transformer) -> dict[str, Any]:
  window = choice(model, 'attention').kwargs.get('window')
  return {**shared_options(model), 'sliding_window': window}


def biases(model: Transformer) -> tuple[bool, bool]:
  """Whether attention has biases, and the feed-forward layer."""
  bias = choice(model, 'bias')
  everywhere = bias.name == 'all'
  return bias.kwargs.get('qkv', everywhere), bias.kwargs.get('ffn', everywhere)


def _tensors(model: Transformer) -> list[Tensor]:
  attention, ffn = biases(model)
  return [*shared_tensors(model, attention), *gated(bias=ffn)]


def shared_tensors(model: Transformer, bias: bool) -> list[Tensor]:
  """All but the feed-forward layers'; `bias` is attention's."""
  h, ours = LAYER, 'layer'
  return [
    *tables(model, 'model.embed_tokens.weight', 'lm_head.weight'),
    *norm(f'{ours}/attention_norm', f'{h}.input_layernorm', bias=False),
    *qkv(f'{ours}/attention', f'{h}.self_attn', bias=bias),
    *linear(f'{ours}/attention/out', f'{h}.self_attn.o_proj', bias),
    *norm(f'{ours}/ffn_norm', f'{h}.post_attention_layernorm', bias=False),
    *norm('final_norm', 'model.norm', bias=False),
  ]


BUFFERS = (r'model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq',)

LLAMA = Family(
  model_type='llama',
  architectures={
    'LlamaForCausalLM': 'lm',
    'LlamaForSequenceClassification': 'classification',
    'LlamaModel': 'body',
  },
  prefix='model.',
  fields=_llama_fields,
  options=_llama_options,
  tensors=_tensors,
  buffers=BUFFERS,
)

MISTRAL = Family(
  model_type='mistral',
  architectures={
    'MistralForCausalLM': 'lm',
    'MistralForSequenceClassification': 'classification',
    'MistralModel': 'body',
  },
  prefix='model.',
  fields=_mistral_fields,
  options=_mistral_options,
  tensors=_tensors,
  buffers=BUFFERS,
)
