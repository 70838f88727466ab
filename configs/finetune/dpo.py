# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Direct preference optimisation.

  gpt-jax dpo --config configs/finetune/dpo.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

Batches of 64 pairs, a peak rate of 1e-6 after a tenth of warmup, and beta 0.1
(Rafailov et al., 2023, appendix B, with RMSprop). Small models take a higher
rate.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """The policy has the size of --init, which is also the reference."""
  config = base.get_config(arg).unlock()
  config.finetune.task = "dpo('train.jsonl', beta=0.1)"
  config.finetune.epochs = 1.0
  config.finetune.peak = 1e-6
  config.finetune.warmup = 0.1
  config.finetune.too_long = 'drop'
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0)'
  config.optim.clip_norm = 1.0
  config.batch.size = 64
  return config.lock()
