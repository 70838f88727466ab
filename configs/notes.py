# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small GPT on a folder of your own texts: 10.0M parameters.

  gpt-jax train --config configs/notes.py --workdir W

reads the Markdown files in and below notes/; other files:
`--config.data.source="text('papers/**/*.txt')"`. It is designed for 1 to 20 MB
of text; the vocabulary needs at least 30 kB.

A step takes 8 rows of 256 tokens, about 8 kB of English: the 5,000 steps see 10
million tokens, 8 passes over 5 MB. The checkpoint with the lowest held-out loss
is kept; if that loss rises early, fewer steps suffice:
`--config.schedule.num_steps=2000`.

Not run to the end.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """One size."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()
  # 7 * (12 * 320^2 + 13 * 320) + (4096 + 256 + 2) * 320 = 10,024,000.
  config.model.num_layers = 7
  config.model.d_model = 320
  config.model.num_heads = 5
  config.model.context_length = 256
  config.model.init_weights = 'gpt2(stddev=0.02)'
  # A model of this size memorizes a small corpus.
  config.model.dropout = 'rates(embedding=0.1, residual=0.1, attention=0.1)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.data.source = "text('notes/**/*.md')"
  # The last tenth by characters, in the order of file names: a folder may have
  # few texts.
  config.data.holdout = 'tail(fraction=0.1)'
  config.tokenizer.name = "sentencepiece(vocab_size=4096, model='bpe')"
  config.optim.name = 'adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)'
  config.schedule.num_steps = 5000
  config.schedule.name = 'cosine(peak=1e-3, warmup=200, final=0.1)'
  config.batch.size = 8
  config.checkpoint.every_steps = 250
  config.checkpoint.keep_best = 1
  config.eval.every_steps = 250
  config.eval.rows = 8
  config.log.sample_prompt = '# '
  return config.lock()
