# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scores continuations of contexts, and generates texts, with a trained model.

Rows of similar length are scored together, and what several rows begin with is
read once: see `forward`. Rows are split over the devices like training batches.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epy

from gpt_jax.core.files.progress import Report
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding.settings import BeamSettings, Sampler

with epy.lazy_imports():
  import jax
  import jax.numpy as jnp

  from gpt_jax.core import sharding
  from gpt_jax.core.nn import build, transformer
  from gpt_jax.core.training import parts as parts_lib
  from gpt_jax.decoding import beam as beam_lib
  from gpt_jax.decoding import engine, programs
  from gpt_jax.decoding import requests as requests_lib
  from gpt_jax.decoding import texts as texts_lib
  from gpt_jax.evaluation import forward
  from gpt_jax.opening import models

# Defaults of a batch, for each device.
_MOST_TOKENS = 1 << 14
_MOST_ROWS = 1024
# Keys and values of what rows share, for each device.
_CACHE_BYTES = 1 << 29
# A program takes about a second to compile, ten on an accelerator. In that time
# at least this many tokens, or operations, are computed.
_PROGRAM_TOKENS = 1024
_PROGRAM_FLOPS = 2e10
_PROGRAM_FLOPS_ACCELERATOR = 1e14
_SHORTEST = 16

GREEDY = Sampler(temperature=0)


def batch_limits(
  parts: 'parts_lib.Parts', params: Any, *, rows: int | None, tokens: int | None
) -> 'forward.BatchLimits':
  """The limits of a model's batches.

  Args:
    rows: the most rows of a batch; None: as many as the tokens allow.
    tokens: the most tokens, including padding; None: `eval.rows` rows of the
      whole context, up to 16,384 for each device.
  """
  model, shards = parts.model, parts.num_shards
  default = parts.eval_rows * model.context_length
  each = model.head_size + (model.value_size or model.head_size)
  held = model.num_layers * model.num_kv_heads * each
  held *= jnp.dtype(model.dtype).itemsize
  on_cpu = parts.mesh.devices.flat[0].platform == 'cpu'
  flops = _PROGRAM_FLOPS if on_cpu else _PROGRAM_FLOPS_ACCELERATOR
  of_token = 2 * sum(x.size for x in jax.tree.leaves(params))
  # Nor has a state slots for what several rows begin with.
  alone = _limited(model) or build.ModelChoices.of(model).recurrent
  padded = _powers
  if not _limited(model):
    padded = functools.partial(_multiples, multiple=8 if on_cpu else 128)
  return forward.BatchLimits(
    tokens=tokens or min(default, _MOST_TOKENS * shards),
    rows=rows or _MOST_ROWS * shards,
    cached=0 if alone else _CACHE_BYTES * shards // held,
    shards=shards,
    program=_PROGRAM_TOKENS + int(flops / of_token),
    padded=lambda n: min(padded(n), model.context_length),
  )


def _limited(model: 'transformer.Transformer') -> bool:
  """Whether experts drop tokens, which depends on the whole batch."""
  routers = [ffn.router for ffn in build.ModelChoices.of(model).ffn]
  return any(r is not None and r.limited(training=False) for r in routers)


def _powers(length: int) -> int:
  """Powers of two: groups of experts are to be full."""
  return 1 << (max(length, _SHORTEST) - 1).bit_length()


def _multiples(length: int, *, multiple: int) -> int:
  """Multiples of the CPU's vectors, or of what accelerators' kernels take."""
  return min(_powers(length), -(-length // multiple) * multiple)


class ScoreRequest(NamedTuple):
  """A text to score after a context, which may be empty."""

  context: str
  continuation: str
  where: str  # 'file:line', for errors


class Score(NamedTuple):
  """The score of a continuation."""

  log_prob: float  # of all its tokens, in nats
  num_tokens: int
  # 1 if each token is the most probable one, among those that may be generated,
  # else 0.
  greedy: int
  cut: int  # number of leading context tokens that did not fit


def row(
  tokenizer: Tokenizer, request: ScoreRequest, context_length: int
) -> 'forward.ScoredRow | None':
  """Encodes a request.

  Context and continuation are encoded as one text. A token that spans the
  boundary belongs to the continuation. The tokens that stood before a text in
  training come first, such as the end of a document: see `Special`.

  Returns:
    The row; None if the continuation alone exceeds the context.
  """
  whole = tokenizer.encode(request.context + request.continuation)
  before = tokenizer.encode(request.context)
  shared = min(len(whole), len(before))
  differs = np.flatnonzero(whole[:shared] != before[:shared])
  start = int(differs[0]) if len(differs) else shared
  num_scored = len(whole) - start
  if not num_scored:
    raise UsageError(f'{request.where}: has no text to score; mend or remove it')
  if num_scored > context_length:
    return None
  before = tokenizer.special.before(first_scored=start == 0)
  ids = np.concatenate([before, whole]).astype(np.int32)
  cut = max(len(ids) - (context_length + 1), 0)
  return forward.ScoredRow(ids[cut:], num_scored, cut)


class Journal:
  """A file of results by row number, for one set of rows and one model.

  A stopped evaluation resumes after its last batch: one JSON line per batch. A
  last line that a crash left incomplete or damaged is cut off.
  """

  def __init__(self, path: str | None, key: str):
    """Names a file, which need not exist; None keeps nothing.

    `key` identifies the model: results of other models are dropped.
    """
    self._path, self._key = path, key

  def start(self, rows: str) -> dict[int, Any]:
    """Returns earlier results of these rows, by row number.

    Deletes results of other rows or of another model.
    """
    head = json.dumps({'model': self._key, 'rows': rows}).encode()
    found = {}
    if self._path is None:
      return found
    sound = 0
    if os.path.exists(self._path):
      with open(self._path, 'rb') as f:
        first, *lines = f.read().split(b'\n')
      if first == head:
        sound = len(first) + 1
        for line in lines[:-1]:  # the last is empty or incomplete
          try:
            scores = json.loads(line)
          except ValueError:
            break
          found.update({int(i): score for i, score in scores.items()})
          sound += len(line) + 1
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    # Appended to in place: being killed now loses nothing.
    with open(self._path, 'ab') as f:
      f.truncate(sound)
      if not sound:
        f.write(head + b'\n')
    return found

  def add(self, scores: dict[int, Any]) -> None:
    """Appends new results."""
    if self._path is not None:
      with open(self._path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(scores) + '\n')

  def complete(
    self,
    rows: str,
    count: int,
    compute: Callable[[list[int]], Iterator[dict[int, Any]]],
    report: Report,
    stage: str,
  ) -> list[Any]:
    """The results of `count` rows: those found here, and what `compute` yields.

    Args:
      rows: identifies the rows.
      compute: takes the numbers of missing rows; yields results by number.
      report: called with the number of rows done and in total.
      stage: for `report`.
    """
    found = self.start(rows)
    for new in compute([i for i in range(count) if i not in found]):
      self.add(new)
      found.update(new)
      report(stage, len(found), count)
    return [found[i] for i in range(count)]


class GeneratedTexts(NamedTuple):
  """Texts that a model generated for sources."""

  texts: list[str]  # in the order of the sources
  cut: int  # sources that lost their last tokens
  new: int  # texts that the journal did not have


class Scorer:
  """Scores rows, and generates texts, with a trained model."""

  def __init__(
    self,
    parts: 'parts_lib.Parts',
    params: Any,
    tokenizer: Tokenizer,
    *,
    rows: int | None = None,
    tokens: int | None = None,
  ):
    """Takes the parameters, which may be replaced later.

    Args:
      parts: model and mesh.
      rows: of a batch at most; None: as many as `tokens` allow, or `eval.rows`
        texts generated at a time.
      tokens: of a batch at most, with the padding; None: as many as
        `eval.rows` of the whole context, up to a limit.
    """
    self.tokenizer = tokenizer
    self.context_length: int = parts.config.model.context_length
    self._parts, self.params = parts, params
    self._limits = {'rows': rows, 'tokens': tokens}
    self._source_format = models.source_format(parts, tokenizer)
    self._decoder = programs.Decoder.of(
      parts.model, None, tokenizer, models.in_row(parts, tokenizer)
    )
    self._forward = forward.Forward(parts, self._decoder.never_V)

  def requests(
    self, requests: Sequence[ScoreRequest], journal: Journal, report: Report
  ) -> list[Score | None]:
    """Scores texts in order; None for one that exceeds the context."""
    rows = [row(self.tokenizer, r, self.context_length) for r in requests]
    fitting = [r for r in rows if r is not None]
    scores = iter(self.rows(fitting, journal, report))
    return [None if r is None else next(scores) for r in rows]

  def rows(
    self, rows: 'Sequence[forward.ScoredRow]', journal: Journal, report: Report
  ) -> list[Score]:
    """Scores rows in order.

    Args:
      rows: each of at most `context_length + 1` ids.
      journal: provides scores from an earlier process, and records new ones.

    Raises:
      FailedError: a score is NaN or infinite; the journal has none such.
    """
    # Equal rows, such as choices without their question, are scored once.
    keys = [(r.ids.tobytes(), r.num_scored) for r in rows]
    rows, given = [*dict(zip(keys, rows, strict=True)).values()], rows
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}

    def scored(missing: list[int]) -> Iterator[dict[int, Any]]:
      caches = None
      # The same batches whatever an earlier process did: sums of floats differ
      # between shapes.
      limits = batch_limits(self._parts, self.params, **self._limits)
      common, batches = forward.plan(rows, limits)
      for batch in batches:
        if {*missing}.isdisjoint(batch.rows):
          continue
        if common and caches is None:
          ids = rows[0].ids[:common]
          caches = common, self._forward.read(self.params, ids)
        scores = self._forward.score(self.params, rows, batch, caches)
        if not all(math.isfinite(log_prob) for log_prob, _ in scores):
          raise FailedError(requests_lib.NOT_FINITE)
        yield dict(zip(batch.rows, scores, strict=True))

    found = journal.complete(_digest(rows), len(rows), scored, report, 'scoring')
    return [
      Score(found[i][0], r.num_scored, int(found[i][1]), r.cut)
      for r, i in zip(given, (number[key] for key in keys), strict=True)
    ]

  def answers(
    self,
    prompts: Sequence[str],
    max_tokens: int,
    journal: Journal,
    report: Report,
    *,
    stop: str = '\n',
    sampler: Sampler = GREEDY,
    seeds: Sequence[int] | None = None,
  ) -> list[str]:
    """Continuations up to a text, in order.

    Args:
      prompts: of at most `context_length - max_tokens - 1` tokens.
      stop: ends a continuation, and does not belong to it.
      seeds: of each continuation; None: 0.
    """
    seeds = [0] * len(prompts) if seeds is None else seeds
    start = self.tokenizer.special.before(first_scored=True)
    decode, stops = self.tokenizer.decode, self.tokenizer.special.stop_ids
    requests = [
      requests_lib.Request(
        [*start, *self.tokenizer.encode(prompt).tolist()], max_tokens, sampler, seed, stops
      )
      for prompt, seed in zip(prompts, seeds, strict=True)
    ]

    def answered(missing: list[int]) -> Iterator[dict[int, Any]]:
      for number, text in self.generate(
        [requests[i] for i in missing], stop_when=lambda ids: stop in decode(ids).lstrip()
      ):
        yield {missing[number]: text.partition(stop)[0].rstrip()}

    rows = _of_requests(requests)
    if (stop, sampler) != ('\n', GREEDY):
      rows += str((stop, sampler, seeds))
    return journal.complete(rows, len(requests), answered, report, 'answering')

  def texts(
    self,
    sources: Sequence[str],
    max_tokens: int,
    journal: Journal,
    report: Report,
    beam: BeamSettings | None = None,
  ) -> GeneratedTexts:
    """What the model generates for sources.

    Args:
      max_tokens: see `source_request`.
      beam: how to search for a text; None: each token is the most probable one.
    """
    pairs = [self.source_request(source, max_tokens) for source in sources]
    requests, cuts = [x for x, _ in pairs], [cut for _, cut in pairs]
    texts_lib.warn_of_cuts(cuts, self.context_length)
    num_new = 0

    def generated(missing: list[int]) -> Iterator[dict[int, Any]]:
      nonlocal num_new
      for number, text in self.generate([requests[i] for i in missing], beam):
        num_new += 1
        yield {missing[number]: text}

    searched = '' if beam is None else str(beam)
    texts = journal.complete(
      _of_requests(requests) + searched, len(requests), generated, report, 'writing'
    )
    return GeneratedTexts(texts, sum(cut > 0 for cut in cuts), num_new)

  def source_request(self, source: str, max_tokens: int) -> 'tuple[requests_lib.Request, int]':
    """The request for a source, and how many of its last tokens did not fit.

    Args:
      max_tokens: of the text at most, its end included, and at most half of
        the context if the source is in the same row; 0: the default of
        `decoding.texts.source_request`.
    """
    how = self._source_format
    if not self._parts.model.num_encoder_layers:
      max_tokens = min(max_tokens, self.context_length // 2)
    options = texts_lib.Options(max_tokens=max_tokens or None, sampler=GREEDY)
    return texts_lib.source_request(how.tokenizer.encode(source), self._decoder, how, options)

  def generate(
    self,
    requests: 'Sequence[requests_lib.Request]',
    beam: BeamSettings | None = None,
    stop_when: Callable[[list[int]], bool] = lambda ids: False,
  ) -> Iterator[tuple[int, str]]:
    """Yields the number of a request and its text when it is done."""
    rows = self._limits['rows'] or self._parts.eval_rows
    decoder = self._decoder._replace(params=self.params)
    with sharding.use(self._parts.mesh, self._parts.rules):
      if not beam:
        found = engine.generate(decoder, requests, rows=rows, stop_when=stop_when)
      else:
        # Rules of the model may leave no hypothesis.
        found = (
          (number, hypotheses[0].ids if hypotheses else [])
          for number, hypotheses in beam_lib.search(decoder, requests, beam, rows=rows)
        )
      for number, ids in found:
        yield number, self.tokenizer.decode(ids).strip()


def scorer(
  trained: 'models.Trained', *, rows: int | None = None, tokens: int | None = None
) -> Scorer:
  """A scorer for a run loaded from its workdir."""
  params = trained.state.eval_params
  return Scorer(trained.parts, params, trained.tokenizer, rows=rows, tokens=tokens)


def _of_requests(requests: 'Sequence[requests_lib.Request]') -> str:
  """Identifies what texts are generated for."""
  return _digest(
    [
      forward.ScoredRow(np.array([*r.ids, *(r.source or ())], np.int32), r.max_tokens)
      for r in requests
    ]
  )


def _digest(rows: 'Sequence[forward.ScoredRow]') -> str:
  digest = hashlib.sha256()
  for r in rows:
    digest.update(np.array([len(r.ids), r.num_scored]).tobytes())
    digest.update(r.ids.tobytes())
  return digest.hexdigest()
