# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a model writes for source texts: a translation, an answer.

An encoder-decoder reads the source with its encoder. A decoder reads it as a
document, after which it writes the next one: as rows of pairs are for it. What
has learned to write after a source in one row does so: see `decoding.in_row`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import sharding
from gpt_jax.data import row_makers, sides
from gpt_jax.data.tokenizers import tokenizer as tokenizer_lib
from gpt_jax.data.tokenizers.constraints import ANY, Constraints
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.decoding import constraints as constraints_lib
from gpt_jax.decoding import sourced
from gpt_jax.decoding.beam import Beam
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.in_row import InRow
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.sampler import Sampler, never_drawn
from gpt_jax.decoding.search import search
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import choices as objectives
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.parts import Parts

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
        `sourced.most`. Never more than the context holds, or half of it where
        the source is in the same row.
    """
    special, ids = self._special, self._reads.encode(source)
    max_tokens = max_tokens or sourced.most(len(sides.source_ids(ids, special)))
    stops = self._tokenizer.special.stop_ids
    written = self._tokenizer.special
    if self._encoder:
      prompt = sides.start_ids(self._starts or 'eos', written)
      max_tokens = min(max_tokens, self._length - len(prompt))
      read, cut = sourced.read(ids, special, self._length)
      request = Request(prompt, max_tokens, GREEDY, 0, stops, read)
    else:
      in_row = self._in_row is not None
      before = [] if in_row else list(special.before(first_scored=True))
      after = sides.start_ids(self._starts, written) if in_row else []
      max_tokens = min(max_tokens, self._length // 2)
      room = self._length - max_tokens - len(before) - len(after)
      read, cut = sourced.read(ids, special, room)
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
      'constraints': constraints_lib.of(self._tokenizer),
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
