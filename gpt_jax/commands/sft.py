# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Fine-tunes a model on dialogues, instructions or texts (SFT).

  gpt-jax sft --config configs/finetune/sft.py --init W --workdir W2 \
    --train train.jsonl --dev dev.jsonl

--init is a workdir, a Hugging Face folder, or none (from scratch). The files
are JSON lines, compressed or not: {"messages": [{"role": "user", "content":
"..."}, {"role": "assistant", "content": "..."}]}, {"prompt": ..., "completion":
...} or {"text": "..."}. Conversations go through the model's chat template, or
through the one that finetune.task names: sft('train.jsonl', 'dev.jsonl',
template='zephyr'). gpt_jax/tuning/fields.py explains the section
finetune.

The same command resumes. W2 then has the files of `train`, the chat template
in its tokenizer, for generate and serve, and result.json with the dev split's
loss and perplexity.
"""

from gpt_jax import cli
from gpt_jax.core.training.metrics import to_json
from gpt_jax.flags import Flags

with cli.lazy_imports():
  from gpt_jax.tuning import method


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.post_training(train='The examples to learn from', dev='The examples to evaluate on')


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'config', 'init', 'workdir')
  cli.check_out_folder(args, 'workdir')
  result = method.post_train('sft', args, 'train', 'dev')
  dev = result['dev']
  text = (
    f'step {result["step"]}, dev: loss {dev["loss"]:.4f}, token accuracy '
    f'{dev["mean_token_accuracy"]:.4f}, over {dev["num_tokens"]:,} tokens of '
    f'{dev["examples"]:,} examples'
  )
  print(to_json(result) if args.json else method.told(result, text))
