# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that answers texts: prompts, or sources."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt_jax.decoding import continuations, prompt_files
from gpt_jax.decoding.beam import Beam, Hypothesis
from gpt_jax.decoding.continuations import Continuation, Options, Speed, Stream
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.prompt_files import Prompt, Source
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.sampler import limits
from gpt_jax.decoding.speculative import Draft
from gpt_jax.objectives import choices as objectives
from gpt_jax.rows import row_makers, sides
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.training import sentinel
from gpt_jax.training import models as trained_lib
from gpt_jax.training.models import Trained


class Answerer:
  """Draws answers, or searches for them.

  Attributes:
    engine: draws them.
    speed: of all that was answered.
  """

  def __init__(
    self,
    trained: Trained,
    options: Options,
    *,
    weights: str = 'float',
    rows: int,
    beam: Beam | None = None,
    draft: Draft | None = None,
    keep: int = 0,
  ):
    """Takes a run.

    Args:
      options: how texts are answered.
      weights: see `Trained.decoder`.
      rows: answers at a time; with a beam, texts.
      beam: how to search; None: tokens are drawn.
      draft: proposes tokens.
    """
    self.tokenizer, self.speed = trained.tokenizer, Speed()
    self.context_length = trained.parts.model.context_length
    self._config, self._options = trained.parts.config, options
    self._beam, self._rows = beam, rows
    self._decoder = trained.decoder(weights)
    self._in_row = trained_lib.in_row(trained.parts, trained.tokenizer)
    self.engine = Engine(
      *self._decoder,
      slots=rows,
      draft=draft,
      keep=keep,
      in_row=self._in_row,
      **limits(self.tokenizer, trained.parts.model.vocab_size),
    )

  def requests(
    self, texts: Sequence[Prompt | Source], template: ChatTemplate | None = None
  ) -> list[Request]:
    """Texts as the model is given them; warns of sources that do not fit.

    Args:
      texts: prompts to continue, or sources to answer.
    """
    pairs = [self.request(text, template) for text in texts]
    continuations.warn_of_cuts([cut for _, cut in pairs], self.context_length)
    return [request for request, _ in pairs]

  def request(
    self, text: Prompt | Source, template: ChatTemplate | None = None
  ) -> tuple[Request, int]:
    """A text as the model is given it, and how many tokens did not fit."""
    if isinstance(text, Prompt):
      ids = text.ids(self.tokenizer, template)
      return self._ask(self._fitted(ids, text.where)), 0
    reads = tokenizer_lib.of_sources(self.tokenizer)
    encoded = text.encoded(reads)
    rows, length = self._config.data.rows, self.context_length
    special = row_makers.as_read(rows, reads.special)
    starts: str = objectives.needs(self._config.objective.name).starts
    start = sides.start_ids(starts, self.tokenizer.special)
    if self._in_row is None:
      source, cut = continuations.read_source(encoded, special, length)
      start = self._fitted(start, 'what the decoder starts with')
      return self._ask(start, source), cut
    # Beside its answer in a row, which has half of it if it needs as much.
    most = self._options.max_tokens
    if most is None:
      whole = sides.source_ids(encoded, special)
      most = min(continuations.answer_limit(len(whole)), length // 2)
    room = length - most - len(start)
    if room < 1:
      raise UsageError(
        f'--max_tokens={most}: the context holds {length}, source and answer '
        'together; give fewer'
      )
    source, cut = continuations.read_source(encoded, special, room)
    return self._ask(start, source), cut

  def _fitted(self, ids: list[int], where: str) -> list[int]:
    return continuations.fitted(
      *(ids, self.tokenizer, self._options),
      context_length=self.context_length,
      where=where,
    )

  def _ask(self, ids: list[int], source: list[int] | None = None) -> Request:
    return continuations.ask(
      *(ids, self.tokenizer, self._options),
      context_length=self.context_length,
      source=source,
      in_row=self._in_row is not None,
    )

  def complete(
    self, requests: Sequence[Request]
  ) -> Iterator[tuple[int, list[Continuation]]]:
    """Answers texts: see `continuations.complete`."""
    if self._beam is None:
      return continuations.complete(
        *(self.engine, self.tokenizer, requests, self._options),
        speed=self.speed,
      )
    return continuations.complete_by_beam(
      *(*self._decoder, self.tokenizer, requests, self._beam),
      num_samples=self._options.num_samples,
      rows=self._rows,
      in_row=self._in_row,
      speed=self.speed,
    )

  def hypotheses(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
    """What the beam finds for each source, the best first."""
    assert self._beam is not None
    done = dict(
      continuations.hypotheses(
        *(*self._decoder, self.tokenizer, requests, self._beam),
        rows=self._rows,
        in_row=self._in_row,
        speed=self.speed,
      )
    )
    return [done[number] for number in range(len(requests))]

  def stream(self, request: Request) -> Iterator[str]:
    """The pieces of one answer as they are drawn."""
    stream = Stream(self.tokenizer, request, self._options.stop)
    for piece in continuations.decode(self.engine, [stream], speed=self.speed):
      yield piece.text


class Filled(NamedTuple):
  """A source whose blanks are filled.

  Attributes:
    text: filled.
    score: of the answer, see `Hypothesis`.
  """

  text: str
  score: float


def fill(
  trained: Trained, texts: Sequence[str], *, top: int, rows: int
) -> list[list[Filled]]:
  """The best fillings of each text by an encoder-decoder, the best first.

  Args:
    texts: with blanks: see `blanks`.
    top: fillings of each, and hypotheses that are followed.
    rows: texts that are searched together.
  """
  model = Answerer(trained, Options(), rows=rows, beam=Beam(top))
  tokenizer = tokenizer_lib.of_sources(model.tokenizer)
  requests, sources = [], []
  for text in texts:
    request, cut = model.request(Source('--text', text))
    source = request.source
    assert source is not None
    shown = text if len(text) < 60 else text[:57] + '...'
    if cut:
      raise UsageError(
        f'--text={shown!r}: is longer than the context of '
        f'{model.context_length} tokens, by {cut}; shorten it'
      )
    if not prompt_files.has_blanks(tokenizer, source):
      raise UsageError(
        f'--text={shown!r}: has no blank; put {sentinel(0)}, {sentinel(1)}, '
        "... where a T5 is to fill, or the mask's name for a BART"
      )
    requests.append(request)
    sources.append(source)
  return [
    [
      Filled(prompt_files.fill_blanks(model.tokenizer, source, h.ids), h.score)
      for h in found
    ]
    for source, found in zip(sources, model.hypotheses(requests), strict=True)
  ]


def template(workdir: str) -> ChatTemplate | None:
  """The chat template of a workdir's model."""
  return ChatTemplate.load(os.path.join(workdir, 'tokenizer'))
