# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How long the clients of `serve` wait for their answers under load.

A server on loopback, with random weights, and clients in another process. Each
client sends one request after another: prompts and answers of many lengths,
greedy and sampled, with each option that needs more of a step. The clock starts
with the first request, when the server is ready: what is compiled after that,
someone waits for.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import http.client
import json
import multiprocessing
import pathlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from gpt_jax.benchmarks.decode import random_params
from gpt_jax.core.config import Config
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import FailedError, UsageError, install
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.decoding.engine import Engine, warm_up_all
from gpt_jax.decoding.programs import Decoder

try:
  from gpt_jax.serving import endpoints, server
  from gpt_jax.serving.access import Access
  from gpt_jax.serving.requests import ServedModel
  from gpt_jax.serving.worker import Worker
except ModuleNotFoundError as e:
  raise UsageError(f'{e.name} is missing; run {install("serve")}') from e

# As `serve` has them by default.
ROWS, WAITING, WARM_UP_SECONDS = 8, 256, 180
# Of which each request takes one.
OPTIONS: tuple[dict[str, Any], ...] = (
  {'temperature': 0},
  {},
  {'top_k': 20},
  {'top_p': 0.9},
  {'top_k': 20, 'top_p': 0.9},
  {'repetition_penalty': 1.2},
  {'logprobs': 2},
  {'n': 3},
)
_SECONDS_TO_END = 60


def measure(config: Config, clients: int, seconds: int) -> dict[str, Any]:
  """Serves `clients` at a time for `seconds`.

  Returns:
    The number of requests, the percentiles of their seconds, tokens per second,
    the seconds of the start, the programs compiled after it, and by how much
    memory grew.
  """
  model = make_model(**config.model)
  params = random_params(Causal().bind(model), config.seed)
  decoder = Decoder.of(model, params, Bytes())
  make = functools.partial(Engine, decoder, slots=ROWS)
  programs: list[float] = []

  def compiled(event: str, duration_secs: float, **_: Any) -> None:
    if event == '/jax/core/compile/backend_compile_duration':
      programs.append(duration_secs)

  start = time.monotonic()
  warm_up_all(make(), WARM_UP_SECONDS)
  warm_up_seconds = time.monotonic() - start
  with _serving(make, model.context_length) as address:
    memory = _resident()
    jax.monitoring.register_event_duration_secs_listener(compiled)
    # A process of its own: the clients must not hold the server's lock.
    spawn = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
      sizes = model.context_length, min(model.vocab_size, 256)
      answers = pool.submit(ask, address, clients, seconds, sizes).result()
    grown = _resident() - memory
    jax.monitoring.unregister_event_duration_listener(compiled)
  waits = [wait for wait, _ in answers]
  return {
    'clients': clients,
    'seconds': seconds,
    'requests': len(waits),
    'tokens_per_second': sum(tokens for _, tokens in answers) / seconds,
    'percentiles': {f'{q}': float(np.percentile(waits, q)) for q in (50, 90, 99, 100)},
    'warm_up_seconds': warm_up_seconds,
    'programs': len(programs),
    'program_seconds': sum(programs),
    'grown_bytes': grown,
  }


def report(result: dict[str, Any]) -> str:
  """Formats the result."""
  waits = result['percentiles']
  return (
    f'warmed up in {result["warm_up_seconds"]:.1f} s\n'
    f'{result["clients"]} clients, {result["seconds"]} s: '
    f'{result["requests"]:,} requests, '
    f'{result["tokens_per_second"]:,.0f} tokens/s\n'
    f'seconds of a request: median {waits["50"]:.2f}, 90% {waits["90"]:.2f}, '
    f'99% {waits["99"]:.2f}, longest {waits["100"]:.2f}\n'
    f'compiled meanwhile: {result["programs"]} programs in '
    f'{result["program_seconds"]:.1f} s; memory grew by '
    f'{result["grown_bytes"] / 2**20:,.0f} MiB'
  )


@contextlib.contextmanager
def _serving(make: Any, context_length: int) -> Iterator[tuple[str, int]]:
  """A server on loopback, ready for requests; yields its address."""
  worker = Worker(make, max_rows=ROWS + WAITING, log_seconds=1e9)
  limits = server.ConnectionLimits()
  application = endpoints.build(
    ServedModel('model', Bytes(), None, context_length, context_length),
    worker,
    access=Access(),
    max_body_bytes=2**20,
    body_seconds=limits.body_seconds,
  )
  ready = threading.Event()
  running = server.LoggingServer(application, drain_seconds=1, limits=limits, started=ready.set)
  with server.bind('127.0.0.1', 0) as bound:
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(running, worker, bound)))
    thread.start()
    try:
      ready.wait()
      yield bound.getsockname()[:2]
    finally:
      running.should_exit = True
      thread.join()


def ask(
  address: tuple[str, int], clients: int, seconds: float, sizes: tuple[int, int]
) -> list[tuple[float, int]]:
  """Sends requests until the time is over; in another process.

  Args:
    sizes: of the context, and of the ids that prompts are made of.

  Returns:
    Of each request its seconds, and the tokens that it received.
  """
  end = time.monotonic() + seconds

  def client(number: int) -> list[tuple[float, int]]:
    draw, found = random.Random(number), []
    connection = http.client.HTTPConnection(*address, timeout=seconds + _SECONDS_TO_END)
    while time.monotonic() < end:
      start = time.monotonic()
      tokens = _answered(connection, _request(draw, *sizes))
      found.append((time.monotonic() - start, tokens))
    connection.close()
    return found

  with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    return [x for found in pool.map(client, range(clients)) for x in found]


def _request(draw: random.Random, context_length: int, num_ids: int) -> dict[str, Any]:
  """A prompt of up to half of the context; answers are mostly short."""
  half = context_length // 2
  # Even over the powers of two, as the sizes of programs are.
  prompt = min(int(2 ** draw.uniform(0, half.bit_length())), half)
  new = min(int(2 ** draw.uniform(0, 6)), half)
  ids = [draw.randrange(num_ids) for _ in range(prompt)]
  return {
    **{'prompt': ids, 'max_tokens': new, 'seed': draw.randrange(2**32)},
    **draw.choice(OPTIONS),
  }


def _answered(connection: http.client.HTTPConnection, body: dict[str, Any]) -> int:
  """Sends a request; returns how many tokens came back."""
  kind = {'Content-Type': 'application/json'}
  connection.request('POST', '/v1/completions', json.dumps(body), kind)
  response = connection.getresponse()
  answer = json.loads(response.read())
  if response.status != 200:
    raise FailedError(f'status {response.status}: {answer["error"]["message"]}')
  return answer['usage']['completion_tokens']


def _resident() -> int:
  """Bytes of this process in memory."""
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * 4096
