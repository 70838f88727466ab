# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of two texts, [CLS] A [SEP] B [SEP], of which tokens are masked (BERT, section A.2)."""

from typing import Any

import numpy as np

from gpt_jax.plain.order import one_corpus as place
from gpt_jax.plain.recipe import MASK_RATE, MASK_SHARE, RANDOM_SHARE, SEED, SHORT_SHARE
from gpt_jax.plain.rows import corpora
from gpt_jax.plain.schedules import shape_of
from gpt_jax.plain.tokenizer import wordpiece_ids
from gpt_jax.plain.types import Batch, Store


def pair_rows(store: Store, room: int, start: int, stop: int) -> dict[str, Any]:
  """The rows of a corpus: each takes sentences of a document up to its aim, most often `room`.

  Its arrays, by sentence: where each starts and stops in the store, the tokens before it; by
  document: its first sentence; by row: the first sentence, the one after the last, the aim.
  """
  ends, document_ends = store['sentence_ends'], store['document_ends']
  stops = ends[slice(*np.searchsorted(ends, [start, stop], side='right'))]
  starts = np.append(start, stops[:-1])
  documents = np.searchsorted(document_ends, starts, side='right')
  stops = stops - (stops == document_ends[documents])
  full = stops > starts
  starts, stops, documents = starts[full], stops[full], documents[full]
  count = len(starts)
  tokens = np.append(0, np.cumsum(stops - starts))
  draws = (np.random.Philox(key=0x9A125).random_raw((count, 2)) >> 11) * 2.0**-53
  aim = np.where(draws[:, 0] < SHORT_SHARE, 2 + (draws[:, 1] * (room - 1)).astype(np.int64), room)
  after = np.searchsorted(tokens, tokens[:-1] + aim, side='left')
  after = np.minimum(after, np.searchsorted(documents, documents, side='right'))
  first, at = [], 0
  while at < count:
    first.append(at)
    at = int(after[at])
  return {
    'starts': starts,
    'stops': stops,
    'tokens': tokens,
    'documents': np.append(np.flatnonzero(np.diff(documents, prepend=-1)), count),
    'first': np.array(first),
    'after': after[first],
    'aim': aim[first],
  }


def texts_of(
  found: dict[str, Any], row: int, room: int, generator: np.random.Generator
) -> tuple[list[tuple[int, int]], int]:
  """The tokens of A and B in the store, and 0 if B follows A in the text, else 1.

  A is a random number of a row's sentences. In half of the rows B is their rest, in the others a
  text of another document.
  """
  first, after = int(found['first'][row]), int(found['after'][row])
  half, coin, which, where = generator.random(4)
  middle = first + 1 + int(half * (after - first - 1))
  b = middle, after
  other = int(middle == after or coin < 0.5)
  if other:
    documents = found['documents']
    own = int(np.searchsorted(documents, first, side='right')) - 1
    document = int(which * (len(documents) - 2))
    document += document >= own
    begin, end = int(documents[document]), int(documents[document + 1])
    begin += int(where * (end - begin))
    left = max(int(found['aim'][row] - found['tokens'][middle] + found['tokens'][first]), 1)
    b = begin, min(int(np.searchsorted(found['tokens'], found['tokens'][begin] + left)), end)
  texts = [(int(found['starts'][i]), int(found['stops'][j - 1])) for i, j in ((first, middle), b)]
  # The longer text loses tokens, at its front or its back at random, until both fit.
  sizes = [stop - start for start, stop in texts]
  over = max(sum(sizes) - room, 0)
  longer = min(over, abs(sizes[0] - sizes[1]))
  lost = [(over - longer) // 2, over - longer - (over - longer) // 2]
  lost[int(sizes[0] <= sizes[1])] += longer
  fronts = generator.binomial(lost, 0.5).tolist()
  cut = zip(texts, lost, fronts, strict=True)
  return [(start + front, stop - (count - front)) for (start, stop), count, front in cut], other


def masked_batch(store: Store, step: int) -> Batch:
  """Rows of two texts with masked tokens, the masked tokens, and whether B is another text."""
  rows, length, before, tokens = shape_of(step)
  # Rows of one length are counted by their tokens.
  first = -(-tokens // length)
  places = max(int(np.ceil(MASK_RATE * length - 1e-9)), 1)
  if 'ids' not in store:
    store['ids'] = wordpiece_ids(store['folder'])
  if f'rows/{length}' not in store:
    parts = corpora(store)
    store[f'rows/{length}'] = {n: pair_rows(store, length - 3, *parts[n]) for n in parts}
  found = store[f'rows/{length}']
  sizes = {name: len(x['first']) for name, x in found.items()}
  cls, sep, mask = (store['ids'][name] for name in ('[CLS]', '[SEP]', '[MASK]'))
  shape = (rows, length)
  batch = {
    'inputs': np.full(shape, store['ids']['[PAD]'], np.int32),
    'token_types': np.zeros(shape, np.int32),
    'mask': np.zeros(shape, bool),
    'masked_positions': np.zeros((rows, places), np.int32),
    'targets': np.zeros((rows, places), np.int32),
    'weights': np.zeros((rows, places), np.float32),
    'pair': np.zeros(rows, np.int32),
  }
  for i in range(rows):
    name, row = place(store, sizes, first + i)
    # The draws of a row follow from the seed and its number in the run.
    key = np.array([SEED, before + i], np.uint64)
    making, masking = (
      np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, purpose]))
      for purpose in (1, 2)
    )
    (a, b), batch['pair'][i] = texts_of(found[name], row, length - 3, making)
    a, b = (store['tokens'][slice(*text)].astype(np.int32) for text in (a, b))
    ids = np.concatenate([[cls], a, [sep], b, [sep]])
    size = len(ids)
    batch['inputs'][i, :size], batch['mask'][i, :size] = ids, True
    batch['token_types'][i, len(a) + 2 : size] = 1
    draws = masking.random(1 + length + 2 * places)
    # A share of the row's tokens, rounded at random, but none of the special ones.
    open_tokens = np.zeros(length, bool)
    open_tokens[1:size] = True
    open_tokens[[len(a) + 1, size - 1]] = False
    count = max(int(MASK_RATE * size - 1e-9 + draws[0]), 1)
    count = min(count, int(open_tokens.sum()), places)
    order = np.argsort(np.where(open_tokens, draws[1 : 1 + length], 2.0))
    chosen = np.zeros(length, bool)
    chosen[order[:count]] = True
    positions = np.argsort(~chosen, kind='stable')[:places]
    targets = batch['inputs'][i, positions]
    fate, drawn = draws[1 + length : -places], draws[-places:]
    drawn = (drawn * store['vocab_size']).astype(np.int32)
    new = np.where(fate < MASK_SHARE + RANDOM_SHARE, drawn, targets)
    new = np.where(fate < MASK_SHARE, mask, new)
    batch['inputs'][i, positions] = np.where(chosen[positions], new, targets)
    batch['masked_positions'][i], batch['targets'][i] = positions, targets
    batch['weights'][i] = chosen[positions]
  # The mean over the rows is added to the mean over the masked tokens.
  batch['pair_weights'] = np.full(rows, batch['weights'].sum() / rows, np.float32)
  return batch
