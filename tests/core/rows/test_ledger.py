# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ledger against the batches that the pipeline really yields."""

import numpy as np
import pytest

from gpt_jax.core.config import order
from gpt_jax.core.objectives import causal
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.rows import ledger, row_makers, row_order
from gpt_jax.core.rows.batch_rows import even
from gpt_jax.core.tokens import prepare

LENGTH = 13
SEED = 5


@pytest.fixture
def store(corpus, make_config):
  return prepare.ensure(make_config(), 'D')


def documents(store):
  """The tokens of each document."""
  tokens = store.tokens(0, len(store))
  return np.split(tokens, store.document_ends[:-1])


def test_the_documents_named_are_those_in_the_batches(store):
  texts = documents(store)
  per_epoch = row_makers.load(store, LENGTH).num_rows
  # A ramp that comes into the second epoch.
  ramp = batch_ramp.build(f'ramp(0:3, 4_steps:7, 6_steps:{per_epoch})', row_tokens=LENGTH)
  arguments = dict(seed=SEED, start=2, stop=8, rows=order(ramp))
  found = list(ledger.steps(store, **arguments))
  batches = list(row_order.batches(store, **arguments, make_batch=causal.make_batch))
  assert [s.step for s in found] == [*range(2, 8)]
  assert {row.epoch for row in found[-1].rows} == {1, 2}
  numbers = [row.row for s in found for row in s.rows]
  assert numbers == [*range(6, ramp.offset(8))]
  for step, batch in zip(found, batches, strict=True):
    for b, row in enumerate(step.rows):
      claimed = np.concatenate([texts[d][i:j] for d, i, j in row.spans])
      np.testing.assert_array_equal(claimed[:-1], batch['inputs'][b])
      np.testing.assert_array_equal(claimed[1:], batch['targets'][b])
      assert row.epoch == row.row // per_epoch
  # Each row of the store once in an epoch.
  first = [row.position for s in found for row in s.rows if row.epoch == 0]
  assert len(first) == len({*first})


def test_an_epoch_consumes_each_token_once_as_a_target(store):
  per_epoch = row_makers.load(store, LENGTH).num_rows
  (step,) = ledger.steps(store, seed=SEED, start=0, stop=1, rows=even(per_epoch, LENGTH))
  sizes = np.diff(store.document_ends, prepend=0)
  counts = [np.zeros(size, int) for size in sizes]
  for row in step.rows:
    for document, start, stop in row.spans:
      counts[document][start:stop] += 1
  flat = np.concatenate(counts)
  # A row's last token is the first input of the next row.
  shared = np.arange(len(flat)) % LENGTH == 0
  inner = flat[1 : per_epoch * LENGTH]
  np.testing.assert_array_equal(inner, 1 + shared[1 : per_epoch * LENGTH])


@pytest.mark.parametrize(
  'start, stop, expected',
  [
    (0, 3, [(0, 0, 3)]),
    (2, 6, [(0, 2, 3), (2, 0, 3)]),
    (4, 5, [(2, 1, 2)]),
    (7, 8, [(2, 4, 5)]),
    (7, 12, [(2, 4, 5), (3, 0, 1), (4, 0, 3)]),
  ],
)
def test_spans(start, stop, expected):
  # Documents of 3, 0, 5, 1 and 4 tokens.
  ends = np.array([3, 3, 8, 9, 13])
  assert ledger.spans(ends, start, stop) == expected
