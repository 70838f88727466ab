# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Runs EleutherAI's lm-eval on our workdirs, as its model `gpt_jax`.

  python -m gpt_jax.evaluation.lm_eval run --model gpt_jax \
    --model_args workdir=W --tasks lambada_openai,hellaswag

This registers the model and runs lm-eval's own command line, since lm-eval has
no other way to register one. Needs the extra `eval`.
"""

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.files import progress
from gpt_jax.core.runtime import libtpu
from gpt_jax.core.spec import UsageError, install, printable
from gpt_jax.decoding import engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import Sampler
from gpt_jax.evaluation import score
from gpt_jax.evaluation.likelihood import windows
from gpt_jax.evaluation.score import Journal, ScoreRequest
from gpt_jax.opening import models as trained_lib

log = logging.getLogger('gpt_jax')


def _library(name: str) -> Any:
  try:
    return importlib.import_module(f'lm_eval.{name}')
  except ImportError as e:
    raise UsageError(f'lm-eval is missing; run {install("eval")}') from e


_Base: Any = _library('api.model').LM


class GptJax(_Base):
  """A trained run as a model of lm-eval.

  Each text follows the tokens that stood before a text in training, such as the
  end of a document: see `Special`.
  """

  def __init__(self, workdir: str, **kwargs: Any):
    """Loads the newest checkpoint of a workdir.

    `kwargs` are lm-eval's own, such as batch_size: rows are batched by
    `eval.rows` of the config.
    """
    del kwargs
    super().__init__()
    self._trained = trained_lib.load(workdir, 'continue')
    self._scorer = score.scorer(self._trained)

  def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
    """Log-probabilities of continuations in nats; whether they are greedy."""
    texts = [
      ScoreRequest(*r.args, where=f'{getattr(r, "task_name", "request")}:{r.doc_id}')
      for r in requests
    ]
    with progress.bar('requests') as report:
      found = self._scorer.requests(texts, Journal(None, ''), report)
    for text, one in zip(texts, found, strict=True):
      if one is None:
        raise UsageError(
          f'{text.where}: the continuation exceeds the context of '
          f'{self._scorer.context_length} tokens'
        )
    return [(s.log_prob, bool(s.greedy)) for s in found if s is not None]

  def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
    """Log-probabilities of whole texts, in disjoint windows."""
    tokenizer = self._scorer.tokenizer
    length = self._scorer.context_length
    before = tokenizer.special.before(first_scored=True)
    rows, owners = [], []
    for number, request in enumerate(requests):
      ids = [*before, *tokenizer.encode(request.args[0])]
      for row in windows(np.array(ids, np.int32), length, length):
        rows.append(row)
        owners.append(number)
    with progress.bar('windows') as report:
      found = self._scorer.rows(rows, Journal(None, ''), report)
    sums = [0.0] * len(requests)
    for owner, one in zip(owners, found, strict=True):
      sums[owner] += one.log_prob
    return sums

  def generate_until(self, requests: Sequence[Any]) -> list[str]:
    """Greedy or sampled continuations up to a stop string."""
    most = self._scorer.context_length // 2
    ways = [_way(request.args[1]) for request in requests]
    longest = max((way.max_tokens for way in ways), default=0)
    if longest > most:
      log.warning(
        'max_gen_toks=%d: half of the context of %d tokens is the prompt, answers end after %d',
        longest,
        self._scorer.context_length,
        most,
      )
    out = []
    decoder = self._trained.decoder()
    with progress.bar('requests') as report:
      for number, (request, way) in enumerate(zip(requests, ways, strict=True)):
        way = way._replace(max_tokens=min(way.max_tokens, most))
        # lm-eval repeats a request to sample several answers.
        text = self._continued(decoder, request.args[0], way, seed=number)
        out.append(text)
        report('answering', number + 1, len(requests))
    return out

  def _continued(self, decoder: Decoder, prompt: str, way: '_Way', *, seed: int) -> str:
    parts, tokenizer = self._trained.parts, self._scorer.tokenizer
    room = self._scorer.context_length - way.max_tokens
    # Truncate long prompts from the left, as lm-eval's other models do.
    ids = [int(i) for i in tokenizer.encode(prompt)]
    ids = [*tokenizer.special.before(first_scored=not ids), *ids][-room:]
    stops = way.stops
    with sharding.use(parts.mesh, parts.rules):
      request = Request(ids, way.max_tokens, way.sampler, seed, stop_ids=tokenizer.special.stop_ids)
      ((_, new),) = engine.generate(
        decoder,
        [request],
        rows=1,
        stop_when=lambda new: any(s in tokenizer.decode(new) for s in stops),
      )
    text = tokenizer.decode(new)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=None)]


class _Way(NamedTuple):
  """Generation options of a request."""

  stops: tuple[str, ...]
  max_tokens: int
  sampler: Sampler


def _way(options: dict[str, Any]) -> _Way:
  """Reads lm-eval's options, some of which have several names."""
  found = _library('models.utils').normalize_gen_kwargs(options)
  temperature = found.get('temperature', 1.0) if found['do_sample'] else 0.0
  top_k, top_p = found.get('top_k'), found.get('top_p')
  return _Way(
    tuple(stop for stop in found['until'] if stop),
    found['max_gen_toks'],
    Sampler(
      temperature=float(temperature),
      top_k=max(int(top_k or 0), 0),  # some libraries use -1 for all
      top_p=1.0 if top_p is None else float(top_p),
    ),
  )


def main() -> int:
  """Runs lm-eval's command line."""
  libtpu.silence()
  try:
    _library('__main__').cli_evaluate()
  except UsageError as e:
    print(f'gpt_jax.evaluation.lm_eval: {printable(str(e))}', file=sys.stderr)
    return 2
  return 0


_library('api.registry').register_model('gpt_jax')(GptJax)

if __name__ == '__main__':
  sys.exit(main())
