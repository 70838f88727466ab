# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks of GPT-1's ablation, for configs/gpt1.py:cpu on two cores.

GPT-1's table 5 and section 4.1, adapted to a small model and an hour for all
runs: short rows (longer texts are truncated and counted), a part of SST-2's
train split, a higher rate with a warmup, and dropout only in the classifier:
the model was pre-trained without, and learns little with it in so few steps.
"""

from ml_collections import ConfigDict

from configs import base as tree
from configs.finetune import base

# Tokens per sequence, rows per batch, training examples (None: all), epochs.
SIZES = {
  'sst2': (40, 32, 20_000, 1),
  'cola': (24, 32, None, 3),
  'mrpc': (64, 16, None, 2),
  'stsb': (48, 16, None, 3),
  'rte': (96, 32, None, 3),
}


def get_config(arg: str = 'sst2') -> ConfigDict:
  """One task."""
  length, rows, examples, epochs = tree.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.finetune.task = f'{arg}()'
  config.finetune.length = length
  config.finetune.examples = examples
  config.finetune.epochs = float(epochs)
  config.finetune.peak = 1e-3
  config.finetune.warmup = 0.05
  config.batch.size = rows
  # Evaluate and save only at the end.
  config.eval.every_steps = 1_000_000
  config.checkpoint.every_steps = 1_000_000
  config.checkpoint.keep = 1
  return config.lock()
