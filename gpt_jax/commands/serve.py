# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Serves a trained model over HTTP, as OpenAI's API does.

  gpt-jax serve --workdir workdirs/smoke
  gpt-jax serve --workdir W --host 0.0.0.0 --port 8080 --name mine --rows 32
  gpt-jax serve --workdir W --draft SMALLER

A browser shows a page at http://127.0.0.1:8000, on which you write and the
model answers. Any client of that API works, such as OpenAI's:

  from openai import OpenAI
  client = OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none')
  print(client.completions.create(model='smoke', prompt='def main('))

or curl, with -N for streams:

  curl -N http://127.0.0.1:8000/v1/completions \
    -H 'Content-Type: application/json' \
    -d '{"prompt": "def main(", "max_tokens": 40, "stream": true}'

Paths: /v1/completions, /v1/chat/completions (for models with a chat template),
/v1/models, /health. Requests are batched continuously: a request starts as soon
as a row is free, and its text does not depend on other requests. The same seed
gives the same text.

The server listens on 127.0.0.1 unless --host names another address. To serve
others, give clients a key, and list the names by which they reach the server:

  (umask 077; openssl rand -hex 32 > key)
  gpt-jax serve --workdir W --host 0.0.0.0 --api_key_file key \
    --allowed_hosts models.example.com

The key may also be in the environment, as GPT_JAX_API_KEY. There is no TLS: use
a proxy in front of the server on networks that are not yours. Requests for
other host names and from pages of other sites are refused, so that no page in
your browser can use a server at 127.0.0.1.

With --best_of N --reward FOLDER the server draws N continuations of each prompt
and answers with those that the reward model scores highest. A stream then has
each choice as a whole. Requests may ask for another number with `best_of`.

On SIGTERM or Ctrl-C the server accepts no more requests, finishes open ones
within --drain_seconds, refuses the rest, and ends with exit code 0.
Needs the extra `serve`.
"""

import functools
import gc
import os
import re

from gpt_jax import cli, ranges
from gpt_jax.flags import Flags
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError, install
from gpt_jax.tokenizers.chat import ChatTemplate

with cli.lazy_imports():
  from gpt_jax import sharding
  from gpt_jax.decoding import engine, speculative
  from gpt_jax.posttraining import best_of, rewards
  from gpt_jax.training import models as trained_lib


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a trained run.')
  flags.text('host', '127.0.0.1', 'Address to listen at; 0.0.0.0: all.')
  flags.number('port', 8000, 'Port; 0: any free one.', ranges.Port)
  flags.words(
    'allowed_hosts',
    '',
    'Comma list of names by which clients reach the server, besides localhost, '
    '--host and the address, such as models.example.com; *: any.',
  )
  flags.text(
    'api_key_file',
    None,
    'File with the key that requests must send (Authorization: Bearer KEY), '
    'readable by you alone; empty: GPT_JAX_API_KEY, or no key.',
  )
  flags.text(
    'name', None, "Name of the model for clients; default: the workdir's name."
  )
  flags.number('rows', 8, 'Continuations sampled at a time.', ranges.Count)
  flags.weights()
  flags.draft()
  flags.words(
    'warm_up',
    '',
    'Before the server is ready, compile the programs for requests of these '
    'sizes: a comma list of PROMPT+NEW tokens, as in 40+16,400+512.',
  )
  flags.number(
    'max_waiting',
    256,
    'Continuations that may wait; more are refused with status 429.',
    ranges.Whole,
  )
  flags.best_of()
  flags.number(
    'keep',
    1,
    'Finished continuations whose caches are kept, each as large as while it '
    'ran: of a prompt that begins like one of them, only the rest is read.',
    ranges.Whole,
  )
  flags.number(
    'max_tokens',
    None,
    'Maximum tokens that a request may ask for; empty: the context.',
    ranges.Count,
  )
  flags.number(
    'max_body_bytes', 2**20, 'The largest body of a request.', ranges.Count
  )
  flags.number(
    'max_connections',
    512,
    'Maximum open connections. Beyond that, the longest idle one is closed, '
    'or the new one is refused with status 503.',
    ranges.Count,
  )
  flags.number(
    'drain_seconds',
    30,
    'How long open requests may take to finish when the server stops.',
    ranges.Whole,
  )
  flags.number(
    'log_seconds',
    10.0,
    'Log speed and load after this many seconds of work.',
    ranges.Seconds,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  sizes = [_size(text) for text in args.warm_up]
  best_of.check(args.best_of, 1, args.reward)
  try:
    from gpt_jax.serving import access, endpoints, server, worker
    from gpt_jax.serving.requests import Served
    from gpt_jax.serving.server import Limits, reserve_files
  except ModuleNotFoundError as e:
    raise UsageError(f'{e.name} is missing; run {install("serve")}') from e
  # Loading takes minutes: the key and the address are checked first.
  allowed = access.Access(
    bound_host=args.host,
    allowed_hosts=access.read_allowed_hosts(args.allowed_hosts),
    key=access.read_key(args.api_key_file),
  )
  limits = Limits(connections=args.max_connections)
  reserve_files(limits)
  with server.bind(args.host, args.port) as bound:
    address = bound.getsockname()[0]
    if not (allowed.key or access.is_loopback(address)):
      log.warning(
        '%s: whoever can reach this address may use the model; give a key '
        'with --api_key_file or %s',
        *(address, access.KEY_VARIABLE),
      )
    trained = trained_lib.load(args.workdir, 'continue')
    parts = trained.parts
    decoder = trained.decoder(args.weights)
    longest = decoder.model.context_length
    if sizes and max(map(sum, sizes)) > longest:
      raise UsageError(
        f'--warm_up={",".join(args.warm_up)}: exceeds the context of {longest} '
        'tokens; give smaller sizes'
      )
    draft = None
    if args.draft:
      draft = trained_lib.load_draft(args.draft, trained, args.draft_tokens)
      draft = speculative.for_decoding(draft)
    rank = None
    if args.reward:
      rank = functools.partial(best_of.rank, rewards.open_reward(args.reward))
    served = Served(
      name=args.name or os.path.basename(os.path.abspath(args.workdir)),
      tokenizer=trained.tokenizer,
      template=ChatTemplate.load(os.path.join(args.workdir, 'tokenizer')),
      context_length=decoder.model.context_length,
      max_tokens=args.max_tokens or decoder.model.context_length,
      best_of=args.best_of,
      rank=rank,
    )
    # A large request makes many objects, so that Python's garbage collector
    # runs and holds up all threads. It need not look at what stays anyway:
    # modules and the model.
    gc.freeze()
    make = functools.partial(
      engine.Engine, decoder, slots=args.rows, draft=draft
    )
    within = functools.partial(sharding.use, parts.mesh, parts.rules)
    for prompt, new in sizes:
      log.info('compiling for prompts of %d tokens, and %d more', prompt, new)
      with within():
        engine.warm_up(make(), prompt, new)
    working = worker.Worker(
      functools.partial(make, keep=args.keep),
      within=within,
      max_rows=args.rows + args.max_waiting,
      log_seconds=args.log_seconds,
    )
    application = endpoints.build(
      served,
      working,
      access=allowed,
      max_body_bytes=args.max_body_bytes,
      body_seconds=limits.body_seconds,
    )
    started = functools.partial(
      _say, served.name, server.url(bound), allowed.key is not None
    )
    running = server.Server(
      application,
      drain_seconds=args.drain_seconds,
      limits=limits,
      started=started,
    )
    server.run(running, working, bound)


def _size(text: str) -> tuple[int, int]:
  """The tokens of PROMPT+NEW."""
  found = re.fullmatch(r'\s*(\d{1,9})\+(\d{1,9})\s*', text)
  if not found or int(found[1]) < 1 or int(found[2]) < 2:
    raise UsageError(
      f'--warm_up={text}: give PROMPT+NEW, at least 1 and 2 tokens, as in 40+16'
    )
  return int(found[1]), int(found[2])


def _say(name: str, url: str, needs_key: bool) -> None:
  key = "-H 'Authorization: Bearer KEY' " if needs_key else ''
  print(
    f'{name} is served at {url}/v1, and on a page at {url}\n'
    f"try: curl {url}/v1/completions {key}-H 'Content-Type: application/json' "
    '-d \'{"prompt": "Once", "max_tokens": 20}\'',
    flush=True,
  )
  log.info('ready')
