# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""T5 (Raffel et al., 2019: Exploring the Limits of Transfer Learning with a
Unified Text-to-Text Transformer), sections 2.1, 3.1 and 3.3, and version 1.1.

  gpt-jax train --config configs/t5.py:base --workdir W

Parameters: 60,506,624 / 222,903,552 / 737,668,096 / 2,851,598,336 /
11,307,321,344, and of version 1.1 76,961,152 / 247,577,856 / 783,150,080 /
2,849,757,184 / 11,135,332,352, as Hugging Face counts the released
checkpoints; the paper prints 60M, 220M, 770M, 3B and 11B. Rows 32,100 to
32,127 of the table are unused.

Its objectives (tables 4 to 7), as overrides of the baseline of section 3.1.2,
`base`:

  prefix language modeling  --config.objective.name=continuation
  BERT-style                --config.objective.name=bert_style
  deshuffling               --config.objective.name=deshuffle
  MASS-style                --config.objective.name=mass_style
  replace spans             --config.objective.name=replace_spans
  drop tokens               --config.objective.name=drop_tokens
  rates 10%, 25%, 50%       --config.objective.name="span(rate=0.25)"
  spans of 2, 5, 10         --config.objective.name="span(length=5.0)"

Its shared encoder-decoder (table 2) is --config.model.share=stacks: 137,950,464
parameters of `base`.

The paper's baseline corrupts single tokens (replace_spans); the released models
were trained with spans of 3, as here, for more steps, and on tasks beside the
text. The released code draws each corrupted token independently; here each row
has the same number. Dropout inside the feed-forward layers is left out. Version
1.1 was trained without dropout.

C4 is read from `corpora/c4`; your own text:
--config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and fifty minutes: narrower, with rows of 128
tokens, and with Muon for the kernels.

  gpt-jax train --config configs/t5.py:cpu --workdir W \
    --config.data.source="text('*.txt')"
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  "the Transformer's encoder and decoder, with a relative position bias "
  'shared by all layers, norms of the inputs of sublayers, and no biases; the '
  'decoder writes the spans left out of a text'
)
# Section 3.1.1 and the released code: layers of each stack, d_model, d_ff,
# heads, head size.
SIZES = {
  'small': (6, 512, 2048, 8, 64),
  'base': (12, 768, 3072, 12, 64),
  'large': (24, 1024, 4096, 16, 64),
  '3b': (24, 1024, 16_384, 32, 128),
  '11b': (24, 1024, 65_536, 128, 128),
  'v1.1-small': (8, 512, 1024, 6, 64),
  'v1.1-base': (12, 768, 2048, 12, 64),
  'v1.1-large': (24, 1024, 2816, 16, 64),
  'v1.1-xl': (24, 2048, 5120, 32, 64),
  'v1.1-xxl': (24, 4096, 10_240, 64, 64),
  'cpu': (3, 192, 768, 6, 32),
}


def get_config(arg: str = 'small') -> ConfigDict:
  """T5 in the size `arg`."""
  num_layers, d_model, d_ff, num_heads, head_size = base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.model.num_layers = num_layers
  config.model.num_encoder_layers = num_layers
  config.model.d_model = d_model
  config.model.d_ff = d_ff
  config.model.num_heads = num_heads
  config.model.head_size = head_size
  model(config)
  config.model.ffn = 'relu'
  config.model.init_weights = f't5(head_size={head_size})'
  # Section 3.1.2: dropout of 0.1 everywhere.
  config.model.dropout = 'rates(embedding=0.1, residual=0.1, attention=0.1)'
  if arg.startswith('v1.1'):
    config.model.ffn = 'geglu_tanh'
    config.model.output = 'untied'
    config.model.dropout = 'none'
  config.objective.name = 'span(rate=0.15, length=3.0)'
  base.corpora(config, c4=100)
  # Section 3.1.2: 2^19 steps of 128 rows, 2^35 tokens; without clipping.
  config.batch.size = 128
  config.schedule.num_steps = 2**19
  recipe(config)
  if arg == 'cpu':
    _cpu(config)
  return config.lock()


def model(config: ConfigDict) -> None:
  """Common to all sizes: sections 2.1 and 3.1.1."""
  # 512 tokens; relative positions in 32 buckets up to 128; unscaled attention
  # scores, RMSNorm, no biases, one table for all.
  config.model.context_length = 512
  config.model.position = 't5_bias(num_buckets=32, max_distance=128)'
  config.model.attention_scale = 'none'
  config.model.norm = 'rmsnorm(epsilon=1e-6)'
  config.model.block = 'pre'
  config.model.bias = 'none'
  config.model.output = "tied(scale='rsqrt')"
  # 32,000 pieces, a hundred sentinels, and unused rows.
  config.model.vocab_size = 32_128
  config.tokenizer.name = tokenizer(32_000, 100)


def tokenizer(pieces: int, sentinels: int) -> str:
  """Pieces, including padding, and sentinels."""
  return (
    f"sentencepiece(vocab_size={pieces + sentinels}, model='unigram', "
    f"special=['<pad>'], sentinels={sentinels})"
  )


def recipe(config: ConfigDict) -> None:
  """Section 3.1.2: Adafactor, 1 / sqrt(max(n, 10^4))."""
  config.optim.name = 'adafactor'
  config.optim.clip_norm = 0.0
  config.schedule.name = 'rsqrt(peak=1e-2, hold=10000)'
  config.log.sample_prompt = ''


def _cpu(config: ConfigDict) -> None:
  """Two cores and fifty minutes (0.97 s a step, Xeon); see configs/gpt1.py."""
  config.data.source = 'stdlib'
  config.data.sources = {}
  config.model.context_length = 128
  config.model.vocab_size = 4096
  config.tokenizer.name = tokenizer(4064, 32)
  config.batch.size = 64
  # No row is seen twice.
  config.model.dropout = 'none'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.optim.name = 'muon(weight_decay=0.01)'
  config.schedule.num_steps = 3000
  config.schedule.name = 'linear(peak=3e-3, warmup=200, final=0.0)'
  config.checkpoint.every_steps = 500
  config.eval.every_steps = 500
  config.eval.rows = 64
  config.eval.num_batches = 25
