# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""A toy IsoFLOP grid, after Chinchilla (Hoffmann et al., 2022), sections 3.1
to 3.3: small models on bytes, for `gpt-jax scaling`.

  gpt-jax scaling --config configs/scaling.py --workdir W
  gpt-jax scaling --config configs/scaling.py --workdir W \
    --config.data.source="jsonl('books.jsonl.gz')"

Every budget is spent on several sizes; each run's learning rate decays to a
tenth over its own length (section 3.1: the schedule of a longer run ends too
high). RoPE and bytes keep the share of embeddings small.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """The grid has one size."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()
  config.model.vocab_size = 257
  config.model.context_length = 128
  config.model.position = 'rope'
  config.model.init_weights = 'gpt2(stddev=0.02)'
  config.model.dtype = 'float32'
  config.model.loop = 'unroll'
  config.tokenizer.name = 'bytes'
  config.schedule.name = 'cosine(peak=4e-3, warmup=40, final=0.1)'
  config.batch.size = 16
  config.checkpoint.every_steps = 2000
  config.checkpoint.keep = 1
  config.eval.every_steps = 0
  config.eval.rows = 64
  config.eval.num_batches = 64
  config.log.sample_prompt = ''
  config.sweep = base.sweep()
  config.sweep.budgets = '1.5e11, 5e11, 1.5e12'
  # Two heads for all: a size with one head deviates from its curve.
  config.sweep.sizes = (
    'size(2, 12, 2, 20e-3), size(2, 16, 2, 15e-3), size(2, 24, 2, 10e-3), '
    'size(2, 32, 2, 8e-3), size(2, 40, 2, 6e-3), size(2, 56, 2, 4.5e-3), '
    'size(3, 64, 2, 4e-3)'
  )
  return config.lock()
