# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""LLaMA (Touvron et al., 2023: LLaMA: Open and Efficient Foundation Language
Models), in the four sizes of its table 2.

  gpt-jax train --config configs/llama.py:7b --workdir W

Parameters: 6,738,415,616 / 13,015,864,320 / 32,528,943,616 / 65,285,660,672.
The paper calls the third 33B and counts 32.5B. The initialization was not
published: it is GPT-3's.

The corpora are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.
"""

from ml_collections import ConfigDict

from configs import base, gpt3

DIFFERS = (
  'GPT-3 with RMSNorm, SwiGLU, RoPE, no biases, an untied output layer, a '
  'vocabulary of 32,000, and full attention in all layers'
)
# Table 2: d_model, heads, layers, peak rate, tokens; d_ff = 2/3 * 4 d_model
# (section 2.2) rounded up to a multiple of 256, as in the released code.
SIZES = {
  '7b': (4096, 32, 32, 3.0e-4, '1T_tokens', 11_008),
  '13b': (5120, 40, 40, 3.0e-4, '1T_tokens', 13_824),
  '33b': (6656, 52, 60, 1.5e-4, '1.4T_tokens', 17_920),
  '65b': (8192, 64, 80, 1.5e-4, '1.4T_tokens', 22_016),
}


def get_config(arg: str = '7b') -> ConfigDict:
  """LLaMA in the size `arg`."""
  d_model, num_heads, num_layers, peak, tokens, d_ff = base.size(__file__, arg, SIZES)
  config = gpt3.get_config().unlock()
  # Section 2.1: BPE by SentencePiece, "we split all numbers into individual
  # digits, and fallback to bytes to decompose unknown UTF-8 characters".
  config.tokenizer.name = (
    "sentencepiece(vocab_size=32000, model='bpe', byte_fallback=True, split_digits=True)"
  )
  config.model.vocab_size = 32_000
  # Section 2.2: pre-normalisation with RMSNorm, SwiGLU, rotary embeddings; in
  # the released code no biases, and a separate output table.
  config.model.attention = 'full'
  config.model.norm = 'rmsnorm'
  config.model.ffn = 'swiglu'
  config.model.d_ff = d_ff
  config.model.position = 'rope'
  config.model.bias = 'none'
  config.model.output = 'untied'
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  config.model.head_size = 128
  config.model.num_layers = num_layers
  # Section 2.3: AdamW, a cosine to 10%, decay 0.1, clipping 1.0, 2000 warmup
  # steps; 4M = 2048 * 2048 tokens in a batch (the context is GPT-3's 2,048).
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'
  config.optim.clip_norm = 1.0
  config.batch.size = 2048
  config.schedule.num_steps = tokens
  config.schedule.name = f'cosine(peak={peak}, warmup=2000, final=0.1)'
  # Table 1.
  base.corpora(
    config,
    common_crawl=67,
    c4=15,
    github=4.5,
    wikipedia=4.5,
    books=4.5,
    arxiv=2.5,
    stack_exchange=2,
  )
  return config.lock()
