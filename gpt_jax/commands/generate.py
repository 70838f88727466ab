# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Continues a prompt with a trained model.

  gpt-jax generate --workdir workdirs/smoke --prompt 'def main('
  gpt-jax generate --workdir W --prompt 'Once' --num_samples=3 --seed=1 \
    --temperature=0.8 --top_k=50 --stop='The end' --stop='!'

Prints each sample: the prompt and its continuation. A sample ends with the
document, with a text of --stop (not printed), or after --max_tokens.
"""

import functools

from absl import flags

from gpt_jax import cli, ranges
from gpt_jax.decoding.prompt import continue_prompt
from gpt_jax.spec import UsageError
from gpt_jax.training import run as run_lib


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a trained run.')
  text = functools.partial(flags.DEFINE_string, flag_values=values)
  number = functools.partial(cli.number, values)
  text('prompt', None, 'The text to continue.')
  number(
    'max_tokens',
    None,
    'Tokens to draw at most; empty: 100, or what the context has room for.',
    ranges.Count,
  )
  number(
    'temperature',
    1.0,
    'Divides the logits; 0 takes the most probable token.',
    ranges.NotNegative,
  )
  number('top_k', 0, 'Draw among the k best tokens; 0: all.', ranges.Whole)
  number(
    'top_p',
    1.0,
    'Draw among the fewest tokens that reach this probability.',
    ranges.Probability,
  )
  number('seed', 0, 'Of the draws.', ranges.Seed)
  flags.DEFINE_multi_string(
    'stop',
    [],
    'Text that ends a sample, of any number of tokens; may be repeated.',
    flag_values=values,
  )
  number('num_samples', 1, 'How many continuations.', ranges.Count)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if not args.prompt:
    raise UsageError('--prompt is empty; give the text to continue')
  if not all(args.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  trained = run_lib.load(args.workdir)
  samples = continue_prompt(
    trained.run.model,
    trained.state.eval_params,
    trained.tokenizer,
    args.prompt,
    max_tokens=args.max_tokens,
    temperature=args.temperature,
    top_k=args.top_k,
    top_p=args.top_p,
    seed=args.seed,
    num_samples=args.num_samples,
    stop=args.stop,
  )
  print('\n\n'.join(samples))
