# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks of `gpt-jax ablation`, for configs/gpt1.py:cpu on two cores.

As GPT-1's table 5, but what a small model and an hour for all runs ask for:
fixed numbers of steps, short rows (longer texts are cut, and counted), part of
SST-2's train split, a higher rate, with a warm-up, and dropout, which that
model was pre-trained without.
"""

from ml_collections import ConfigDict

from configs import base as tree
from configs.finetune import base

# Length of a sequence, rows of a batch, steps.
SIZES = {
  'sst2': (48, 32, 300),
  'cola': (24, 32, 400),
  'mrpc': (96, 16, 200),
  'stsb': (56, 16, 300),
  'rte': (128, 32, 120),
}


def get_config(arg: str = 'sst2') -> ConfigDict:
  """One task."""
  length, rows, steps = tree.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.finetune.task = f'{arg}()'
  config.finetune.length = length
  config.finetune.examples = 20_000
  config.finetune.peak = 5e-4
  config.finetune.warmup = 0.05
  config.finetune.model.dropout = (
    'rates(embedding=0.1, residual=0.1, attention=0.1)'
  )
  config.batch.rows = rows
  config.schedule.num_steps = steps
  # Only the end counts.
  config.eval.every_steps = steps
  config.checkpoint.every_steps = steps
  config.checkpoint.keep = 1
  return config.lock()
