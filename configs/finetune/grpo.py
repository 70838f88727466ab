# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Group relative policy optimisation, with a reward function.

  gpt-jax grpo --config configs/finetune/grpo.py --init W --workdir W2 \
    --prompts prompts.jsonl --reward rewards.py:accuracy

A start that serves many models; the rate suits ones of a billion parameters,
smaller ones take more.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """GRPO has the size of --init."""
  config = base.get_config(arg).unlock()
  config.finetune.task = "grpo('prompts.jsonl', 'rewards.py:accuracy')"
  config.finetune.epochs = 1.0
  config.finetune.peak = 1e-6
  config.finetune.warmup = 0.0
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)'
  config.optim.clip_norm = 1.0
  config.batch.size = 64
  config.log.every_steps = 1
  return config.lock()
