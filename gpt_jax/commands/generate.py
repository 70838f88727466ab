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
from collections.abc import Sequence

from absl import flags

from gpt_jax import cli
from gpt_jax.decoding import sample
from gpt_jax.spec import UsageError
from gpt_jax.training import run as run_lib


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a trained run.')
  text = functools.partial(flags.DEFINE_string, flag_values=values)
  integer = functools.partial(flags.DEFINE_integer, flag_values=values)
  number = functools.partial(flags.DEFINE_float, flag_values=values)
  text('prompt', None, 'The text to continue.')
  integer(
    'max_tokens',
    None,
    'Tokens to draw at most; empty: 100, or what the context has room for.',
    lower_bound=1,
  )
  number(
    'temperature',
    1.0,
    'Divides the logits; 0 takes the most probable token.',
    lower_bound=0,
  )
  integer('top_k', 0, 'Draw among the k best tokens; 0: all.', lower_bound=0)
  number(
    'top_p',
    1.0,
    'Draw among the fewest tokens that reach this probability.',
    lower_bound=0,
    upper_bound=1,
  )
  integer('seed', 0, 'Of the draws.')
  flags.DEFINE_multi_string(
    'stop',
    [],
    'Text that ends a sample, of any number of tokens; may be repeated.',
    flag_values=values,
  )
  integer('num_samples', 1, 'How many continuations.', lower_bound=1)


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  if not args.prompt:
    raise UsageError('--prompt is empty; give the text to continue')
  if not all(args.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  samples = continue_prompt(
    run_lib.load(args.workdir),
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


def continue_prompt(
  trained: run_lib.Trained,
  prompt: str,
  *,
  max_tokens: int | None,
  temperature: float,
  top_k: int = 0,
  top_p: float = 1.0,
  seed: int = 0,
  num_samples: int = 1,
  stop: Sequence[str] = (),
) -> list[str]:
  """Returns the prompt with each of its continuations.

  A continuation ends before the first of the texts `stop`, however it is cut
  into tokens: each new token is decoded with those before it.

  Raises:
    UsageError: the prompt, or prompt and continuation, exceed the context.
  """
  model = trained.run.model
  ids = [int(i) for i in trained.tokenizer.encode(prompt)]
  room = model.context_length - len(ids)
  if room < 1:
    raise UsageError(
      f'--prompt has {len(ids)} tokens, and the context holds '
      f'{model.context_length}; shorten it to {model.context_length - 1}'
    )
  if max_tokens is None:
    max_tokens = min(100, room)
  if max_tokens > room:
    raise UsageError(
      f'--max_tokens={max_tokens}: the prompt has {len(ids)} tokens and the '
      f'context holds {model.context_length}; at most {room}'
    )
  tokenizer = trained.tokenizer
  start = len(tokenizer.decode(ids))

  def text_of(new: list[int]) -> tuple[str, bool]:
    """The text up to the first stop, and whether there is one."""
    text = tokenizer.decode(ids + new)
    ends = [at for s in stop if (at := text.find(s, start)) >= 0]
    return text[: min(ends, default=None)], bool(ends)

  continuations = sample.generate(
    model,
    trained.state.eval_params,
    [ids] * num_samples,
    max_tokens=max_tokens,
    sampler=sample.Sampler(temperature, top_k, top_p),
    seed=seed,
    stop_ids=(tokenizer.eos_id,),
    stop_when=(lambda new: text_of(new)[1]) if stop else None,
  )
  return [text_of(new)[0] for new in continuations]
