# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Supervised fine-tuning on dialogues or instructions.

  gpt-jax sft --config configs/finetune/sft.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

A start that serves many models; the rate suits ones of a billion parameters,
smaller ones take more.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """SFT has the size of --init."""
  config = base.get_config(arg).unlock()
  config.finetune.task = "sft('train.jsonl', 'dev.jsonl')"
  config.finetune.epochs = 3.0
  config.finetune.peak = 2e-5
  config.finetune.warmup = 0.03
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)'
  config.optim.clip_norm = 1.0
  config.batch.size = 32
  return config.lock()
