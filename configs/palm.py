# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaLM (Chowdhery et al., 2022: PaLM: Scaling Language Modeling with
Pathways), in the three sizes of its table 1.

  gpt-jax train --config configs/palm.py:8b --workdir W

Parameters: 8,631,877,632 / 62,495,129,600 / 540,354,281,472, in the table
8.63B / 62.50B / 540.35B. The layer norms have no learned scale: section 2 says
that they have no biases, and with scales the largest would have 540.36B, while
the other two would round to the same digits.

Adafactor does not clip updates (its d): the paper calls it Adam with parameter
scaling. Norm scales do not decay. The batch of 540b grows at the paper's steps;
"the smaller models followed similar schedules": here they double it after half
of the tokens. The paper does not state the SentencePiece model type; BPE is
LLaMA's.

The corpora are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.
"""

from ml_collections import ConfigDict

from configs import base, gpt3

DIFFERS = (
  'GPT-3 with attention and feed-forward layer in parallel, SwiGLU, a single '
  'key/value head, RoPE, no biases, a vocabulary of 256,000, z-loss, and full '
  'attention in all layers'
)
# Table 1: layers, heads, d_model; rows of 2048 tokens in a batch (540b: section
# 5).
SIZES = {
  '8b': (32, 16, 4096, 'ramp(0:256, 390B_tokens:512)'),
  '62b': (64, 32, 8192, 'ramp(0:512, 390B_tokens:1024)'),
  '540b': (118, 48, 18_432, 'ramp(0:512, 50k_steps:1024, 115k_steps:2048)'),
}


def get_config(arg: str = '8b') -> ConfigDict:
  """PaLM in the size `arg`."""
  num_layers, num_heads, d_model, rows = base.size(__file__, arg, SIZES)
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
  # "completely lossless and reversible", unknown characters as bytes, and
  # "numbers are always split into individual digit tokens".
  config.tokenizer.name = (
    "sentencepiece(vocab_size=256000, model='bpe', byte_fallback=True, "
    'split_digits=True, sample_bytes=256000000)'
  )
  # Table 1 and section 2.1: head size 256, d_ff = 4 d_model.
  config.model.num_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = 256
  config.model.d_model = d_model
  # Section 5: kernels N(0, 1/n_in), embeddings N(0, 1), logits scaled by
  # 1/sqrt(n); 10k steps, then 1/sqrt(k); clipping; z-loss; 780B tokens.
  config.model.init_weights = 'palm'
  config.schedule.name = 'rsqrt(peak=1e-2, hold=10000)'
  # Adafactor without factorisation, beta2 = 1 - k^-0.8, a decay of rate^2.
  config.optim.name = (
    'adafactor(b1=0.9, decay=0.8, factored=False, clip=0.0, '
    'parameter_scale=True, weight_decay=1.0, weight_decay_power=2)'
  )
  config.optim.clip_norm = 1.0
  config.objective.name = 'causal(z_loss=1e-4)'
  config.batch.size = rows
  config.schedule.num_steps = '780B_tokens'
  # Table 2.
  base.corpora(config, social=50, web=27, books=13, code=5, wikipedia=4, news=1)
  return config.lock()
