# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gopher (Rae et al., 2021: Scaling Language Models: Methods, Analysis &
Insights from Training Gopher), in the six sizes of its table 1.

  gpt-jax train --config configs/gopher.py:1.4b --workdir W

Parameters: 43,700,736 / 116,709,120 / 417,443,328 / 1,374,799,872 /
7,112,101,888 / 279,714,217,984. They agree with the paper if tied embeddings
count once and every layer has Transformer-XL's d x d projection of the relative
positions and its two vectors u and v: 13 d^2 weights per layer instead of
12 d^2 (without it 417m would have 389M). Details missing in the paper (biases,
initial weights, Adam's betas) are GPT-3's.

280b doubles its batch from 3M to 6M tokens "midway through training"
(Hoffmann et al., 2022, table 4): here after 150B tokens.

The corpora are read from `corpora/`; your own text:
--config.data.source="text('*.txt')". Not run.
"""

from ml_collections import ConfigDict

from configs import base, gpt3

DIFFERS = (
  "GPT-3 with RMSNorm, Transformer-XL's relative positions, full attention in "
  'all layers and a SentencePiece vocabulary of 32,000'
)
# Table 1: layers, heads, head size, d_model, peak rate; rows of 2048 tokens in
# a batch of 0.25M = 128 * 2048, 2M, 3M to 6M tokens; section 3.2: clipping.
DOUBLED = 'ramp(0:1536, 150B_tokens:3072)'
SIZES = {
  '44m': (8, 16, 32, 512, 6e-4, 128, 1.0),
  '117m': (12, 12, 64, 768, 6e-4, 128, 1.0),
  '417m': (12, 12, 128, 1536, 2e-4, 128, 1.0),
  '1.4b': (24, 16, 128, 2048, 2e-4, 128, 1.0),
  '7.1b': (32, 32, 128, 4096, 1.2e-4, 1024, 0.4),
  '280b': (80, 128, 128, 16384, 4e-5, DOUBLED, 0.4),
}


def get_config(arg: str = '44m') -> ConfigDict:
  """Gopher in the size `arg`."""
  num_layers, num_heads, head_size, d_model, peak, rows, clip_norm = base.size(__file__, arg, SIZES)
  config = gpt3.get_config().unlock()
  # Section 3.1: "with two modifications: we use RMSNorm instead of LayerNorm,
  # and we use the relative positional encoding scheme from Dai et al."
  config.model.attention = 'full'
  config.model.norm = 'rmsnorm'
  config.model.position = 'transformer_xl'
  config.model.num_layers = num_layers
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  config.model.d_model = d_model
  # "using SentencePiece with a vocabulary of 32,000 and a byte-level backoff";
  # with NFKC, according to Chinchilla's section 4.1.
  config.model.vocab_size = 32_000
  config.tokenizer.name = (
    "sentencepiece(vocab_size=32000, model='bpe', normalization='nfkc', "
    'byte_fallback=True, split_digits=False)'
  )
  # Section 3.2: 300B tokens, Adam, 1500 warmup steps, a cosine to a tenth.
  config.batch.size = rows
  config.optim.name = 'adam(b1=0.9, b2=0.95, eps=1e-8)'
  config.optim.clip_norm = clip_norm
  if arg in ('7.1b', '280b'):
    # Section 3.2: "bfloat16 activations and parameters", updated "using
    # stochastic rounding".
    config.optim.precision = 'bfloat16'
  config.schedule.num_steps = '300B_tokens'
  config.schedule.name = f"cosine(peak={peak}, warmup=1500, final=0.1, decay='300B_tokens')"
  # Table 2: MassiveText's sampling proportions.
  base.corpora(
    config,
    massive_web=48,
    books=27,
    c4=10,
    news=10,
    github=3,
    wikipedia=2,
  )
  return config.lock()
