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

With --best_of N --reward FOLDER the server samples N continuations of each
prompt and answers with those that the reward model scores highest. A stream
then has each choice as a whole. Requests may ask for another number with
`best_of`.

On SIGTERM or Ctrl-C the server accepts no more requests, finishes open ones
within --drain_seconds, refuses the rest, and ends with exit code 0.
Needs the extra `serve`.
"""

import contextlib
import functools
import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpt_jax import cli
from gpt_jax.core import ranges
from gpt_jax.core.files import progress
from gpt_jax.core.runtime.log import log
from gpt_jax.core.spec import UsageError, install
from gpt_jax.decoding.chat import ChatTemplate
from gpt_jax.flags import Flags

if TYPE_CHECKING:
  from gpt_jax.decoding.engine import Engine

with cli.lazy_imports():
  from gpt_jax.core import sharding
  from gpt_jax.core.runtime import programs
  from gpt_jax.decoding import engine, speculative
  from gpt_jax.opening import models as trained_lib
  from gpt_jax.tuning import best_of, rewards


# Between lines on programs that are compiled.
_EVERY_SECONDS = 10.0


def define(flags: Flags) -> None:
  """Adds this command's flags."""
  flags.workdir('Folder of a trained run.')
  flags.text('host', '127.0.0.1', 'Address to listen at; 0.0.0.0: all.')
  flags.number('port', 8000, 'Port; 0: any free one.', ranges.Port)
  flags.words(
    'allowed_hosts',
    '',
    'Comma-separated list of names by which clients reach the server, besides '
    'localhost, --host and the address, such as models.example.com; *: any.',
  )
  flags.path(
    'api_key_file',
    None,
    'File with the key that requests must send (Authorization: Bearer KEY), '
    'readable by you alone; empty: GPT_JAX_API_KEY, or no key.',
  )
  flags.text('name', None, "Name of the model for clients; default: the workdir's name.")
  flags.number('rows', 8, 'Continuations sampled at a time.', ranges.Count)
  flags.weights()
  flags.draft()
  flags.words(
    'warm_up',
    '',
    'Before the server is ready, compile the programs for requests of these '
    'sizes first, however long it takes: a comma-separated list of PROMPT+NEW '
    'tokens, as in 40+16,400+512.',
  )
  flags.number(
    'warm_up_seconds',
    180,
    'Maximum time to compile programs of all sizes before the server is '
    'ready, short ones first; 0: none. The rest are compiled when a request '
    'first needs them, while every client waits.',
    ranges.Whole,
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
    'Number of finished continuations whose caches are kept, at full size. If '
    'a prompt begins like one of them, only the rest of it is read.',
    ranges.Whole,
  )
  flags.number(
    'max_tokens',
    None,
    'Maximum tokens that a request may ask for; empty: the context.',
    ranges.Count,
  )
  flags.number('max_body_bytes', 2**20, 'The largest body of a request.', ranges.Count)
  flags.number(
    'max_connections',
    512,
    'Maximum open connections. Beyond that, a new one closes the connection '
    'whose client the server has awaited for longest; if there is none, the '
    'new one is refused with status 503.',
    ranges.Count,
  )
  flags.number(
    'drain_seconds',
    30,
    'How long open requests may take to finish when the server stops.',
    ranges.Whole,
  )
  flags.number(
    'log_seconds', 10.0, 'Log speed and load after this many seconds of work.', ranges.Seconds
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  sizes = [_size(text) for text in args.warm_up]
  best_of.check(args.best_of, 1, args.reward)
  try:
    from gpt_jax.serving import access, endpoints, server, worker
    from gpt_jax.serving.requests import ServedModel
    from gpt_jax.serving.server import ConnectionLimits, reserve_files
  except ModuleNotFoundError as e:
    raise UsageError(f'{e.name} is missing; run {install("serve")}') from e
  # Loading takes minutes: the key and the address are checked first.
  allowed = access.Access(
    bound_host=args.host,
    allowed_hosts=access.read_allowed_hosts(args.allowed_hosts),
    key=access.read_key(args.api_key_file),
  )
  limits = ConnectionLimits(connections=args.max_connections)
  reserve_files(limits)
  with server.bind(args.host, args.port) as bound:
    address = bound.getsockname()[0]
    if not (allowed.key or access.is_loopback(address)):
      log.warning(
        '%s: whoever can reach this address may use the model; give a key '
        'with --api_key_file or %s',
        address,
        access.KEY_VARIABLE,
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
    served = ServedModel(
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
    make = functools.partial(engine.Engine, decoder, slots=args.rows, draft=draft)
    within = functools.partial(sharding.use, parts.mesh, parts.rules)
    with within():
      _warm_up(make, sizes, args.warm_up_seconds)
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
      _say, served.name, server.url(bound), allowed.key is not None, served.template is not None
    )
    running = server.LoggingServer(
      application, drain_seconds=args.drain_seconds, limits=limits, started=started
    )
    server.run(running, working, bound)


def _size(text: str) -> tuple[int, int]:
  """The tokens of PROMPT+NEW."""
  found = re.fullmatch(r'\s*(\d{1,9})\+(\d{1,9})\s*', text)
  if not found or int(found[1]) < 1 or int(found[2]) < 2:
    raise UsageError(f'--warm_up={text}: give PROMPT+NEW, at least 1 and 2 tokens, as in 40+16')
  return int(found[1]), int(found[2])


def _warm_up(make: 'Callable[[], Engine]', sizes: Sequence[tuple[int, int]], seconds: int) -> None:
  """Compiles the given sizes, then all others for at most `seconds`."""
  # Most take less than a second.
  programs.keep_quick()
  for prompt, new in sizes:
    log.info('compiling for prompts of %d tokens, and %d more', prompt, new)
    warm = make()
    with _reports() as report:
      report(0, len(warm.sizes))
      for done, _ in enumerate(engine.warm_up(warm, prompt, new), start=1):
        report(done, len(warm.sizes))
  if seconds:
    log.info(
      'compiling for all sizes, for up to %d s; --warm_up_seconds=0 starts at '
      'once, and compiles as requests come',
      seconds,
    )
    with _reports() as report:
      whole = engine.warm_up_all(make(), seconds, report)
    if not whole:
      log.warning(
        '--warm_up_seconds=%d: long prompts and full batches wait for their '
        'programs when they first come; a later start finds those that are '
        'compiled, and goes on',
        seconds,
      )


@contextlib.contextmanager
def _reports() -> Iterator[Callable[[int, int], None]]:
  """Yields what takes the number of sizes compiled, and of all; logs them."""
  start, counts = time.monotonic(), (0, 0)

  def say() -> None:
    done, total = counts
    log.info('compiled %d of %d sizes in %.0f s', done, total, time.monotonic() - start)

  def report(*new: int) -> None:
    nonlocal counts
    counts = new

  with progress.every(_EVERY_SECONDS, say):
    yield report
  say()


def _say(name: str, url: str, needs_key: bool, chats: bool) -> None:
  key = "-H 'Authorization: Bearer KEY' " if needs_key else ''
  path, asked = 'completions', '"prompt": "Once"'
  if chats:
    path = 'chat/completions'
    asked = '"messages": [{"role": "user", "content": "Hello"}]'
  print(
    f'{name} is served at {url}/v1, and on a page at {url}\n'
    f"try: curl {url}/v1/{path} {key}-H 'Content-Type: application/json' "
    f'-d \'{{{asked}, "max_tokens": 20}}\'',
    flush=True,
  )
  log.info('ready')
