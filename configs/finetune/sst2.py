# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SST-2 with GPT-1's settings; the paper's score on the test set: 91.3.

  gpt-jax finetune --config configs/finetune/sst2.py --init W --workdir W2 \
    --config.finetune.task="sst2('glue_data/SST-2')"

Without a folder it reads glue/sst2 from TensorFlow Datasets.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """SST-2 has one size."""
  config = base.get_config(arg).unlock()
  config.finetune.task = 'sst2()'
  return config.lock()
