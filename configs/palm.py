# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaLM (Chowdhery et al., 2022: PaLM: Scaling Language Modeling with
Pathways), in the three sizes of its table 1.

  gpt-jax train --config configs/palm.py:8b --workdir W

Parameters: 8,631,877,632 / 62,495,129,600 / 540,354,281,472, in the table
8.63B / 62.50B / 540.35B. The layer norms have no learned scale: section 2 says
that they have no biases, and with scales the largest would be 540.36B, while
the two others would round to the same digits.

Not expressed yet: Adafactor without factorisation with parameter scaling at
1e-2, beta2 = 1 - k^-0.8 and a decay of rate^2 (here AdamW, at GPT-3's rate for
the nearest size, after a linear warm-up; the fall by 1/sqrt(k) after 10k steps
is the paper's); the batch's growth in stages (here its last); digits split one
by one by the tokenizer. The corpus defaults to the Python standard library.
Not run.
"""

from ml_collections import ConfigDict

from configs import base, gpt3

DIFFERS = (
  'GPT-3, with attention and feed-forward layer in parallel, SwiGLU, one '
  'key/value head, RoPE, no biases, 256,000 tokens, z-loss; full attention in '
  'all layers'
)
# Table 1: layers, heads, d_model; section 5: last rows of 2048 tokens in a
# batch; GPT-3's peak rate for 6.7B, 13B, 175B.
SIZES = {
  '8b': (32, 16, 4096, 512, 1.2e-4),
  '62b': (64, 32, 8192, 1024, 1.0e-4),
  '540b': (118, 48, 18_432, 2048, 0.6e-4),
}


def get_config(arg: str = '8b') -> ConfigDict:
  """PaLM in the size `arg`."""
  num_layers, num_heads, d_model, rows, peak = base.size(__file__, arg, SIZES)
  config = gpt3.get_config().unlock()
  # Section 2: SwiGLU; parallel layers; multi-query attention; RoPE; shared
  # embeddings; no biases in dense kernels or layer norms; 256k tokens.
  config.model.attention = 'full'
  config.model.ffn = 'swiglu'
  config.model.block = 'parallel'
  config.model.num_kv_heads = 1
  config.model.position = "rope(layout='interleaved')"
  config.model.output = "tied(scale='rsqrt')"
  config.model.bias = 'none'
  config.model.norm = 'layernorm(scale=False, bias=False)'
  config.model.vocab_size = 256_000
  config.tokenizer.name = "sentencepiece(vocab_size=256000, model='bpe')"
  # Table 1 and section 2.1: head size 256, d_ff = 4 d_model.
  config.model.num_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = 256
  config.model.d_model = d_model
  # Section 5: kernels N(0, 1/n_in), embeddings N(0, 1), the scores scaled by
  # 1/sqrt(n); 10k steps, then 1/sqrt(k); clipping; z-loss; 780B tokens.
  config.model.init_weights = 'palm'
  config.schedule.name = f'rsqrt(peak={peak}, warmup=10000)'
  config.optim.clip_norm = 1.0
  config.objective.name = 'causal(z_loss=1e-4)'
  config.batch.rows = rows
  config.schedule.num_steps = 780_000_000_000 // (rows * 2048)
  return config.lock()
