# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chinchilla (Hoffmann et al., 2022: Training Compute-Optimal Large Language
Models), section 4.1 and table 4.

  gpt-jax train --config configs/chinchilla.py --workdir W

Parameters: 70,063,890,432, counted as Gopher's. The paper does not state
AdamW's weight decay; 0.1 is GPT-3's. The batch doubles "midway through
training": here after 700B tokens.

The corpora are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.
"""

from ml_collections import ConfigDict

from configs import base, gopher

DIFFERS = "Gopher's compute spent on a model a quarter of the size, trained with AdamW"
# Layers, heads, head size, d_model, peak rate, rows of 2048 tokens in a batch
# of 1.5M = 768 * 2048 tokens, then 3M.
SIZES = {
  '70b': (80, 64, 128, 8192, 1e-4, 'ramp(0:768, 700B_tokens:1536)'),
}


def get_config(arg: str = '70b') -> ConfigDict:
  """Chinchilla in the size `arg`."""
  num_layers, num_heads, head_size, d_model, peak, rows = base.size(__file__, arg, SIZES)
  config = gopher.get_config('280b').unlock()
  # Table 4.
  config.model.num_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.d_model = d_model
  config.batch.size = rows
  # Section 4.1: 1.4T tokens of the same corpus in other proportions; AdamW
  # instead of Adam; a tokenizer "that does not apply NFKC normalisation";
  # forward and backward in bfloat16, weights in float32 (as in all our models).
  config.tokenizer.name = (
    "sentencepiece(vocab_size=32000, model='bpe', normalization='identity', "
    'byte_fallback=True, split_digits=False)'
  )
  config.schedule.num_steps = '1.4T_tokens'
  config.schedule.name = f"cosine(peak={peak}, warmup=1500, final=0.1, decay='1.4T_tokens')"
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'
  config.optim.clip_norm = 1.0
  config.optim.precision = 'float32'
  # Table A1: MassiveText in other proportions.
  base.corpora(
    config,
    massive_web=45,
    books=30,
    c4=10,
    news=10,
    github=4,
    wikipedia=1,
  )
  return config.lock()
