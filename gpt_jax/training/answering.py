# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run that answers texts: prompts, or sources."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.decoding import continuations, prompt_files, sampler, sourced
from gpt_jax.decoding.answers import Asked
from gpt_jax.decoding.beam import Beam, Hypothesis
from gpt_jax.decoding.continuations import Continuation, Options, Speed
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.prompt_files import Prompt, Source
from gpt_jax.decoding.sampler import never_drawn
from gpt_jax.decoding.speculative import Draft
from gpt_jax.objectives import choices as objectives
from gpt_jax.rows import row_makers, sides
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.tokenizers.chat import ChatTemplate
from gpt_jax.tokenizers.training import sentinel
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.trained import Trained


class Answerer:
  """Draws answers, or searches for them.

  Attributes:
    engine: draws them.
    speed: of all that was answered.
    tokenizer: of the model.
    context_length: of the model.
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
      trained: the run.
      options: how texts are answered.
      weights: see `trained.decoder`.
      rows: answers at a time; with a beam, texts.
      beam: how to search; None: tokens are drawn.
      draft: proposes tokens.
      keep: see `Engine`.
    """
    self.tokenizer, self.speed = trained.tokenizer, Speed()
    self.context_length = trained.parts.model.context_length
    self._config, self._options = trained.parts.config, options
    self._beam, self._rows = beam, rows
    self._decoder = trained_lib.decoder(trained, weights)
    self._in_row = trained_lib.in_row(trained.parts, trained.tokenizer)
    self.engine = Engine(
      *self._decoder,
      slots=rows,
      draft=draft,
      keep=keep,
      in_row=self._in_row,
      never_V=never_drawn(self.tokenizer, trained.parts.model.vocab_size),
      constraints=sampler.constraints_of(self.tokenizer),
    )

  def asked(
    self, text: Prompt | Source, template: ChatTemplate | None = None
  ) -> Asked:
    """A text as the model is given it.

    Args:
      text: the text.
      template: of chats.
    """
    if isinstance(text, Source):
      return self._sourced(text)
    ids = continuations.fitted(
      text.ids(self.tokenizer, template),
      self.tokenizer,
      self._options,
      context_length=self.context_length,
      where=text.where,
    )
    return Asked(text.fields, ids)

  def _sourced(self, text: Source) -> Asked:
    """See `asked`."""
    reads = tokenizer_lib.of_sources(self.tokenizer)
    encoded = text.encoded(reads)
    rows, length = self._config.data.rows, self.context_length
    special = row_makers.as_read(rows, reads.special)
    starts: str = objectives.needs(self._config.objective.name).starts
    start = sides.start_ids(starts, self.tokenizer.special)
    if self._in_row is not None:
      # Beside its answer in a row, which has half of it if it needs as much.
      most = self._options.max_tokens
      if most is None:
        whole = sides.source_ids(encoded, special)
        most = min(sourced.most(len(whole)), length // 2)
      room = length - most - len(start)
      if room < 1:
        raise UsageError(
          f'--max_tokens={most}: the context holds {length}, source and answer '
          'together; give fewer'
        )
      source, cut = sourced.read(encoded, special, room)
      return Asked(text.fields, start, source, cut)
    source, cut = sourced.read(encoded, special, length)
    ids = continuations.fitted(
      start,
      self.tokenizer,
      self._options,
      context_length=length,
      where='what the decoder starts with',
    )
    return Asked(text.fields, ids, source, cut)

  def complete(
    self, asked: Sequence[Asked]
  ) -> Iterator[tuple[int, list[Continuation]]]:
    """Answers texts: see `continuations.complete`."""
    texts = self.tokenizer, [x.ids for x in asked], self._options
    more: Any = {'sources': [x.source for x in asked], 'speed': self.speed}
    if self._beam is not None:
      return continuations.complete_by_beam(
        *self._decoder,
        *texts,
        self._beam,
        rows=self._rows,
        in_row=self._in_row,
        **more,
      )
    return continuations.complete(
      self.engine, *texts, context_length=self.context_length, **more
    )

  def hypotheses(self, asked: Sequence[Asked]) -> list[list[Hypothesis]]:
    """What the beam finds for each source, the best first."""
    assert self._beam is not None
    done = dict(
      continuations.hypotheses(
        *(*self._decoder, self.tokenizer, [x.ids for x in asked]),
        *(self._options, self._beam),
        rows=self._rows,
        sources=[x.source for x in asked],
        in_row=self._in_row,
        speed=self.speed,
      )
    )
    return [done[number] for number in range(len(asked))]

  def stream(self, asked: Asked) -> Iterator[str]:
    """The pieces of one answer as they are drawn."""
    rows = continuations.make_rows(
      asked.ids,
      self.tokenizer,
      self._options,
      context_length=self.context_length,
      source=asked.source,
      in_row=self._in_row is not None,
    )
    for piece in continuations.decode(self.engine, rows, speed=self.speed):
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
    trained: the run.
    texts: with blanks: see `blanks`.
    top: fillings of each, and hypotheses that are followed.
    rows: texts that are searched together.
  """
  model = Answerer(trained, Options(), rows=rows, beam=Beam(top))
  tokenizer, asked = tokenizer_lib.of_sources(model.tokenizer), []
  for text in texts:
    one = model.asked(Source('--text', text))
    assert one.source is not None
    shown = text if len(text) < 60 else text[:57] + '...'
    if one.cut:
      raise UsageError(
        f'--text={shown!r}: is longer than the context of '
        f'{model.context_length} tokens, by {one.cut}; shorten it'
      )
    if not prompt_files.has_blanks(tokenizer, one.source):
      raise UsageError(
        f'--text={shown!r}: has no blank; put {sentinel(0)}, {sentinel(1)}, '
        "... where a T5 is to fill, or the mask's name for a BART"
      )
    asked.append(one)
  return [
    [
      Filled(
        prompt_files.fill_blanks(model.tokenizer, one.source or [], h.ids),
        h.score,
      )
      for h in found
    ]
    for one, found in zip(asked, model.hypotheses(asked), strict=True)
  ]


def template(workdir: str) -> ChatTemplate | None:
  """The chat template of a workdir's model."""
  return ChatTemplate.load(os.path.join(workdir, 'tokenizer'))
