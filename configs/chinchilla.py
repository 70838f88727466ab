# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chinchilla (Hoffmann et al., 2022: Training Compute-Optimal Large Language
Models), section 4.1 and table 4.

  gpt-jax train --config configs/chinchilla.py --workdir W

Parameters: 70,063,890,432, counted as Gopher's are. The paper does not say how
strong AdamW's decay is; 0.1 is GPT-3's. Not expressed yet: the batch doubles
from 1.5M to 3M tokens during the run, here 3M throughout. The corpus defaults
to the Python standard library. Not run.
"""

from ml_collections import ConfigDict

from configs import base, gopher

DIFFERS = "Gopher's compute in a model of a quarter the size, by AdamW"
# Layers, heads, head size, d_model, peak rate, rows of 2048 tokens in a batch
# of 3M = 1536 * 2048 tokens.
SIZES = {'70b': (80, 64, 128, 8192, 1e-4, 1536)}


def get_config(arg: str = '70b') -> ConfigDict:
  """Chinchilla in the size `arg`."""
  num_layers, num_heads, head_size, d_model, peak, rows = base.size(
    __file__, arg, SIZES
  )
  config = gopher.get_config('280b').unlock()
  # Table 4.
  config.model.num_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.d_model = d_model
  config.batch.rows = rows
  # Section 4.1: 1.4T tokens of the same corpus in other proportions; AdamW
  # instead of Adam; a tokenizer without NFKC (ours never normalises); forward
  # and backward in bfloat16, with a copy of the weights in float32.
  config.schedule.num_steps = 1_400_000_000_000 // (rows * 2048)
  config.schedule.name = f'cosine(peak={peak}, warmup=1500, final=0.1)'
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'
  config.optim.clip_norm = 1.0
  config.optim.precision = 'float32'
  return config.lock()
