# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""The Transformer (Vaswani et al., 2017: Attention Is All You Need): an
encoder-decoder that translates.

  gpt-jax train --config configs/transformer.py:cpu --workdir W \
    --config.data.source="parallel_text('train.en', 'train.de')" \
    --config.data.holdout="parallel_text('val.en', 'val.de')"

Parameters: 63,082,496 (base) and 214,245,376 (big) with 37,000 pieces; the
paper prints 65M and 213M, which no single vocabulary gives. Its table 3, as
overrides of `base`:

  row  override                                           parameters
  A    model.num_heads=1 (4, 16, 32)                      63,082,496
  B    model.head_size=16 model.value_size=64             55,990,784
  B    model.head_size=32 model.value_size=64             58,354,688
  C    model.num_layers=2 model.num_encoder_layers=2      33,656,832
  C    the same with 4                                    48,369,664
  C    the same with 8                                    77,795,328
  C    model.d_model=256 model.head_size=32 \
         model.d_ff=2048                                  26,834,944
  C    model.d_model=1024 model.head_size=128 \
         model.d_ff=2048                                 163,889,152
  C    model.d_ff=1024                                    50,487,296
  C    model.d_ff=4096                                    88,272,896
  D    model.dropout="rates(residual=0.2, embedding=0.2)", or none
  D    objective.name="seq2seq(label_smoothing=0.2)", or 0.0
  E    model.position=learned                             63,344,640

(each prefixed with --config.).

The corpora are read from `corpora/`. `base` and `big` were not run. `cpu` is
for two cores and a small corpus such as Multi30k: 3,911,808 parameters, 39 BLEU
(docs/translation.md).
"""

from ml_collections import ConfigDict

from configs import base

DIFFERS = (
  'no recurrence: an encoder and a decoder of self-attention, joined by '
  'cross-attention; sinusoidal positions, one embedding table for both sides '
  'and the output, label smoothing'
)
# Table 3: d_model, d_ff, heads, dropout, steps.
SIZES = {
  'base': (512, 2048, 8, 0.1, 100_000),
  'big': (1024, 4096, 16, 0.3, 300_000),
  'cpu': None,
}


def get_config(arg: str = 'base') -> ConfigDict:
  """The paper's sizes, or a small one."""
  sizes = base.size(__file__, arg, SIZES)
  config = _paper(*(sizes or SIZES['base']))
  return (config if sizes else _small(config)).lock()


def _paper(d_model: int, d_ff: int, num_heads: int, dropout: float, num_steps: int) -> ConfigDict:
  config = base.get_config().unlock()
  # Section 3.1: six layers in each stack, LayerNorm(x + Sublayer(x)).
  config.model.num_encoder_layers = 6
  config.model.num_layers = 6
  config.model.d_model = d_model
  config.model.num_heads = num_heads
  config.model.d_ff = d_ff
  config.model.block = 'post'
  config.model.norm = 'layernorm(epsilon=1e-6)'  # as in the released code
  config.model.ffn = 'relu'
  # Section 3.4: one table, times sqrt(d_model) at the input, also for the
  # output; section 3.5: sinusoids.
  config.model.input = "tokens(scale='sqrt')"
  config.model.output = 'tied'
  config.model.position = 'sinusoidal'
  config.model.init_weights = 'transformer'  # as in the released code
  # Section 5.1: about 37,000 pieces shared by both languages; batches of about
  # 25,000 tokens of each.
  config.tokenizer.name = "sentencepiece(vocab_size=37000, model='bpe')"
  config.model.vocab_size = 37_000
  wmt, dev = 'corpora/wmt14_en_de', 'corpora/newstest2013'
  config.data.source = f"parallel_text('{wmt}/*.en*', '{wmt}/*.de*')"
  config.data.holdout = f"parallel_text('{dev}/*.en*', '{dev}/*.de*')"
  config.data.rows = 'parallel'
  config.model.context_length = 256  # as in the released code
  config.batch.size = 96
  # Section 5.3, equation 3: the peak is 7.0e-4 (big: 4.9e-4).
  config.optim.name = 'adam(b1=0.9, b2=0.98, eps=1e-9)'
  config.optim.clip_norm = 0.0
  config.schedule.name = f'noam(d_model={d_model}, warmup=4000)'
  config.schedule.num_steps = num_steps
  # Section 5.4.
  config.model.dropout = f'rates(embedding={dropout}, residual={dropout})'
  config.objective.name = 'seq2seq(label_smoothing=0.1)'
  # Section 6.1 averages the last 5 checkpoints (big: 20), 10 minutes apart.
  config.checkpoint.keep = 20 if d_model == 1024 else 5
  return config


def _small(config: ConfigDict) -> ConfigDict:
  config.model.num_encoder_layers = 3
  config.model.num_layers = 3
  config.model.d_model = 192
  config.model.num_heads = 4
  config.model.d_ff = 448
  config.model.dropout = 'rates(embedding=0.1, residual=0.2)'
  config.model.context_length = 128
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.model.vocab_size = 8000
  config.tokenizer.name = "sentencepiece(vocab_size=8000, model='bpe')"
  config.data.holdout = 'documents(fraction=0.02)'
  config.batch.size = 16
  config.schedule.num_steps = 4000
  config.schedule.name = 'cosine(peak=3e-3, warmup=1000, final=0.05)'
  config.optim.clip_norm = 1.0
  config.checkpoint.every_steps = 200
  config.eval.every_steps = 1000
  config.eval.rows = 16
  return config
