# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Trains a model on preferences directly (DPO, Rafailov et al., 2023).

  gpt-jax dpo --config configs/finetune/dpo.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

--init, which is also the reference, is a workdir, a Hugging Face folder, or
none (from scratch). The files are those of `gpt-jax reward`. beta, loss_type
(sigmoid, ipo, hinge) and label_smoothing are arguments in finetune.task:
dpo('train.jsonl', 'dev.jsonl', beta=0.1). gpt_jax/tuning/fields.py
explains the section finetune.

The reference's log-probabilities are computed once, and kept in W2 as
reference.npz. The same command resumes. W2 then has the files of `train`, and
result.json with the dev split's loss, rewards, margins and accuracies.
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
  result = method.post_train('dpo', args, 'train', 'dev')
  dev = result['dev']
  margin = report.figure(dev['rewards/margins'], 4)
  text = (
    f'step {result["step"]}, dev: loss {dev["loss"]:.4f}, rewards: margin '
    f'{margin}, accuracy {dev["rewards/accuracies"]:.4f}, '
    f'over {dev["pairs"]:,} pairs'
  )
  print(to_json(result) if args.json else method.told(result, text))
