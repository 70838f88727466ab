# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""ULMFiT's classifier (Howard and Ruder, 2018), section 3.3, from a language
model of configs/ulmfit.py.

  gpt-jax finetune --config configs/finetune/ulmfit.py --init W --workdir W2 \
    --config.finetune.task="classification('train.tsv', 'dev.tsv')"

Rates by layer, slanted triangles, one more layer in each epoch, and a head on
the last state, the maximum and the mean. Rates, betas, batch and dropout of the
head are the paper's (section 4.1); its number of epochs is chosen by task.
Other dropout of the layers than the language model's is set by
finetune.model.attention.

Unlike the paper, the head has no batch normalisation, the optimizer's state of
all layers starts anew when a layer is added, and the texts have GPT-1's start
and extract tokens around them, whose embeddings are trained with the head.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """The paper's settings; the task is yours."""
  config = base.get_config(arg).unlock()
  config.finetune.head = 'concat'
  config.finetune.segment = 70
  config.finetune.auxiliary = 0.0
  config.finetune.dropout = 0.4
  config.finetune.layer_decay = 1 / 2.6
  config.finetune.unfreeze = placeholder(int)  # empty: an epoch
  config.finetune.epochs = 15.0
  config.optim.name = 'adam(b1=0.7, b2=0.99)'
  config.schedule.name = 'slanted(peak=0.01)'
  config.batch.size = 64
  return config.lock()
