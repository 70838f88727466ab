# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Continues a prompt with a trained model.

  gpt-jax generate --workdir workdirs/smoke --prompt 'def main('
  gpt-jax generate --workdir W --prompt 'Once' --num_samples=3 --seed=1 \
    --temperature=0.8 --top_k=50 --stop='The end' --stop='!'
  gpt-jax generate --workdir W --prompt 'Once' --prompt 'Twice' --json

Prints each sample: the prompt and its continuation. A sample ends with the
document, with a text of --stop (not printed), or after --max_tokens. With
several prompts each is continued by itself, as if it were the only one.
"""

import functools
import json

from absl import flags

from gpt_jax import cli, ranges
from gpt_jax.decoding.programs import in_place
from gpt_jax.decoding.prompt import continue_prompt
from gpt_jax.decoding.sampler import Sampler
from gpt_jax.spec import UsageError
from gpt_jax.training import trained as trained_lib


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a trained run.')
  number = functools.partial(cli.number, values)
  flags.DEFINE_multi_string(
    'prompt', [], 'The text to continue; may be repeated.', flag_values=values
  )
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
  number('num_samples', 1, 'Continuations of each prompt.', ranges.Count)
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if not args.prompt or not all(args.prompt):
    raise UsageError('--prompt is empty; give the text to continue')
  if not all(args.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  trained = trained_lib.load(args.workdir)
  model, params = in_place(trained.parts.model, trained.state.eval_params)
  found = []
  for prompt in args.prompt:
    samples = continue_prompt(
      model,
      params,
      trained.tokenizer,
      prompt,
      max_tokens=args.max_tokens,
      sampler=Sampler(args.temperature, args.top_k, args.top_p),
      seed=args.seed,
      num_samples=args.num_samples,
      stop=args.stop,
    )
    if not args.json:
      print(*(['\n'] if found else []), '\n\n'.join(samples), sep='')
    found.append({'prompt': prompt, 'samples': samples})
  if args.json:
    print(json.dumps({'prompts': found}))
