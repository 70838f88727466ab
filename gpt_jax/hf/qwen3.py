# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Qwen3: LLaMA with norms of each head's queries and keys."""

from typing import Any

from gpt_jax.hf import windows
from gpt_jax.hf.base import Family, Options, Tensor
from gpt_jax.hf.llama import (
  BIASES,
  BUFFERS,
  biases,
  shared_fields,
  shared_options,
  shared_tensors,
)
from gpt_jax.hf.parts import gated, qk_norms
from gpt_jax.nn.transformer import Transformer


def _fields(options: Options) -> dict[str, Any]:
  attention = options.flag('attention_bias', False)
  kv_heads = None if options.has('num_key_value_heads') else 32
  return shared_fields(options, kv_heads, default_head_size=128) | {
    'context_length': options.size('max_position_embeddings', 32_768),
    'attention': _attention(options),
    'block': "pre(qk_norm='per_head')",
    'bias': BIASES[attention, False],
  }


def _attention(options: Options) -> str:
  """From layer `max_window_layers` on, layers may have a window."""
  window = None
  if options.flag('use_sliding_window', False):
    absent = not options.has('sliding_window')
    if absent or options.get('sliding_window') is not None:
      window = options.size('sliding_window', 4096)
  num_layers = options.size('num_hidden_layers')
  first = num_layers
  if window is not None:
    first = min(options.number('max_window_layers', 28), num_layers)
  default = [
    windows.SLIDING if i >= first else windows.FULL for i in range(num_layers)
  ]
  return windows.read(options, default, window)


def _options(model: Transformer) -> dict[str, Any]:
  attention, _ = biases(model)
  layers = windows.write(model)
  return {
    **shared_options(model),
    **layers,
    'use_sliding_window': layers['sliding_window'] is not None,
    'attention_bias': attention,
  }


def _tensors(model: Transformer) -> list[Tensor]:
  attention, _ = biases(model)
  return [*shared_tensors(model, attention), *qk_norms(), *gated(bias=False)]


QWEN3 = Family(
  model_type='qwen3',
  architectures={
    'Qwen3ForCausalLM': 'lm',
    'Qwen3ForSequenceClassification': 'classification',
    'Qwen3Model': 'body',
  },
  prefix='model.',
  fields=_fields,
  options=_options,
  tensors=_tensors,
  buffers=BUFFERS,
)
