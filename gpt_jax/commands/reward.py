# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains a reward model on preferences or rankings (InstructGPT, step 2).

  gpt-jax reward --config configs/finetune/reward.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

--init is a workdir, a Hugging Face folder, or none (from scratch). The files
are JSON lines, packed or not: {"prompt": ..., "chosen": ..., "rejected": ...}
or {"prompt": ..., "completions": [best, ..., worst]}, each a text or a list of
messages; without "prompt", the prompt is the common beginning of chosen and
rejected. Without --dev, and with dev='' in finetune.task, a tenth of the
prompts is held out for evaluation; no prompt is in both.
gpt_jax/tuning/fields.py explains the section finetune.

The same command resumes. W2 then has the files of `train`, the rewards of the
dev split in predictions/dev.jsonl, and result.json with accuracy, margin,
calibration, and the correlation of reward and length.
"""

from gpt_jax import cli
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.core.training import report
  from gpt_jax.tuning import method


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.post_training(train='Preferences to learn', dev='Preferences to evaluate on')


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'init', 'workdir')
  cli.check_out_folder(args, 'workdir')
  result = method.post_train('reward', args, 'train', 'dev')
  dev = result['dev']
  margin = report.figure(dev['margin'], 4)
  text = (
    f'step {result["step"]}, dev: accuracy {dev["accuracy"]:.4f} (95% interval '
    f'{dev["accuracy_low"]:.4f} to {dev["accuracy_high"]:.4f}), margin '
    f'{margin}, calibration error {dev["ece"]:.4f}, correlation '
    f'with length {dev["length_correlation"]:.4f}, over {dev["pairs"]:,} pairs '
    f'of {dev["examples"] - dev["left_out"]:,} prompts'
  )
  print(to_json(result) if args.json else method.told(result, text))
