# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Serves a trained model over HTTP, as OpenAI's API does.

  gpt-jax serve --workdir workdirs/smoke
  gpt-jax serve --workdir W --host 0.0.0.0 --port 8080 --name mine --rows 32
  gpt-jax serve --workdir W --draft SMALLER

Any client of that API will do, such as OpenAI's own:

  from openai import OpenAI
  client = OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none')
  print(client.completions.create(model='smoke', prompt='def main('))

or curl, with -N to see a stream as it comes:

  curl -N http://127.0.0.1:8000/v1/completions \
    -d '{"prompt": "def main(", "max_tokens": 40, "stream": true}'

Paths: /v1/completions, /v1/chat/completions (of an import that has a chat
template), /v1/models, /health. Requests share the model token by token: a new
one starts when a row is free, not when the others have ended, and its text
depends on no other request. With a seed it can be had again.

There is no password and no TLS: the address is this machine's own unless
--host says otherwise. Put a proxy before it where others can reach it.

Told to stop (SIGTERM, Ctrl-C) it takes no more requests, finishes those that
are open within --drain_seconds, refuses the rest, and ends with exit code 0.
Needs the extra `serve`.
"""

import functools
import os

from absl import flags

from gpt_jax import cli, ranges, sharding
from gpt_jax.data.tokenizers.chat import ChatTemplate
from gpt_jax.decoding import speculative
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.sampler import never_drawn
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError
from gpt_jax.training import trained as trained_lib


def define(values: flags.FlagValues) -> None:
  """Adds this command's flags."""
  cli.define_workdir(values, 'Folder of a trained run.')
  text = functools.partial(flags.DEFINE_string, flag_values=values)
  number = functools.partial(cli.number, values)
  text('host', '127.0.0.1', 'Address to listen at; 0.0.0.0: all of them.')
  number('port', 8000, 'Port; 0: any that is free.', ranges.Port)
  text('name', None, "What clients call the model; default: the workdir's.")
  number('rows', 8, 'Continuations drawn together.', ranges.Count)
  cli.define_weights(values)
  cli.define_draft(values)
  number(
    'max_waiting',
    256,
    'Continuations that may wait for a row; more are refused with status 429.',
    ranges.Whole,
  )
  number(
    'keep',
    1,
    'Continuations that have ended whose caches are kept, each as large as '
    'when it ran: a prompt that begins as one of them is read from there on.',
    ranges.Whole,
  )
  number(
    'max_tokens',
    None,
    'The most tokens that a request may ask for; empty: what fits the context.',
    ranges.Count,
  )
  number(
    'max_body_bytes', 2**20, 'The longest body of a request.', ranges.Count
  )
  number(
    'drain_seconds',
    30,
    'What is open has so long to finish when the server is told to stop.',
    ranges.Whole,
  )
  number(
    'log_seconds',
    10.0,
    'How often, in seconds of work, speed and load are logged.',
    ranges.Seconds,
  )


def main(args: cli.Args) -> None:
  """Runs the command."""
  cli.required(args, 'workdir')
  try:
    from gpt_jax.serving import app, server, worker
    from gpt_jax.serving.prompts import Served
  except ModuleNotFoundError as e:
    raise UsageError(
      f"{e.name} is missing; run pip install -c constraints.txt -e '.[serve]'"
    ) from e
  # What is amiss with the address is told before the model is loaded.
  with server.bind(args.host, args.port) as bound:
    trained = trained_lib.load(args.workdir)
    parts = trained.parts
    model, params = trained_lib.decoder(trained, args.weights)
    draft = None
    if args.draft:
      draft = trained_lib.load_draft(args.draft, trained, args.draft_tokens)
      draft = speculative.in_place(draft)
    served = Served(
      name=args.name or os.path.basename(os.path.abspath(args.workdir)),
      tokenizer=trained.tokenizer,
      template=ChatTemplate.load(os.path.join(args.workdir, 'tokenizer')),
      context_length=model.context_length,
      max_tokens=args.max_tokens or model.context_length,
    )
    working = worker.Worker(
      lambda: Engine(
        model,
        params,
        slots=args.rows,
        draft=draft,
        keep=args.keep,
        never_V=never_drawn(trained.tokenizer, model.vocab_size),
      ),
      within=functools.partial(sharding.use, parts.mesh, parts.rules),
      max_rows=args.rows + args.max_waiting,
      log_seconds=args.log_seconds,
    )
    application = app.build(served, working, max_body_bytes=args.max_body_bytes)
    started = functools.partial(_say, served.name, server.url(bound))
    running = server.Server(
      application, drain_seconds=args.drain_seconds, started=started
    )
    server.run(running, working, bound)


def _say(name: str, url: str) -> None:
  print(
    f'{name} is served at {url}/v1\n'
    f'try: curl {url}/v1/completions -d '
    '\'{"prompt": "Once", "max_tokens": 20}\'',
    flush=True,
  )
  log.info('ready')
