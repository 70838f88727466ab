# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Continues prompts, generates outputs for sources, or chats, with a model.

  gpt-jax generate --workdir workdirs/smoke --prompt 'def main('
  gpt-jax generate --workdir W --prompt 'Once' --num_samples=3 --seed=1 \
    --temperature=0.8 --top_k=50 --stop='The end' --stop='!'
  gpt-jax generate --workdir W --prompt 'Once' --prompt 'Twice' --json
  cat story.txt | gpt-jax generate --workdir W --prompt - --truncate left
  gpt-jax generate --workdir W --prompts in.jsonl --out out.jsonl --rows 32
  gpt-jax generate --workdir W --draft SMALLER --prompt 'Once'
  gpt-jax generate --workdir T --source 'Ein Hund.' --beam 4 --penalty gnmt \
    --length_penalty=0.6 --average 5
  gpt-jax generate --workdir T --sources in.de --out out.jsonl --rows 32
  gpt-jax generate --workdir W

Prints each sample: the prompt and its continuation; a single sample on a
terminal is printed as it is sampled. A sample ends with the document, before a
text of --stop, or after --max_tokens. --rows prompts are continued at a time,
independently of each other.

--prompts is a .txt with a prompt a line, or a .jsonl of objects with `prompt`,
or with `messages` for the model's chat template. A line of --out has the
prompt's `index` (from 0), the prompt, and its `continuations`, each with
`text`, `tokens` and `finish` ('stop' or 'length'). The same command resumes;
FILE.run records the model, prompts and settings of --out.

Encoder-decoders, UniLM and prefix LMs generate an output for each source text:
--source, or --sources, a file of lines, or a .jsonl of objects with `source`.
Without --max_tokens an output has at most 50 tokens more than its source, and
in UniLM and prefix LMs at most half of the context.

With --beam N, beam search follows N hypotheses and returns the best
--num_samples instead of sampling. A score is the sum of the log-probabilities
divided by length^P, where P is --length_penalty; with --penalty gnmt by
((5 + length) / 6)^P.

--best_of N --reward FOLDER takes N samples and prints the --num_samples that a
reward model scores highest, with these scores.

--average N decodes with the mean of the parameters of the last N checkpoints.

--draft is the workdir of a smaller model with the same tokenizer. It proposes
--draft_tokens at a time, which the model accepts or rejects in one pass
(speculative decoding). The text has the same distribution as without a draft;
with --temperature=0 it is the same text.

Without a prompt it starts a session, which answers each line typed or piped in;
/help lists its commands. A model with a chat template gets the lines as
messages; any other model continues one growing text.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.files import progress
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding import files as files_lib
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.decoding.files import Prompt, ResultsFile, SourceEntry
from gpt_jax.decoding.settings import PENALTIES, Sampler, beam
from gpt_jax.flags import Flags, changed

with cli.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.decoding import session
  from gpt_jax.decoding import texts as texts_lib
  from gpt_jax.opening import models as trained_lib
  from gpt_jax.tuning import best_of, rewards

# Flags that the results in --out depend on, besides the model and the prompts.
_SETTINGS = (
  'max_tokens',
  'temperature',
  'top_k',
  'top_p',
  'min_p',
  'seed',
  'stop',
  'repetition_penalty',
  'num_samples',
  'truncate',
)
# The defaults of flags for sampling.
_DRAWING = {**{'seed': 0, 'stop': [], 'draft': None, 'reward': None}, **Sampler()._asdict()}


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a trained run.')
  flags.texts('prompt', 'The text to continue, or - for standard input; may be repeated.')
  flags.path('prompts', None, 'File of prompts, .txt or .jsonl.')
  flags.texts('source', 'A source text to answer, or - for standard input; may be repeated.')
  flags.path('sources', None, 'File of sources, lines or .jsonl.')
  flags.path('out', None, 'File for the results of --prompts or --sources.', written=True)
  flags.texts('stop', 'Text before which a sample ends; may be repeated.')
  flags.drawing()
  flags.number('num_samples', 1, 'Samples of each prompt.', ranges.Count)
  flags.best_of()
  flags.number('rows', 8, 'Samples at a time; with --beam, texts searched at a time.', ranges.Count)
  flags.weights()
  flags.average()
  flags.draft()
  flags.beam([*PENALTIES])
  flags.choice(
    'truncate',
    'none',
    ['none', 'left'],
    'Refuse a prompt that is longer than the context, or drop its beginning '
    '(of a chat, its oldest messages).',
  )
  flags.json()
  flags.switch(
    'stream',
    'Print tokens as they are sampled; default: for one sample on a terminal.',
    default=None,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  _check(args)
  texts = _texts(args)
  config = trained_lib.read_config(args.workdir)
  answers_sources = trained_lib.answers_sources(config)
  _check_model(args, answers=answers_sources)
  trained = trained_lib.load(args.workdir, 'write', args.average)
  draft = None
  if args.draft:
    draft = trained_lib.load_draft(args.draft, trained, args.draft_tokens)
  reward = rewards.open_reward(args.reward) if args.reward else None
  options = texts_lib.Options(
    max_tokens=args.max_tokens,
    sampler=Sampler(*(getattr(args, name) for name in Sampler._fields)),
    seed=args.seed,
    num_samples=args.best_of if args.reward else args.num_samples,
    stop=tuple(args.stop),
    truncate=args.truncate,
  )
  model = texts_lib.TextGenerator(
    trained.decoder(args.weights),
    trained.tokenizer,
    options,
    rows=args.rows,
    sources=trained_lib.source_format(trained.parts, trained.tokenizer),
    beam=beam(args),
    draft=draft,
    keep=0 if texts else 1,  # a session's next turn begins as this one
  )
  with sharding.use(trained.parts.mesh, trained.parts.rules):
    if not texts:
      session.run(session.Session(model, _template(args)))
    elif args.out:
      _write(args, model, texts, _key(args, trained), reward)
    else:
      _print(args, model, texts, reward)
  if model.speed.num_tokens:
    log.info('%s', model.speed)
  if args.draft:
    log.info('%s', model.engine.proposals)


def _texts(args: cli.Args) -> Sequence[Prompt | SourceEntry]:
  """The given prompts or sources; none: a session."""
  if args.out:
    cli.check_out_file(args, 'out')
  if args.sources:
    return files_lib.read_sources(args.sources)
  if args.prompts:
    return files_lib.read(args.prompts)
  if args.source:
    flag = '--source'
    return [SourceEntry(flag, text) for text in files_lib.typed(flag, args.source)]
  flag = '--prompt'
  return [Prompt(flag, text) for text in files_lib.typed(flag, args.prompt)]


def _key(args: cli.Args, trained: 'trained_lib.Trained') -> dict[str, str]:
  """What results depend on besides `_SETTINGS` and the texts."""
  step = int(trained.state.step)
  key = {'model': f'{trained_lib.config_key(args.workdir)}, step {step}'}
  if args.draft:
    draft = trained_lib.config_key(args.draft)
    key['draft'] = f'{draft}, {args.draft_tokens} tokens'
  if args.weights != 'float':
    key['kind of weights'] = args.weights
  if trained.averaged:
    key['average of steps'] = ', '.join(map(str, trained.averaged))
  if args.reward:
    named = trained_lib.config_key(args.reward)
    key['reward model'] = f'{named}, best of {args.best_of}'
  if searched := beam(args):
    key['beam search'] = str(searched)
  return key


def _template(args: cli.Args) -> ChatTemplate | None:
  return ChatTemplate.load(os.path.join(args.workdir, 'tokenizer'))


def _best(
  args: cli.Args,
  reward: 'rewards.Scorer',
  text: Prompt | SourceEntry,
  found: 'list[texts_lib.Continuation]',
) -> 'list[texts_lib.Continuation]':
  """The --num_samples samples of a prompt with the highest rewards."""
  assert isinstance(text, Prompt)
  prompt = [*text.messages] if text.messages else text.text
  assert prompt is not None
  ranked = best_of.rank(reward, prompt, [x.text for x in found])
  return [found[i]._replace(score=x) for i, x in ranked[: args.num_samples]]


def _print(
  args: cli.Args,
  model: 'texts_lib.TextGenerator',
  texts: Sequence[Prompt | SourceEntry],
  reward: 'rewards.Scorer | None',
) -> None:
  """Prints the samples, in the order of the texts."""
  requests = model.requests(texts)
  drawn = not (args.json or args.beam)
  one = drawn and len(texts) == model.options.num_samples == 1
  if one and (sys.stdout.isatty() if args.stream is None else args.stream):
    print(model.tokenizer.decode(requests[0].shown), end='', flush=True)
    for piece in model.stream(requests[0]):
      print(piece, end='', flush=True)
    print()
    return
  found, entries = dict(model.complete(requests)), []
  if reward:
    found = {i: _best(args, reward, texts[i], own) for i, own in found.items()}
  for number, (text, request) in enumerate(zip(texts, requests, strict=True)):
    start = model.tokenizer.decode(request.shown)
    samples = [start + sample.text for sample in found[number]]
    finish = [sample.finish for sample in found[number]]
    entry = {**text.fields, 'samples': samples, 'finish': finish}
    scores = [x.score for x in found[number] if x.score is not None]
    entries.append(entry | ({'scores': scores} if scores else {}))
    if not args.json:
      apart = ['\n'] if number and isinstance(text, Prompt) else []
      print(*apart, '\n\n'.join(samples), sep='')
  if args.json:
    rate = model.speed.tokens_per_second
    out = {_kind(args): entries, 'tokens_per_second': rate}
    if args.draft:
      out['draft'] = model.engine.proposals._asdict()
    print(json.dumps(out))


def _write(
  args: cli.Args,
  model: 'texts_lib.TextGenerator',
  texts: Sequence[Prompt | SourceEntry],
  key: dict[str, str],
  reward: 'rewards.Scorer | None',
) -> None:
  """Writes the results that --out does not have yet."""
  template = None
  if any(isinstance(text, Prompt) and text.messages for text in texts):
    template = _template(args)
  requests = model.requests(texts, template)
  settings = {name: getattr(args, name) for name in _SETTINGS}
  key = {**key, f'set of {_kind(args)}': files_lib.digest(texts)}
  results = ResultsFile(args.out, settings | key)
  if results.rows:
    log.info('%s: %d %s are done', args.out, len(results.rows), _kind(args))
  todo = [i for i in range(len(texts)) if i not in results.rows]
  with contextlib.closing(results), progress.bar(_kind(args)) as report:
    for number, found in model.complete([requests[i] for i in todo]):
      index = todo[number]
      found = _best(args, reward, texts[index], found) if reward else found
      entries = [continuation.fields for continuation in found]
      fields = {**texts[index].fields, 'continuations': entries}
      results.add(index, fields)
      report('answering', len(results.rows), len(texts))
  results.finish()


def _kind(args: cli.Args) -> str:
  return 'sources' if args.source or args.sources else 'prompts'


def _check(args: cli.Args) -> None:
  """Checks combinations of flags."""
  if not all(args.stop):
    raise UsageError('--stop is empty; give a text, or leave the flag out')
  files = bool(args.prompts) + bool(args.sources)
  if files != bool(args.out):
    raise UsageError('--out: needs --prompts or --sources, and these need --out; give both')
  kinds = ('prompt', 'prompts', 'source', 'sources')
  given = [f'--{kind}' for kind in kinds if getattr(args, kind)]
  if len(given) > 1:
    raise UsageError(f'give one of {" and ".join(given)}; see --help')
  if args.truncate != 'none' and (args.source or args.sources):
    raise UsageError(
      f'--truncate={args.truncate}: works with prompts only, since a long '
      'source always loses its last tokens; leave it out'
    )
  if args.out and (args.json or args.stream):
    raise UsageError(f'--out={args.out}: works without --json and --stream; leave them out')
  texts = len(args.prompt) + len(args.source)
  if args.stream and (texts > 1 or args.num_samples > 1 or args.json):
    raise UsageError('--stream: shows one sample without --json; leave it out, or ask for one')
  if not given and (args.json or args.num_samples > 1):
    raise UsageError(
      '--prompt is missing; give it, or leave out --json and --num_samples for a session'
    )
  best_of.check(args.best_of, args.num_samples, args.reward)
  if args.reward and (not given or args.source or args.sources or args.stream):
    raise UsageError(
      f'--reward={args.reward}: needs whole continuations of prompts; give '
      '--prompt or --prompts, and no --stream'
    )
  if beam(args):
    _check_beam(args, given)


def _check_model(args: cli.Args, *, answers: bool) -> None:
  """Checks that the model takes the kind of text; `answers`: sources."""
  sources = bool(args.source or args.sources)
  if answers and not sources:
    raise UsageError(
      f'--workdir={args.workdir}: holds a model that reads a source; give --source or --sources'
    )
  if sources and not answers:
    raise UsageError(
      f'--workdir={args.workdir}: holds neither an encoder-decoder nor a UniLM '
      'trained to write, so it reads no source; give --prompt or --prompts'
    )


def _check_beam(args: cli.Args, given: list[str]) -> None:
  if not given:
    raise UsageError(f'--beam={args.beam}: does not work in a session; give --prompt or --source')
  if drawing := changed(args, _DRAWING):
    raise UsageError(
      f'--beam={args.beam}: does not sample, so --{drawing} has no effect; leave one of them out'
    )
  if args.stream:
    raise UsageError(
      f'--beam={args.beam}: beam search cannot stream, since its answer is '
      'known only at the end; leave --stream out'
    )
  if args.num_samples > args.beam:
    raise UsageError(
      f'--num_samples={args.num_samples}: must be at most --beam={args.beam}; give a larger --beam'
    )
