# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""InstructGPT's three steps (Ouyang et al., 2022: Training language models to
follow instructions with human feedback), section 3.5 and appendix C.

  gpt-jax sft --config configs/finetune/instructgpt.py:sft --init W \
    --workdir W2 --train demonstrations.jsonl --dev dev.jsonl
  gpt-jax reward --config configs/finetune/instructgpt.py:reward --init W2 \
    --workdir R --train rankings.jsonl

`sft` has the settings of the 1.3B and 6B models, `sft_175b` those of 175B,
`sft_cpu` ones for a small model on a CPU, as of configs/gpt1.py:cpu. The paper
picks the SFT model by the reward model's score; here it is the last one. It
does not say whether rows were packed: they are. `reward` has the settings of
the 6B reward model, `reward_cpu` ones for a small model on a CPU.
"""

from ml_collections import ConfigDict

from configs import base as tree
from configs.finetune import base

# Peak rate, rows per batch (a reward model's: prompts), epochs.
SIZES = {
  'sft': (9.65e-6, 32, 16.0),
  'sft_175b': (5.03e-6, 8, 16.0),
  'sft_cpu': (5e-4, 16, 3.0),
  'reward': (9e-6, 64, 1.0),
  'reward_cpu': (3e-4, 16, 2.0),
}


def get_config(arg: str = 'sft') -> ConfigDict:
  """One step."""
  peak, rows, epochs = tree.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  # Appendix C: Adam with 0.9 and 0.95.
  config.optim.name = 'adam(b1=0.9, b2=0.95, eps=1e-8)'
  if arg.startswith('reward'):
    # Section C.2: one epoch, in which all comparisons of a prompt are together;
    # a cosine schedule down to a tenth of the rate.
    config.finetune.task = "reward('train.jsonl')"
    config.finetune.too_long = 'drop'
    config.finetune.epochs = epochs
    config.schedule.name = f'cosine(peak={peak}, final=0.1)'
    config.batch.size = rows
    return config.lock()
  # Section C.1: 16 epochs, residual dropout of 0.2, a cosine schedule down to
  # a tenth of the rate, without warmup.
  config.finetune.task = "sft('train.jsonl', 'dev.jsonl')"
  config.finetune.epochs = epochs
  config.finetune.model.dropout = 'rates(residual=0.2)'
  config.schedule.name = f'cosine(peak={peak}, final=0.1)'
  config.batch.size = rows
  return config.lock()
