# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small GPT on the Python standard library: three minutes on two cores.

  make smoke

which is: gpt-jax train --config configs/smoke.py --workdir workdirs/smoke
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """The smoke run has one size."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()
  config.model.num_layers = 4
  config.model.d_model = 256
  config.model.num_heads = 4
  config.model.context_length = 256
  config.model.init_weights = 'gpt2(stddev=0.02)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.tokenizer.name = 'sentencepiece(vocab_size=4096)'
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)'
  config.schedule.num_steps = 500
  config.schedule.name = 'cosine(peak=2e-3, warmup=50, final=0.1)'
  config.batch.size = 8
  config.checkpoint.every_steps = 100
  config.eval.every_steps = 100
  config.eval.rows = 8
  config.log.every_steps = 5
  config.log.sample_prompt = 'def main('
  return config.lock()
