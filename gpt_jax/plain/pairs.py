# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of pairs of a source and a target text, packed on both sides."""

import numpy as np

from gpt_jax.plain.order import shuffled
from gpt_jax.plain.recipe import CONTEXT_LENGTH, ORDER
from gpt_jax.plain.schedules import shape_of
from gpt_jax.plain.types import Batch, Store

OPEN = 8  # rows that wait for further pairs at a time


def packed(store: Store) -> list[list[int]]:
  """The pairs in each row: shuffled once, each goes into the first open row with room for it."""
  counts = np.diff(store['document_ends'], prepend=0).reshape(-1, 2)
  counts = np.minimum(counts, CONTEXT_LENGTH)
  order = np.argsort(np.random.Philox(key=0xB17E).random_raw(len(counts)), kind='stable')
  rows, waiting = [], []
  for pair in order.tolist():
    for row in waiting:
      if np.all(row[1] >= counts[pair]):
        break
    else:
      row = ([], np.full(2, CONTEXT_LENGTH))
      rows.append(row[0])
      waiting = [*waiting, row][-OPEN:]
    row[0].append(pair)
    row[1][:] -= counts[pair]
  return rows


def pair_batch(store: Store, step: int) -> Batch:
  """Sources for the encoder, targets for the decoder; pair n of a row is segment n of both."""
  rows, length, before, tokens = shape_of(step)
  # Rows of one length are counted by their tokens.
  first = -(-tokens // length)
  if 'rows' not in store:
    store['rows'] = packed(store)
  eos, ends = store['eos_id'], store['document_ends']
  shape = (rows, length)
  batch = {}
  numbers = [shuffled(index, len(store['rows']), ORDER) for index in range(first, first + rows)]
  for side, prefix in enumerate(('source_', '')):
    tokens = np.full(shape, eos, np.int32)
    segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    real = np.zeros(shape, bool)
    for i, number in enumerate(numbers):
      pairs, stop = store['rows'][number], 0
      for segment, pair in enumerate(pairs):
        document = 2 * pair + side
        begin = ends[document - 1] if document else 0
        ids = store['tokens'][begin : min(ends[document], begin + length)]
        start, stop = stop, stop + len(ids)
        tokens[i, start:stop], segments[i, start:stop] = ids, segment
        positions[i, start:stop] = np.arange(len(ids))
      real[i, :stop], segments[i, stop:] = True, len(pairs)
      positions[i, stop:] = np.arange(length - stop)
    batch |= {f'{prefix}segments': segments, f'{prefix}positions': positions}
    if side == 0:
      batch |= {'sources': tokens, 'source_mask': real}
    else:
      # The decoder reads the token before each target, and an end before the first of a text.
      before = np.concatenate([np.full((rows, 1), eos, np.int32), tokens[:, :-1]], axis=1)
      batch |= {'inputs': np.where(positions == 0, eos, before), 'targets': tokens}
      batch['weights'] = real.astype(np.float32)
  return batch
