# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""CoVe's vectors in a biattentive classifier (McCann et al., 2017, section 5).

  gpt-jax finetune --config configs/finetune/cove.py --init W --workdir W2 \
    --config.finetune.task="sst2('glue_data/SST-2')"

W is a run of configs/cove.py, whose encoder is frozen. The paper tunes sizes
and dropout for each task; rate, dropout and epochs are choices of ours.

The baseline, `random`, initializes the encoder and keeps the vectors of words.
"""

from ml_collections import ConfigDict

from configs.finetune import base

SIZES = {'cove': 'all', 'random': 'embeddings'}


def get_config(arg: str = 'cove') -> ConfigDict:
  """SST-2 with CoVe, or with a random encoder."""
  transfer = base.base.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  config.finetune.task = 'sst2()'
  config.finetune.features = 'ends'
  config.finetune.transfer = transfer
  config.finetune.dropout = 0.2
  config.finetune.peak = 1e-3
  config.finetune.epochs = 5.0
  config.finetune.select = 'best'
  config.optim.name = 'adam()'
  return config.lock()
