# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's character model of tiny Shakespeare, in its CPU size.

  gpt-jax train --config configs/shakespeare_char.py --workdir W

reads data/tinyshakespeare/input.txt (1,115,394 bytes; the source file of the
TFDS set `tiny_shakespeare`); for another path:
`--config.data.source="text('path/input.txt')"`. On two CPU cores it takes a
minute and reaches a validation loss of 1.776 (nats per character on the last
tenth of the text, every character predicted once).
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """The CPU size of nanoGPT's README."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()
  config.model.num_layers = 4
  config.model.d_model = 128
  config.model.num_heads = 4
  config.model.context_length = 64
  config.model.init_weights = 'gpt2(stddev=0.02)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.data.source = "text('data/tinyshakespeare/input.txt')"
  config.data.holdout = 'tail(fraction=0.1)'
  config.tokenizer.name = 'characters'
  config.optim.name = 'adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)'
  config.schedule.num_steps = 2000
  config.schedule.name = 'cosine(peak=3e-3, warmup=100, final=0.03)'
  config.batch.size = 12
  config.checkpoint.every_steps = 500
  config.eval.every_steps = 500
  config.eval.rows = 32
  config.log.sample_prompt = 'ROMEO:'
  config.log.sample_tokens = 50
  return config.lock()
