# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains a model on rewards of its completions within their group (GRPO).

  gpt-jax grpo --config configs/finetune/grpo.py --init W --workdir W2 \
    --prompts prompts.jsonl --reward rewards.py:accuracy

--init is a workdir, a Hugging Face folder, or none (from scratch). The prompts
are JSON lines, {"prompt": ...}, a text or a list of messages; their other
columns go to the function accuracy(prompts, completions, **columns) of
rewards.py, which returns a number for each completion. --reward may also be a
folder of gpt-jax reward, or of finetune on a task such as sst2; then the reward
is the probability of its second class. Further settings are arguments of
finetune.task: grpo(..., num_generations=8, beta=0.0).
gpt_jax/tuning/fields.py explains the section finetune.

The same command resumes. W2 then has the files of `train`, and result.json with
the figures of the last rollouts. The command prints the first reward and the
last.
"""

from gpt_jax import cli
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.training import report
  from gpt_jax.tuning import method


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.post_training(
    prompts='The prompts to complete', reward='The function or model that scores completions'
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'init', 'workdir')
  cli.check_out_folder(args, 'workdir')
  result = method.post_train('grpo', args, 'prompts', 'reward')
  found = result['train']
  text = f'step {result["step"]}: metrics.jsonl has no rollouts'
  if 'reward' in found:
    text = (
      f'step {result["step"]}: reward {report.figure(found["reward"], 4)}, '
      f'completions of {found["completions/mean_length"]:.1f} tokens, in the '
      'last rollouts'
    )
  print(to_json(result) if args.json else method.told(result, text))
