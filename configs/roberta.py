# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""RoBERTa (Liu et al., 2019: RoBERTa: A Robustly Optimized BERT Pretraining
Approach), sections 4 and 5 and table 9.

  gpt-jax train --config configs/roberta.py:large --workdir W

Parameters: 124,697,433 / 355,412,057, printed as 125M, and 355M or 356M: the
token tables have 50,265 - 30,522 more rows than BERT's, 15M and 20M parameters,
and there is no pooler. Positions begin with the third row of their table: the
first two are for padding.

Its comparisons, as overrides:

  static masks (table 1)  --config.objective.name="masked(static=1)", or 10
                          for BERT's ten copies of each row
  with next sentences     --config.objective.name="masked(pair='next')"
  (table 2)               --config.data.rows=pairs
                          --config.model.input="tokens(token_types=2,
                                                       norm=True)"
  doc-sentences           --config.data.rows=doc_sentences
  smaller batches         --config.batch.size=2048
  (table 3)               --config.schedule.num_steps=125000, with a peak of
                          7e-4; 256 rows with 1000000 steps and 1e-4; 8192 rows
                          with 31000 steps and 1e-3

Table 9's clipping norm of 0.0 means none. The ten copies with different masks
belong to the baseline of static masks; RoBERTa itself masks anew each time. The
160 GB of text are read from `corpora/`, sampled by size; your own text:
--config.data.source="text('*.txt')". Not run.

`cpu` is a version for two cores and half an hour: see configs/bert.py.

  gpt-jax train --config configs/roberta.py:cpu --workdir W \
    --config.data.source="passages(\"jsonl('books.jsonl.gz')\")"
"""

from ml_collections import ConfigDict

from configs import base, bert

DIFFERS = (
  'BERT without next-sentence prediction, on rows filled with whole sentences '
  'from the first step, with larger batches and more text; byte-level BPE of '
  '50,265 tokens'
)
# Table 9: peak rate and warmup; sizes are BERT's.
SIZES = {
  'base': (6e-4, 24_000),
  'large': (4e-4, 30_000),
  'cpu': (6e-4, 24_000),
}


def get_config(arg: str = 'base') -> ConfigDict:
  """RoBERTa in the size `arg`."""
  peak, warmup = base.size(__file__, arg, SIZES)
  config = bert.get_config(arg).unlock()
  # One token type, epsilon 1e-5, normal weights and the offset of positions are
  # the released code's.
  config.model.input = 'tokens(token_types=1, norm=True)'
  config.model.position = 'learned(offset=2)'
  config.model.norm = 'layernorm(epsilon=1e-5)'
  config.model.init_weights = 'normal(stddev=0.02)'
  # Sections 4.1 and 4.2: dynamic masks, full sentences without next-sentence
  # prediction; 4.4: byte-level BPE.
  config.objective.name = 'masked(rate=0.15, mask=0.8, random=0.1)'
  config.data.rows = 'full_sentences'
  if arg == 'cpu':
    config.tokenizer.name = 'byte_bpe(vocab_size=4096)'
    config.batch.length = None
    config.schedule.num_steps = 1450  # as many tokens as BERT's
    return config.lock()
  config.model.vocab_size = 50_265
  config.tokenizer.name = 'byte_bpe(vocab_size=50265)'
  # Section 3.1: "we train only with full-length sequences".
  config.batch.length = None
  # Section 3.2, in GB.
  base.corpora(config, books_wikipedia=16, cc_news=76, openwebtext=38, stories=31)
  # Table 9.
  config.batch.size = 8192
  config.optim.name = 'adamw(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01)'
  config.optim.clip_norm = 0.0
  config.schedule.num_steps = 500_000
  config.schedule.name = f'linear(peak={peak}, warmup={warmup}, final=0.0)'
  return config.lock()
