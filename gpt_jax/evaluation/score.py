# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of continuations given a context.

Rows of similar length are scored together, and what several rows begin with is
read once: see `batches`. Rows are split over the devices like training batches.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import sharding
from gpt_jax.data.progress import Report
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints, sample, sourced
from gpt_jax.decoding.beam import Beam
from gpt_jax.decoding.requests import NOT_FINITE
from gpt_jax.evaluation import limits
from gpt_jax.evaluation.batches import Row, plan
from gpt_jax.evaluation.forward import Forward
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.writing import Writer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import FailedError, UsageError
from gpt_jax.training.parts import Parts
from gpt_jax.training.trained import Trained


class Request(NamedTuple):
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
  tokenizer: Tokenizer, request: Request, context_length: int
) -> Row | None:
  """Encodes a request.

  Context and continuation are encoded as one text. A token that spans the
  boundary belongs to the continuation. First comes what the model was trained
  to see before a text, such as the end-of-document token: see `Special`.

  Returns:
    The row; None if the continuation alone exceeds the context.

  Raises:
    UsageError: the continuation is empty.
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
    never_V = sample.never_drawn(tokenizer, parts.model.vocab_size)
    self._forward = Forward(parts, never_V)

  def requests(
    self, requests: Sequence[Request], journal: Journal, report: Report
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
    batch_limits = limits.of(self._parts, self.params, **self._limits)
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
    decoder = sample.in_place(self._parts.model, self.params)
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
    sourced.tell([x.cut for x in asked], self.context_length)
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
      new = sample.generate(
        *decoder,
        prompts,
        max_tokens=max_tokens,
        sampler=sample.Sampler(temperature=0),
        seed=0,
        stop_ids=self.tokenizer.special.stop_ids,
        constraints=constraints.of(self.tokenizer),
        stop_when=lambda ids: '\n' in decode(ids).lstrip(),
        never_V=sample.never_drawn(self.tokenizer, decoder[0].vocab_size),
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
