# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""MT-DNN (Liu et al., 2019): one encoder with a head for each GLUE task,
trained together; then fine-tuned on each task alone.

  gpt-jax finetune --config configs/finetune/mt_dnn.py --init BERT \
    --workdir W --tasks cola,sst2,mrpc,stsb,rte --glue glue_data
  gpt-jax finetune --config configs/finetune/mt_dnn.py --init W \
    --workdir W_RTE --tasks rte --glue glue_data

The paper also uses qqp, mnli and qnli_ranking. Its scores on GLUE's test sets,
from BERT large: 81.7 after the first command, 82.7 after the second, and 80.5
for BERT fine-tuned on each task alone.
"""

from ml_collections import ConfigDict

from configs.finetune import base


def get_config(arg: str = '') -> ConfigDict:
  """MT-DNN has the size of --init."""
  config = base.get_config(arg).unlock()
  config.finetune.tasks = 'cola(), sst2(), mrpc(), stsb(), rte()'
  # Equation 7: the squared error of the scores themselves.
  config.finetune.scores = 'raw'
  # Section 4.2: Adamax at 5e-5, batches of 32, 5 epochs, warmup over a tenth
  # and linear decay, gradients clipped at 1; dropout of 0.1 before each task's
  # last layer, except 0.3 for MNLI and 0.05 for CoLA.
  config.optim.name = 'adamax(b1=0.9, b2=0.999, eps=1e-8)'
  config.finetune.peak = 5e-5
  config.batch.size = 32
  config.finetune.epochs = 5.0
  config.finetune.warmup = 0.1
  config.optim.clip_norm = 1.0
  config.finetune.dropout = 0.1
  config.finetune.task_dropout = dict(mnli=0.3, cola=0.05)
  return config.lock()
