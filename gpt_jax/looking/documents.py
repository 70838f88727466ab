# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks the documents of a batch by their loss and by their gradient.

A row cut from a stream, or packed, has tokens of several documents: each is
scored by itself, where the objective predicts the next token. With other
objectives a row is scored as a whole, and named by all of its documents.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import sharding
from gpt_jax.core.files.progress import bar
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.objectives.loss import RUN
from gpt_jax.core.optim import train_state
from gpt_jax.core.rows import ledger
from gpt_jax.core.rows.ledger import LedgerRow, LedgerSpan
from gpt_jax.core.tokens import document_names
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.store_data import StoreData
from gpt_jax.looking.course import Course, Taken

# The most characters of a document that are shown.
_SHOWN = 300


class Piece(NamedTuple):
  """What a row of a batch has of a document, or a row of several.

  Attributes:
    row: of the batch, from 0.
    documents: numbers of documents of the token store.
    name: of the documents, as far as the store knows them.
    text: its beginning.
    targets: which targets of the row are the document's; None: all of them.
  """

  row: int
  documents: tuple[int, ...]
  name: str
  text: str
  targets: slice | None


class Scored(NamedTuple):
  """A piece, scored alone before the step: without dropout.

  Attributes:
    piece: of the batch.
    weight: its share of the weight of the batch's tokens.
    loss: mean over its tokens, nats.
    gradient: Euclidean norm of what it adds to the gradient of the batch's mean
      loss.
  """

  piece: Piece
  weight: float
  loss: float
  gradient: float


def pieces(course: Course, step: int) -> list[Piece]:
  """The pieces of a step's batch, in the order of its rows."""
  run, seed = course.run, course.parts.config.seed
  assert isinstance(run.data, StoreData)
  store = run.data.store
  read = ledger.steps(store, seed=seed, start=step - 1, stop=step, rows=run.rows())
  tokenizer, name_of = store.tokenizer(), document_names.of_store(store)
  length = course.parts.ramp.shape(step - 1).length
  single = isinstance(course.parts.objective, Causal)

  def piece(number: int, row: LedgerRow, spans: list[LedgerSpan], targets: Any) -> Piece:
    documents = tuple(dict.fromkeys(span.document for span in spans))
    begins = [int(store.document_ends[d - 1]) if d else 0 for d in documents]
    first = spans[0]
    start = begins[0] + first.start
    stop = min(begins[0] + first.stop, start + _SHOWN)
    text = store.text(tokenizer, start, stop)[:_SHOWN]
    return Piece(number, documents, ', '.join(map(name_of, documents)), text, targets)

  batch = []
  for number, row in enumerate(next(read).rows):
    if single:
      for span, targets in _parts(row, length):
        batch.append(piece(number, row, [span], targets))
    elif spans := [*row.spans, *row.second]:
      batch.append(piece(number, row, spans, None))
  return batch


def _parts(row: LedgerRow, length: int) -> Iterator[tuple[LedgerSpan, slice]]:
  """The documents of a row of next-token prediction, and which targets they are."""
  # The first token of a row that is cut from a stream is an input only.
  begin = -1 if len(row.texts[0]) == length + 1 else 0
  for span in row.spans:
    end = begin + span.stop - span.start
    if end > max(begin, 0):
      yield span, slice(max(begin, 0), end)
    begin = end


def scored(parts: Parts, taken: Taken, batch: list[Piece]) -> list[Scored]:
  """Scores each piece of a step's batch with the parameters before the step."""
  objective, config = parts.objective.of(taken.batch.shape.task), parts.config
  arrays = objective.weighed(taken.batch.arrays)
  whole = jax.device_get(arrays)
  more: Any = {}
  if objective.needs.progress:
    more = {RUN: {'done': jnp.float32((taken.batch.step - 1) / config.schedule.num_steps)}}

  def mean(trained: Any, params: Any, row: Any) -> tuple[jax.Array, jax.Array]:
    full = train_state.with_frozen(trained, params, objective.frozen)
    loss = objective.loss(full, {**row, **more}, None)
    means = loss.means(objective.weights(row))
    total = sum((x.sum / jnp.maximum(x.weight, 1e-30) for x in means), jnp.float32(0))
    return total, means[0].weight

  @jax.jit
  def of(params: Any, row: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    trained = train_state.trained(params, objective.frozen)
    (loss, weight), gradient = jax.value_and_grad(mean, has_aux=True)(trained, params, row)
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(gradient)]
    return loss, weight, jnp.sqrt(sum(squares))

  scores, params = [], jax.device_put(taken.before.params, parts.shardings.params)
  with sharding.use(parts.mesh, parts.rules), bar('pieces') as report:
    for number, piece in enumerate(batch, start=1):
      row = {name: x[piece.row : piece.row + 1] for name, x in whole.items()}
      if piece.targets is not None:
        row['weights'] = _within(row['weights'], piece.targets)
      numbers = jax.device_get(of(params, parts.put_whole(row, 1)))
      scores.append((piece, *map(float, numbers)))
      report('documents', number, len(batch))
  total = sum(weight for _, _, weight, _ in scores) or 1.0
  return [Scored(p, w / total, loss, norm * w / total) for p, loss, w, norm in scores]


def ranked(scored: Sequence[Scored], by: str) -> list[Scored]:
  """The largest 'loss' or 'gradient' first; what is not a number is before all."""

  def size(one: Scored) -> float:
    value = getattr(one, by)
    return math.inf if math.isnan(value) else value

  return sorted(scored, key=size, reverse=True)


def _within(weights_BL: np.ndarray, targets: slice) -> np.ndarray:
  """The weights, but 0 for other targets."""
  kept = np.zeros_like(weights_BL)
  kept[:, targets] = weights_BL[:, targets]
  return kept
