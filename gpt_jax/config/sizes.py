# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""No array of a model may have more bytes than the compiler can count.

It does not say so: the process aborts.
"""

from gpt_jax.config.fields import Config
from gpt_jax.config.lengths import ramp
from gpt_jax.nn.pattern import period
from gpt_jax.spec import UsageError

# Elements: of 4 bytes each, and 4 times as many where several are joined.
LARGEST_ARRAY = 2**59


def check_sizes(config: Config) -> None:
  """Checks that no array has more elements than can be counted."""
  m = config.model
  heads = m.num_heads * max(m.head_size, m.value_size)
  vocab = max(m.vocab_size or 1, m.source_vocab_size)
  rows = max(config.eval.rows, *(stage.rows for stage in ramp(config).stages))
  routers = (layer.ffn.router for layer in period(m.attention, m.ffn))
  experts = max(router.num_experts if router else 1 for router in routers)
  layers, tokens = (
    max(m.num_layers, m.num_encoder_layers, m.num_source_layers),
    rows * m.context_length,
  )
  of_ffn = layers * experts * m.d_model
  scores = tokens * m.context_length
  for names, size in (
    (('num_layers', 'd_model', 'd_ff'), of_ffn * m.d_ff),
    (('num_layers', 'd_model', 'encoder_d_ff'), of_ffn * m.encoder_d_ff),
    (
      ('num_layers', 'd_model', 'num_heads', 'head_size'),
      layers * m.d_model * heads,
    ),
    (('vocab_size', 'd_model'), vocab * m.d_model),
    (('context_length', 'vocab_size'), tokens * vocab),
    (('context_length', 'd_model'), tokens * m.d_model * layers),
    (('context_length', 'd_ff'), tokens * m.d_ff * experts),
    (('context_length', 'encoder_d_ff'), tokens * m.encoder_d_ff * experts),
    (('context_length', 'num_heads'), scores * m.num_heads),
    (('context_length', 'encoder_num_heads'), scores * m.encoder_num_heads),
  ):
    if size > LARGEST_ARRAY:
      fields = ', '.join(f'model.{name}={m[name]}' for name in names)
      raise UsageError(
        f'{fields}: make an array of {size:.2g} numbers, and one has at most '
        f'{LARGEST_ARRAY:.2g}; give smaller sizes'
      )
