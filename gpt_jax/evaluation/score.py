# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of continuations given a context.

Rows of similar length are scored together, and what several rows begin with is
read once: see `batches`. Rows are split over the devices like training batches.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import sharding
from gpt_jax.decoding import continuations, engine, sampler
from gpt_jax.decoding import sampler as constraints_lib
from gpt_jax.decoding.beam import Beam, search
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.requests import NOT_FINITE, Request
from gpt_jax.decoding.sampler import Sampler, never_drawn
from gpt_jax.evaluation.forward import Forward, Limits, Row, plan
from gpt_jax.files.progress import Report
from gpt_jax.nn.build import period
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import choices as objectives
from gpt_jax.rows import row_makers, sides
from gpt_jax.spec import FailedError, UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.constraints import ANY, Constraints
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import models as trained_lib
from gpt_jax.training.models import Trained
from gpt_jax.training.parts import Parts

# How large batches of evaluation are, for a model and its devices.


# By default, on each device.
_MOST_TOKENS = 1 << 14
_MOST_ROWS = 1024
# Keys and values of what rows share, on each device.
_CACHE_BYTES = 1 << 29
# A program takes about a second to compile, ten on an accelerator. What is
# computed meanwhile: at least so many tokens, or so many operations.
_PROGRAM_TOKENS = 1024
_PROGRAM_FLOPS = 2e10
_PROGRAM_FLOPS_ACCELERATOR = 1e14
_SHORTEST = 16


def of(
  parts: Parts, params: Any, *, rows: int | None, tokens: int | None
) -> Limits:
  """The limits of a model's batches.

  Args:
    parts: the model, and the mesh that batches are split over.
    params: of the model.
    rows: of a batch at most; None: as many as the tokens allow.
    tokens: of a batch at most, with the padding; None: `eval.rows` rows of
      the whole context, up to 16,384 on each device.
  """
  model, shards = parts.model, parts.num_shards
  default = parts.eval_rows * model.context_length
  each = model.head_size + (model.value_size or model.head_size)
  held = model.num_layers * model.num_kv_heads * each
  held *= jnp.dtype(model.dtype).itemsize
  on_cpu = parts.mesh.devices.flat[0].platform == 'cpu'
  flops = _PROGRAM_FLOPS if on_cpu else _PROGRAM_FLOPS_ACCELERATOR
  of_token = 2 * sum(x.size for x in jax.tree.leaves(params))
  padded = _powers
  if not _limited(model):
    padded = functools.partial(_multiples, multiple=8 if on_cpu else 128)
  return Limits(
    tokens=tokens or min(default, _MOST_TOKENS * shards),
    rows=rows or _MOST_ROWS * shards,
    cached=0 if _limited(model) else _CACHE_BYTES * shards // held,
    shards=shards,
    program=_PROGRAM_TOKENS + int(flops / of_token),
    padded=lambda n: min(padded(n), model.context_length),
  )


def _limited(model: Transformer) -> bool:
  """Whether experts drop tokens, which depends on all that is in a batch."""
  routers = [layer.ffn.router for layer in period(model.attention, model.ffn)]
  return any(r is not None and r.limited(training=False) for r in routers)


def _powers(length: int) -> int:
  """As groups of experts need, which are to be full."""
  return 1 << (max(length, _SHORTEST) - 1).bit_length()


def _multiples(length: int, *, multiple: int) -> int:
  """Multiples: of the CPU's vectors, or what accelerators' kernels take."""
  return min(_powers(length), -(-length // multiple) * multiple)


# What a model writes for source texts: a translation, an answer.
#
# An encoder-decoder reads the source with its encoder. A decoder reads it as a
# document, after which it writes the next one: as rows of pairs are for it.
# What has learned to write after a source in one row does so: see
# `decoding.in_row`.


GREEDY = Sampler(temperature=0)


class Asked(NamedTuple):
  """What is asked of a model for a source.

  Attributes:
    request: with the source.
    cut: tokens of the source that did not fit, its last.
  """

  request: Request
  cut: int


class Writer:
  """Writes texts with a model."""

  def __init__(self, parts: Parts, tokenizer: Tokenizer, *, rows: int | None):
    """Takes the model.

    Args:
      parts: model and mesh.
      tokenizer: of the run.
      rows: texts that are written at a time; None: `eval.rows`.
    """
    config = parts.config
    self._parts, self._tokenizer = parts, tokenizer
    self._rows = rows or parts.eval_rows
    self._encoder = config.model.num_encoder_layers > 0
    self._length: int = config.model.context_length
    self._starts: str = objectives.needs(config.objective.name).starts
    self._reads = tokenizer_lib.of_sources(tokenizer)
    self._special = row_makers.as_read(config.data.rows, self._reads.special)
    self._in_row = trained_lib.in_row(parts, tokenizer)

  def asked(self, source: str, max_tokens: int) -> Asked:
    """What is asked of the model for a source.

    Args:
      source: what it reads.
      max_tokens: that it writes at most, the end among them; 0: see
        `answer_limit`. Never more than the context holds, or half of it where
        the source is in the same row.
    """
    special, ids = self._special, self._reads.encode(source)
    max_tokens = max_tokens or continuations.answer_limit(
      len(sides.source_ids(ids, special))
    )
    stops = self._tokenizer.special.stop_ids
    written = self._tokenizer.special
    if self._encoder:
      prompt = sides.start_ids(self._starts or 'eos', written)
      max_tokens = min(max_tokens, self._length - len(prompt))
      read, cut = continuations.read_source(ids, special, self._length)
      request = Request(prompt, max_tokens, GREEDY, 0, stops, read)
    else:
      in_row = self._in_row is not None
      before = [] if in_row else list(special.before(first_scored=True))
      after = sides.start_ids(self._starts, written) if in_row else []
      max_tokens = min(max_tokens, self._length // 2)
      room = self._length - max_tokens - len(before) - len(after)
      read, cut = continuations.read_source(ids, special, room)
      prompt = [*before, *read, *after]
      request = Request(prompt, max_tokens, GREEDY, 0, stops)
      request = request._replace(num_source=len(read) if in_row else 0)
    return Asked(request, cut)

  def texts(
    self, params: Any, asked: Sequence[Request], beam: Beam | None
  ) -> Iterator[tuple[int, str]]:
    """Writes, and yields the number of a request and its text as it is done.

    Args:
      params: of the model.
      asked: see `asked`.
      beam: how to search; None: each token is the most probable one.
    """
    decoder = self._parts.model, params
    how: Any = {
      'rows': self._rows,
      'in_row': self._in_row,
      'never_V': never_drawn(self._tokenizer, decoder[0].vocab_size),
      'constraints': constraints_lib.constraints_of(self._tokenizer),
    }
    with sharding.use(self._parts.mesh, self._parts.rules):
      if beam is None:
        found = greedy(*decoder, asked, **how)
      else:
        found = best(*decoder, asked, beam, **how)
      for number, ids in found:
        yield number, self._tokenizer.decode(ids).strip()


def best(
  model: Transformer,
  params: Any,
  asked: Sequence[Request],
  beam: Beam,
  *,
  rows: int,
  in_row: InRow | None = None,
  never_V: np.ndarray | None = None,
  constraints: Constraints = ANY,
) -> Iterator[tuple[int, list[int]]]:
  """As `greedy`: the best that beam search finds; nothing if that is barred."""
  for number, hypotheses in search(
    *(model, params, asked, beam),
    rows=rows,
    in_row=in_row,
    never_V=never_V,
    constraints=constraints,
  ):
    yield number, hypotheses[0].ids if hypotheses else []


def greedy(
  model: Transformer,
  params: Any,
  asked: Sequence[Request],
  *,
  rows: int,
  in_row: InRow | None = None,
  never_V: np.ndarray | None = None,
  constraints: Constraints = ANY,
) -> Iterator[tuple[int, list[int]]]:
  """Yields the number of each request and its ids when it is done.

  Args:
    model: decodes.
    params: its parameters.
    asked: what is to be continued.
    rows: requests that run at a time.
    in_row: see `Engine`.
    never_V: see `sampler.never_drawn`.
    constraints: see `Engine`.
  """
  engine = Engine(
    *(model, params),
    slots=rows,
    in_row=in_row,
    never_V=never_V,
    constraints=constraints,
  )
  # The longest first: what is left at the end is short.
  order = sorted(
    range(len(asked)),
    key=lambda i: -len(asked[i].source or asked[i].ids),
  )
  numbers = {engine.add(asked[i]): i for i in order}
  found: dict[int, list[int]] = {number: [] for number in numbers}
  for token in engine.run():
    if token.id is not None:
      found[token.request].append(token.id)
    if token.finish:
      yield numbers[token.request], found.pop(token.request)


class ScoreRequest(NamedTuple):
  """A text to score after a context.

  Attributes:
    context: may be empty.
    continuation: must not be empty.
    where: 'file:line', for errors.
  """

  context: str
  continuation: str
  where: str


class Score(NamedTuple):
  """The score of a continuation.

  Attributes:
    log_prob: of all its tokens, in nats.
    num_tokens: number of its tokens.
    greedy: 1 if each token is the most probable at its position of those that
      are ever generated, else 0.
    cut: number of leading context tokens that did not fit.
  """

  log_prob: float
  num_tokens: int
  greedy: int
  cut: int


def row(
  tokenizer: Tokenizer, request: ScoreRequest, context_length: int
) -> Row | None:
  """Encodes a request.

  Context and continuation are encoded as one text. A token that spans the
  boundary belongs to the continuation. First comes what the model was trained
  to see before a text, such as the end-of-document token: see `Special`.

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
    raise UsageError(f'{request.where}: has no text to score')
  if num_scored > context_length:
    return None
  before = tokenizer.special.before(first_scored=start == 0)
  ids = np.concatenate([before, whole]).astype(np.int32)
  cut = max(len(ids) - (context_length + 1), 0)
  return Row(ids[cut:], num_scored, cut)


class Journal:
  """A file of scores by row number, for one set of rows and one model.

  A stopped evaluation resumes after its last batch: one JSON line per batch.
  What a killed process wrote last, or a crash of the machine left damaged, is
  cut off.
  """

  def __init__(self, path: str | None, key: str):
    """Opens a file, which need not exist; None keeps nothing.

    `key` identifies the model: scores of other models are ignored.
    """
    self._path, self._key = path, key

  def start(self, rows: str) -> dict[int, Any]:
    """Returns earlier scores of these rows, by row number.

    Deletes scores of other rows or of another model.
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
    # What is there stays there: being killed now loses nothing either.
    with open(self._path, 'ab') as f:
      f.truncate(sound)
      if not sound:
        f.write(head + b'\n')
    return found

  def add(self, scores: dict[int, Any]) -> None:
    """Appends new scores."""
    if self._path is not None:
      with open(self._path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(scores) + '\n')


class Written(NamedTuple):
  """What a model wrote for sources.

  Attributes:
    texts: in their order.
    cut: sources that lost their last tokens.
    new: texts that the journal did not have.
  """

  texts: list[str]
  cut: int
  new: int


class Scorer:
  """Scores rows with a trained model."""

  def __init__(
    self,
    parts: Parts,
    params: Any,
    tokenizer: Tokenizer,
    *,
    rows: int | None = None,
    tokens: int | None = None,
  ):
    """Takes the parameters, which may be replaced later.

    Programs are compiled on first use.

    Args:
      parts: model and mesh.
      params: of the model.
      tokenizer: of the run.
      rows: of a batch at most.
      tokens: of a batch at most, with the padding; None: as many as
        `eval.rows` of the whole context, up to a limit.
    """
    self.tokenizer = tokenizer
    self.context_length: int = parts.config.model.context_length
    self._parts, self.params = parts, params
    self._limits = {'rows': rows, 'tokens': tokens}
    never_V = engine.never_drawn(tokenizer, parts.model.vocab_size)
    self._forward = Forward(parts, never_V)

  def requests(
    self, requests: Sequence[ScoreRequest], journal: Journal, report: Report
  ) -> list[Score | None]:
    """Scores texts in order; None for one that exceeds the context."""
    rows = [row(self.tokenizer, r, self.context_length) for r in requests]
    fitting = [r for r in rows if r is not None]
    scores = iter(self.rows(fitting, journal, report))
    return [None if r is None else next(scores) for r in rows]

  def rows(
    self, rows: Sequence[Row], journal: Journal, report: Report
  ) -> list[Score]:
    """Scores rows in order.

    Args:
      rows: each of at most `context_length + 1` ids.
      journal: provides scores from an earlier process, and records new ones.
      report: called with the number of rows done and in total.

    Raises:
      FailedError: a score is NaN or infinite; the journal has none such.
    """
    # Equal rows, such as choices without their question, are scored once.
    keys = [(r.ids.tobytes(), r.num_scored) for r in rows]
    rows, given = [*dict(zip(keys, rows, strict=True)).values()], rows
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    found = journal.start(_digest(rows))
    caches = None
    # The same batches with what an earlier process did: sums of floats differ
    # between shapes.
    batch_limits = of(self._parts, self.params, **self._limits)
    common, batches = plan(rows, batch_limits)
    for batch in batches:
      if all(i in found for i in batch.rows):
        continue
      if common and caches is None:
        ids = rows[0].ids[:common]
        caches = common, self._forward.read(self.params, ids)
      scores = self._forward.score(self.params, rows, batch, caches)
      if not all(math.isfinite(log_prob) for log_prob, _ in scores):
        raise FailedError(NOT_FINITE)
      new = dict(zip(batch.rows, scores, strict=True))
      journal.add(new)
      found.update(new)
      report('scoring', len(found), len(rows))
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
  ) -> list[str]:
    """Greedy continuations up to the end of a line, in order.

    Args:
      prompts: of at most `context_length - max_tokens - 1` tokens.
      max_tokens: in a continuation.
      journal: as for `rows`.
      report: as for `rows`.
    """
    start = self.tokenizer.special.before(first_scored=True)
    encode = self.tokenizer.encode
    ids = [[*start, *map(int, encode(prompt))] for prompt in prompts]
    rows = [Row(np.array(i, np.int32), max_tokens) for i in ids]
    found = journal.start(_digest(rows))
    missing = [i for i in range(len(ids)) if i not in found]
    size = self._limits['rows'] or self._parts.eval_rows
    decoder = engine.in_place(self._parts.model, self.params)
    for start in range(0, len(missing), size):
      indices = missing[start : start + size]
      new = self._continued(decoder, [ids[i] for i in indices], max_tokens)
      answers = dict(zip(indices, new, strict=True))
      journal.add(answers)
      found.update(answers)
      report('answering', len(found), len(ids))
    return [found[i] for i in range(len(ids))]

  def texts(
    self,
    sources: Sequence[str],
    max_tokens: int,
    journal: Journal,
    report: Report,
    beam: Beam | None = None,
  ) -> Written:
    """What the model writes for sources.

    Args:
      sources: what it reads.
      max_tokens: see `Writer.asked`.
      journal: as for `rows`.
      report: as for `rows`.
      beam: see `Writer.texts`.
    """
    writer = Writer(self._parts, self.tokenizer, rows=self._limits['rows'])
    asked = [writer.asked(source, max_tokens) for source in sources]
    continuations.warn_of_cuts([x.cut for x in asked], self.context_length)
    rows = [
      Row(np.array([*r.ids, *(r.source or ())], np.int32), r.max_tokens)
      for r, _ in asked
    ]
    searched = '' if beam is None else str(beam)
    found = journal.start(_digest(rows) + searched)
    missing = [i for i in range(len(rows)) if i not in found]
    for number, text in writer.texts(
      self.params, [asked[i].request for i in missing], beam
    ):
      found[missing[number]] = text
      journal.add({missing[number]: text})
      report('writing', len(found), len(rows))
    texts = [found[i] for i in range(len(rows))]
    return Written(texts, sum(cut > 0 for _, cut in asked), len(missing))

  def _continued(
    self,
    decoder: tuple[Transformer, Any],
    prompts: list[list[int]],
    max_tokens: int,
  ) -> list[str]:
    decode = self.tokenizer.decode
    with sharding.use(self._parts.mesh, self._parts.rules):
      new = engine.generate(
        *decoder,
        prompts,
        max_tokens=max_tokens,
        sampler=engine.Sampler(temperature=0),
        seed=0,
        stop_ids=self.tokenizer.special.stop_ids,
        constraints=sampler.constraints_of(self.tokenizer),
        stop_when=lambda ids: '\n' in decode(ids).lstrip(),
        never_V=engine.never_drawn(self.tokenizer, decoder[0].vocab_size),
      )
    return [decode(ids).strip().partition('\n')[0] for ids in new]


def scorer(
  trained: Trained, *, rows: int | None = None, tokens: int | None = None
) -> Scorer:
  """Makes a scorer for a run loaded from its workdir; see `Scorer`."""
  params = trained.state.eval_params
  return Scorer(
    trained.parts, params, trained.tokenizer, rows=rows, tokens=tokens
  )


def _digest(rows: Sequence[Row]) -> str:
  digest = hashlib.sha256()
  for r in rows:
    digest.update(np.array([len(r.ids), r.num_scored]).tobytes())
    digest.update(r.ids.tobytes())
  return digest.hexdigest()
