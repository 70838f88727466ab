# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""InstructGPT's three steps (Ouyang et al., 2022: Training language models to
follow instructions with human feedback), section 3.5 and appendix C.

  gpt-jax sft --config configs/instructgpt.py:sft --init W --workdir S \
    --train demonstrations.jsonl --dev dev.jsonl
  gpt-jax reward --config configs/instructgpt.py:reward --init S --workdir R \
    --train rankings.jsonl
  gpt-jax ppo --config configs/instructgpt.py:ppo --init S --workdir P \
    --prompts prompts.jsonl --reward R

W is a pre-trained model, such as one of configs/gpt3.py. `ppo` also reads
`text.jsonl` of the working directory, pre-training texts: {"text": ...}.

`sft` and `ppo` have the settings of the 1.3B and 6B models, `sft_175b` those of
175B, `reward` those of the 6B reward model. The sizes for a small model on a
CPU, such as configs/gpt1.py:cpu, are `sft_cpu`, `reward_cpu` and `ppo_cpu`.

What differs from the paper:
- It picks the SFT model by the reward model's score; here it is the last one.
- It does not say whether rows of SFT were packed: they are.
- Its value function is a model of 6B of its own, which starts from the reward
  model; here it is a head of the policy, whose states the reward model's head
  does not know: it starts at random.
- It does not say whether the losses that gamma weighs are sums or means over
  tokens: here they are means.
- It reads eight pre-training texts for each completion; here it is one.
- The peak rate of `ppo` is the reward model's.
"""

from ml_collections import ConfigDict

from configs import base as tree
from configs.finetune import base

# Peak rate, rows per batch (a reward model's: prompts), epochs (PPO: episodes).
SIZES = {
  'sft': (9.65e-6, 32, 16.0),
  'sft_175b': (5.03e-6, 8, 16.0),
  'sft_cpu': (5e-4, 16, 3.0),
  'reward': (9e-6, 64, 1.0),
  'reward_cpu': (3e-4, 16, 2.0),
  'ppo': (9e-6, 64, 256_000),
  'ppo_cpu': (3e-5, 16, 4096),
}


def get_config(arg: str = 'sft') -> ConfigDict:
  """One step."""
  peak, rows, length = tree.size(__file__, arg, SIZES)
  config = base.get_config().unlock()
  # Appendix C: Adam with 0.9 and 0.95.
  config.optim.name = 'adam(b1=0.9, b2=0.95, eps=1e-8)'
  config.batch.size = rows
  step, _, size = arg.partition('_')
  if step == 'ppo':
    # Section C.4: 256k episodes, 512 at a time, in minibatches of 64 that are
    # used once; beta 0.02, gamma 27.8 of the pre-training texts, temperature 1.
    # Contexts have 2k tokens, answers at most 1k; longer prompts are dropped.
    longest, num_mini_batches = (32, 4) if size == 'cpu' else (1024, 8)
    config.finetune.task = (
      f"ppo('prompts.jsonl', 'R', num_mini_batches={num_mini_batches}, "
      f'num_ppo_epochs=1, max_completion_length={longest}, kl_coef=0.02, '
      "ptx=27.8, ptx_text='text.jsonl')"
    )
    config.finetune.too_long = 'drop'
    if size != 'cpu':
      config.finetune.length = 2048
    config.schedule.num_steps = length // rows
    # The first 10 rollouts warm up.
    config.schedule.name = f'constant(peak={peak}, warmup={10 * num_mini_batches})'
    config.optim.ema = 'ema(0.992)'
    config.log.every_steps = num_mini_batches
    return config.lock()
  config.finetune.epochs = length
  config.schedule.name = f'cosine(peak={peak}, final=0.1)'
  if step == 'reward':
    # Section C.2: one epoch, in which all comparisons of a prompt are together;
    # a cosine schedule down to a tenth of the rate.
    config.finetune.task = "reward('train.jsonl')"
    config.finetune.too_long = 'drop'
    return config.lock()
  # Section C.1: 16 epochs, residual dropout of 0.2, a cosine schedule down to
  # a tenth of the rate, without warmup.
  config.finetune.task = "sft('train.jsonl', 'dev.jsonl')"
  config.finetune.model.dropout = 'rates(residual=0.2)'
  return config.lock()
