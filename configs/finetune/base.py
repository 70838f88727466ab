# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning as in GPT-1 (Radford et al., 2018), sections 3.2 and 4.1:
configs/base.py with a section `finetune`.

The model, except the fields of `finetune.model`, and the tokenizer are those of
--init; the sections `model` and `tokenizer` are for --init=none.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base


def get_config(arg: str = '') -> ConfigDict:
  """The paper's settings, without a task."""
  base.no_size(__file__, arg)
  config = base.get_config().unlock()

  config.finetune = base.finetune()

  # Empty: from finetune.peak, warmup and epochs.
  config.schedule.name = placeholder(str)
  config.schedule.num_steps = placeholder(object)
  config.batch.size = base.number_or_text(32)
  # The rest is as in pre-training.
  config.optim.name = 'adamw(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)'
  config.optim.clip_norm = 1.0

  # Empty: once per epoch; of many epochs in post-training, 20 times.
  config.eval.every_steps = placeholder(int)
  config.checkpoint.every_steps = placeholder(int)
  config.log.sample_prompt = ''
  return config.lock()
