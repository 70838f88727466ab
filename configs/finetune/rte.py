# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""RTE with GPT-1's settings; the paper's score on the test set: 56.0.

  gpt-jax finetune --config configs/finetune/rte.py --init W --workdir W2 \
    --config.finetune.task="rte('glue_data/RTE')"

Without a folder it reads glue/rte from TensorFlow Datasets.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """RTE has one size."""
  config = base.get_config(arg).unlock()
  config.finetune.task = 'rte()'
  return config.lock()
