# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sizes for speed measurements.

gpt-jax benchmark --config configs/benchmark.py:char
"""

from ml_collections import ConfigDict

from configs import base

# layers, d_model, heads, context, rows, vocabulary
SIZES = {
  'char': (4, 128, 4, 64, 12, 65),
  'mid': (6, 384, 6, 256, 16, 65),
  'vocab': (6, 384, 6, 256, 16, 50_304),
  # GPT-2 with a short context: the state of a real model, quick steps.
  '100m': (12, 768, 12, 128, 8, 50_304),
  # Decoding: half of the context is the prompt.
  'decode': (8, 1024, 16, 2048, 16, 256),
  # Rollouts: half of the context is the prompt.
  'rollouts': (4, 256, 4, 256, 32, 4096),
  # The shapes of GPT-2 and SmolLM2-135M (Allal et al., 2025), with room for
  # new tokens after a prompt of 1,024.
  'gpt2': (12, 768, 12, 2048, 16, 50_257),
  'smollm2-135m': (30, 576, 9, 8192, 16, 49_152),
  # The LSTMs of AWD-LSTM and of ELMo (without its clips), which are compared
  # without the tables of tokens.
  'awd-lstm': (3, 400, 1, 70, 80, 65),
  'elmo': (1, 512, 1, 70, 80, 65),
}

_LSTMS = {
  'awd-lstm': 'lstm(1150), lstm(1150), lstm(400)',
  'elmo': 'lstm(4096, projection=512)',
}


def get_config(arg: str = 'char') -> ConfigDict:
  """The size `arg`, float32, AdamW and clipping: GPT-2's layers; LLaMA's for
  SmolLM2.
  """
  sizes = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers, config.model.d_model, config.model.num_heads = sizes[:3]
  config.model.context_length, config.batch.size, config.model.vocab_size = sizes[3:]
  config.model.init_weights = 'gpt2(stddev=0.02)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  if arg in ('decode', 'gpt2', 'smollm2-135m'):
    config.model.loop = 'scan'
  if arg == 'smollm2-135m':
    config.model.num_kv_heads = 3
    config.model.d_ff = 1536
    config.model.position = 'rope(theta=1e5)'
    config.model.ffn = 'swiglu'
    config.model.norm = 'rmsnorm(epsilon=1e-5)'
    config.model.bias = 'none'
  if arg in _LSTMS:
    config.model.attention = _LSTMS[arg]
    config.model.block = 'plain'
    config.model.position = 'none'
    config.model.init_weights = 'uniform'
    config.objective.name = 'recurrent'
  return config.lock()
