# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Continues prompts with a trained model, or talks to it.

  gpt-jax generate --workdir workdirs/smoke --prompt 'def main('
  gpt-jax generate --workdir W --prompt 'Once' --num_samples=3 --seed=1 \
    --temperature=0.8 --top_k=50 --stop='The end' --stop='!'
  gpt-jax generate --workdir W --prompt 'Once' --prompt 'Twice' --json
  cat story.txt | gpt-jax generate --workdir W --prompt - --truncate left
  gpt-jax generate --workdir W --prompts in.jsonl --out out.jsonl --rows 32
  gpt-jax generate --workdir W --draft SMALLER --prompt 'Once'
  gpt-jax generate --workdir W

Prints each sample: the prompt and its continuation, as it comes where that is
one on a terminal. A sample ends with the document, with a text of --stop (not
printed), or after --max_tokens. Each prompt is continued by itself, as if it
were the only one; --rows of them at a time.

--prompts reads a .txt with a prompt a line, or a .jsonl of objects with
`prompt`, or with `messages` for the model's chat template. A line of --out has
the prompt's `index` (from 0), the prompt, and its `continuations`, each with
`text`, `tokens` and `finish` ('stop' or 'length'). The same command given again
goes on after a crash; FILE.run says what --out holds results of.

With --draft, the workdir of a smaller model with the same tokenizer, that one
proposes --draft_tokens at a time, and the model judges them in one pass
(speculative decoding). The text has the same distribution; without a
temperature it is the same.

Without a prompt it is a session: each line typed, or piped in, gets an answer;
/help lists what else there is. A model with a chat template is asked by it.
Another has one text, continued after each line.
"""

import contextlib
import functools
import json
import os
import sys
from typing import Any, NamedTuple

from absl import flags

from gpt_jax import cli, ranges, sharding
from gpt_jax.data import progress
from gpt_jax.data.tokenizers.chat import ChatTemplate
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import continuations, prompt_files
from gpt_jax.decoding import session as session_lib
from gpt_jax.decoding.continuations import Options, Speed
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.prompt_files import Prompt
from gpt_jax.decoding.sampler import Sampler
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import trained as trained_lib

# Flags that the results in --out depend on, besides the model and the prompts.
_SETTINGS = (
  *('max_tokens', 'temperature', 'top_k', 'top_p', 'min_p', 'seed', 'stop'),
  *('repetition_penalty', 'num_samples', 'truncate'),
)


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a trained run.')
  texts = functools.partial(flags.DEFINE_multi_string, flag_values=values)
  texts(
    *('prompt', []),
    'The text to continue, or - for that of standard input; may be repeated.',
  )
  flags.DEFINE_string(
    'prompts', None, 'File of prompts, .txt or .jsonl.', flag_values=values
  )
  flags.DEFINE_string(
    'out', None, 'File for the answers to --prompts.', flag_values=values
  )
  texts(
    *('stop', []),
    'Text that ends a sample, of any number of tokens; may be repeated.',
  )
  cli.define_drawing(values)
  number = functools.partial(cli.number, values)
  number('num_samples', 1, 'Continuations of each prompt.', ranges.Count)
  number('rows', 8, 'Continuations drawn together.', ranges.Count)
  cli.define_weights(values)
  cli.define_draft(values)
  flags.DEFINE_enum(
    *('truncate', 'none', ['none', 'left']),
    'What happens to a prompt that is longer than the context: it is refused, '
    'or loses its beginning (a chat its oldest messages).',
    flag_values=values,
  )
  flags.DEFINE_bool('json', False, 'Print one JSON object.', flag_values=values)
  flags.DEFINE_bool(
    'stream',
    None,
    'Print each token as it comes; by default one sample on a terminal.',
    flag_values=values,
  )


class _Model(NamedTuple):
  """What draws."""

  workdir: str
  engine: Engine
  tokenizer: Tokenizer
  context_length: int
  key: str  # of its config and its step
  draft: str | None  # what proposes to it, and how much

  def template(self) -> ChatTemplate | None:
    """Its chat template."""
    return ChatTemplate.load(os.path.join(self.workdir, 'tokenizer'))


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  prompts = _prompts(args)
  options = Options(
    max_tokens=args.max_tokens,
    sampler=Sampler(
      args.temperature,
      args.top_k,
      args.top_p,
      args.min_p,
      args.repetition_penalty,
    ),
    seed=args.seed,
    num_samples=args.num_samples,
    stop=tuple(args.stop),
    truncate=args.truncate,
  )
  trained = trained_lib.load(args.workdir)
  parts, draft, proposing = trained.parts, None, None
  if args.draft:
    draft = trained_lib.load_draft(args.draft, trained, args.draft_tokens)
    proposing = (
      f'{trained_lib.config_key(args.draft)}, {args.draft_tokens} tokens'
    )
  model = _Model(
    args.workdir,
    Engine(
      *trained_lib.decoder(trained, args.weights),
      slots=args.rows,
      draft=draft,
      keep=0 if prompts else 1,  # a session's next turn begins as this one
    ),
    trained.tokenizer,
    parts.model.context_length,
    f'{trained_lib.config_key(args.workdir)}, step {int(trained.state.step)}',
    proposing,
  )
  with sharding.use(parts.mesh, parts.rules):
    if not prompts:
      speed = _talk(model, options)
    elif args.out:
      speed = _write(args, model, prompts, options)
    else:
      speed = _print(args, model, prompts, options)
  if speed.num_tokens:
    log.info('%s', speed)
  if model.draft:
    log.info('%s', model.engine.proposals)


def _prompts(args: cli.Args) -> list[Prompt]:
  """The prompts that are asked for; none: a session.

  Raises:
    UsageError: flags do not go together, or a prompt is empty.
  """
  if not all(args.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  if bool(args.prompts) != bool(args.out):
    raise UsageError('--prompts and --out go together; give both')
  if args.prompts and args.prompt:
    raise UsageError('give one of --prompt and --prompts; see --help')
  if args.out and (args.json or args.stream):
    raise UsageError(f'--out={args.out}: give neither --json nor --stream')
  several = len(args.prompt) > 1 or args.num_samples > 1 or args.json
  if args.stream and several:
    raise UsageError('--stream shows one sample; leave it out, or ask for one')
  if args.prompts:
    cli.check_out_file(args, 'out')
    return prompt_files.read(args.prompts)
  if not args.prompt and (args.json or args.num_samples > 1):
    raise UsageError(
      '--prompt is missing: a session has neither --json nor --num_samples; '
      'give a text to continue'
    )
  return prompt_files.given(args.prompt)


def _fitted(
  model: _Model, prompt: Prompt, template: ChatTemplate | None, options: Options
) -> list[int]:
  return continuations.fitted(
    prompt.ids(model.tokenizer, template),
    model.tokenizer,
    options,
    context_length=model.context_length,
    where=prompt.where,
  )


def _talk(model: _Model, options: Options) -> Speed:
  """Holds a session."""
  session = session_lib.Session(
    model.engine,
    model.tokenizer,
    model.template(),
    options,
    context_length=model.context_length,
  )
  session_lib.run(session)
  return session.speed


def _print(
  args: cli.Args, model: _Model, prompts: list[Prompt], options: Options
) -> Speed:
  """Prints the samples, in the order of the prompts."""
  speed, tokenizer = Speed(), model.tokenizer
  ids = [_fitted(model, prompt, None, options) for prompt in prompts]
  length = {'context_length': model.context_length}
  one = len(prompts) == options.num_samples == 1 and not args.json
  if one and (sys.stdout.isatty() if args.stream is None else args.stream):
    print(tokenizer.decode(ids[0]), end='', flush=True)
    rows = continuations.rows(ids[0], tokenizer, options, **length)
    for piece in continuations.decode(model.engine, rows, speed=speed):
      print(piece.text, end='', flush=True)
    print()
    return speed
  found = dict(
    continuations.complete(
      model.engine, tokenizer, ids, options, speed=speed, **length
    )
  )
  entries: list[dict[str, Any]] = []
  for number, prompt in enumerate(prompts):
    start = tokenizer.decode(ids[number])
    samples = [start + sample.text for sample in found[number]]
    finish = [sample.finish for sample in found[number]]
    if not args.json:
      print(*(['\n'] if number else []), '\n\n'.join(samples), sep='')
    entries.append({**prompt.fields, 'samples': samples, 'finish': finish})
  if args.json:
    found = {'prompts': entries, 'tokens_per_second': speed.tokens_per_second}
    if model.draft:
      found['draft'] = model.engine.proposals._asdict()
    print(json.dumps(found))
  return speed


def _write(
  args: cli.Args, model: _Model, prompts: list[Prompt], options: Options
) -> Speed:
  """Writes the results to --out, those that are not there yet."""
  template = model.template() if any(p.messages for p in prompts) else None
  ids = [_fitted(model, prompt, template, options) for prompt in prompts]
  settings = {name: getattr(args, name) for name in _SETTINGS}
  key = {'model': model.key, 'set of prompts': prompt_files.digest(prompts)}
  if model.draft:
    key['draft'] = model.draft
  if args.weights != 'float':
    key['kind of weights'] = args.weights
  results = prompt_files.Results(args.out, settings | key)
  todo = [i for i in range(len(prompts)) if i not in results.rows]
  if len(todo) < len(prompts):
    log.info('%s: %d prompts are done', args.out, len(prompts) - len(todo))
  speed = Speed()
  with contextlib.closing(results), progress.bar('prompts') as report:
    for number, found in continuations.complete(
      model.engine,
      model.tokenizer,
      [ids[i] for i in todo],
      options,
      context_length=model.context_length,
      speed=speed,
    ):
      index = todo[number]
      entries = [continuation._asdict() for continuation in found]
      results.add(index, {**prompts[index].fields, 'continuations': entries})
      report('continuing', len(results.rows), len(prompts))
  results.finish()
  return speed
