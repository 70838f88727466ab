# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""A reward model of preferences or rankings.

  gpt-jax reward --config configs/finetune/reward.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

InstructGPT's settings (Ouyang et al., 2022, appendix C.2): one epoch over
batches of 64 prompts at a peak rate of 9e-6, with Adam's betas 0.9
and 0.95. The rate falls to 0 linearly. Small models take a higher rate.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """The reward model has the size of --init."""
  config = base.get_config(arg).unlock()
  config.finetune.task = "reward('train.jsonl')"
  config.finetune.epochs = 1.0
  config.finetune.peak = 9e-6
  config.finetune.warmup = 0.0
  # A text without its end is not the one that was judged.
  config.finetune.too_long = 'drop'
  config.optim.name = 'adamw(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0)'
  config.optim.clip_norm = 1.0
  config.batch.size = 64
  return config.lock()
