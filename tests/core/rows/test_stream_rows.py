# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of whole documents: each token once, no document sees another."""

import itertools
import logging

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_jax.core.objectives import causal
from gpt_jax.core.rows import batch_rows, ledger, row_makers, row_order, stream_rows
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.tokens import prepare
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.mixture import phases
from gpt_jax.core.tokens.store import TokenStore
from tests.support import tiny

EOS = 0


def make_store(sizes, parts=None):
  """A store of documents of so many tokens, eos included; ids below V."""
  ends = np.cumsum(sizes)
  tokens = 1 + tiny.tokens(int(ends[-1]), vocab_size=tiny.V - 1)
  tokens[ends - 1] = EOS
  text = dict.fromkeys(('source', 'source_sha256', 'holdout', 'tokenizer', 'dtype'), 'none')
  store = TokenStore(
    'D',
    Manifest(
      **text,
      tokenizer_fingerprint='',
      vocab_size=tiny.V,
      eos_id=EOS,
      num_tokens=len(tokens),
      num_documents=len(sizes),
      num_bytes=len(tokens),
      tokens_crc32=[],
      document_ends_crc32=[],
      parts=parts or {},
    ),
    {'tokens': tokens.astype(np.uint16), 'document_ends': ends},
  )
  return store.ordered('stdlib', 'documents')


def rows_of(sizes, length):
  """Documents into rows one by one, as (document, start, stop) of each."""
  rows, room = [], 0
  for document, size in enumerate(sizes):
    done = 0
    while size - done > length:
      rows.append([(document, done, done + length)])
      done, room = done + length, 0
    left = size - done
    if done or left > room:
      rows.append([])
      room = length
    rows[-1].append((document, done, size))
    room -= left
  return rows


@given(st.lists(st.integers(1, 23), min_size=1, max_size=40), st.integers(1, 11))
def test_rows_hold_as_many_documents_as_fit(sizes, length):
  ends = np.cumsum(sizes)
  expected = rows_of(sizes, length)
  found = stream_rows.begins(ends, length, 0, int(ends[-1]))
  spans = [
    [tuple(s) for s in ledger.spans(ends, int(a), int(b))] for a, b in itertools.pairwise(found)
  ]
  assert spans == expected
  assert np.diff(found).max() <= length
  # A part of a store, such as a source of a mixture, is packed by itself.
  middle = len(sizes) // 2
  if middle:
    second = stream_rows.begins(ends, length, int(ends[middle - 1]), int(ends[-1]))
    alone = stream_rows.begins(np.cumsum(sizes[middle:]), length, 0, sum(sizes[middle:]))
    np.testing.assert_array_equal(second, alone + ends[middle - 1])


def test_segments_written_out():
  found = stream_rows.segments_of(np.array([[5, 0, 6, 7, 0, 0, 0]]), 0)
  np.testing.assert_array_equal(found[0], [[0, 0, 1, 1, 1, 2, 3]])
  np.testing.assert_array_equal(found[1], [[0, 1, 0, 1, 2, 0, 0]])


SIZES = [3, 9, 1, 2, 31, 4, 13, 5, 7, 6, 2, 11]


def test_the_loss_of_packed_documents_is_that_of_each_alone():
  """Embeddings, attention, loss and weights together, on rows as trained on."""
  length = 13
  store = make_store(SIZES)
  documents = np.split(store.tokens(0, len(store)), store.document_ends[:-1])
  pieces, before = [], []
  for document in documents:
    for i in range(0, len(document), length):
      pieces.append(document[i : i + length])
      # What it is predicted from: of a long document, the token before.
      before.append(document[i - 1] if i else EOS)
  (packed,) = row_order.evaluation_batches(
    store, length=length, rows=len(pieces), make_batch=causal.make_batch
  )
  assert len(rows_of(SIZES, length)) < len(pieces)
  sizes = np.array([len(piece) for piece in pieces])
  columns = np.arange(length)[None]
  targets = np.full((len(pieces), length), EOS, np.int32)
  for row, piece in zip(targets, pieces, strict=True):
    row[: len(piece)] = piece
  one = np.zeros_like(targets)
  alone = {
    'inputs': np.column_stack([before, targets[:, :-1]]).astype(np.int32),
    'targets': targets,
    'weights': np.float32(columns < sizes[:, None]),
    'segments': one,
    'positions': one + columns,
  }
  model = tiny.model(num_layers=1, num_kv_heads=2, attention_backend='auto')
  params = tiny.params(model)
  loss = jax.jit(lambda batch: causal.Causal().bind(model).loss(params, batch, None))
  found, expected = loss(packed), loss(alone)
  assert float(found.weight) == float(expected.weight) == sum(SIZES)
  np.testing.assert_allclose(found.sum, expected.sum, rtol=1e-5)
  # In one segment the documents see each other.
  leaking = loss(packed | {'segments': one})
  assert abs(float(leaking.sum - expected.sum)) > 1e-3 * float(expected.sum)


def test_every_host_and_epoch_has_its_rows():
  length = 7
  store = make_store([*SIZES, *SIZES[::-1]])
  count = row_makers.load(store, length).num_rows
  source = row_order.RowSource(store, length=length, seed=3)
  for epoch in range(2):
    rows = source.batch(batch_rows.even(count, length)(epoch), causal.make_batch)
    found = rows['targets'][rows['weights'] > 0]
    everything = store.tokens(0, len(store))
    np.testing.assert_array_equal(np.sort(found), np.sort(everything))
  (step,) = ledger.steps(
    store, **dict(seed=3, start=0, stop=1, rows=batch_rows.even(count, length))
  )
  seen = sorted((s.document, s.start, s.stop) for r in step.rows for s in r.spans)
  assert seen == sorted(s for row in rows_of([*SIZES, *SIZES[::-1]], length) for s in row)


def test_a_mixture_packs_each_source_by_itself():
  length = 7
  sizes = {'a': SIZES[:5], 'b': SIZES[5:]}
  store = make_store(SIZES, {'a': sum(sizes['a']), 'b': sum(SIZES)})
  store.mixture = phases('mixture(a:0.5, b:0.5)')
  source = row_order.RowSource(store, length=length, seed=3)
  maker = row_makers.load(store, length)
  found = {(p.source, p.row) for p in map(source.place, range(200))}
  assert found == {
    (name, row) for name, part in sizes.items() for row in range(len(rows_of(part, length)))
  }
  for name, row in found:
    place = source.place(0)._replace(source=name, row=row)
    spans = rows_of(sizes[name], length)[row]
    first = 0 if name == 'a' else 5
    ((tokens,), _) = maker.texts([place], Keys(0, *[np.zeros(1, int)] * 3))[0]
    assert ledger.spans(store.document_ends, tokens.start, tokens.stop) == [
      (first + d, i, j) for d, i, j in spans
    ]


def test_the_config_chooses_them(corpus, make_config):
  config = make_config(holdout='tail(fraction=0.3)').unlock()
  config.data.rows = 'documents'
  store = prepare.ensure(config, 'D')
  batch = next(
    row_order.evaluation_batches(
      store.validation(), length=101, rows=3, make_batch=causal.make_batch
    )
  )
  assert batch['segments'].max() > 0


def shares_of_tokens(source, phase, first, stop):
  """The share of the targets that each source has in rows of the run."""
  sizes = dict.fromkeys(phase, 0)
  for i in range(first, stop):
    places, keys = source.places(batch_rows.BatchRows(i, 1, 0, i))
    ((tokens,), _) = source.texts(places, keys)[0]
    sizes[places[0].source] += len(tokens)
  return {n: size / sum(sizes.values()) for n, size in sizes.items()}


@pytest.mark.slow
def test_weights_are_shares_of_tokens_where_it_says_so(caplog):
  # In rows of 97 one source fills 61 of them at most, one 26 to 86, and one of
  # long documents nearly all.
  rng = np.random.default_rng(23)
  length, sizes, parts = 97, [], {}
  for name, (low, high), count in (
    ('long', (970, 1100), 31),
    ('medium', (20, 90), 211),
    ('pairs', (50, 62), 307),
  ):
    sizes += rng.integers(low, high, size=count).tolist()
    parts[name] = sum(sizes)
  first = {'long': 0.5, 'medium': 0.2, 'pairs': 0.3}
  then = {'long': 0.1, 'pairs': 0.9}
  text = ', '.join(
    'mixture('
    + ''.join(f'{name}:{weight}, ' for name, weight in phase.items())
    + f"from_token={from_row * length}, shares='tokens')"
    for phase, from_row in ((first, 0), (then, 7919))
  )
  store = make_store(sizes, parts)
  with caplog.at_level(logging.INFO):
    source = row_order.RowSource(store.ordered(text, 'documents'), length=length, seed=5)
  assert 'from token 0 weights are shares of tokens: long 0.397' in caplog.text
  for phase, start, stop in ((first, 0, 7919), (then, 7919, 15_000)):
    found = shares_of_tokens(source, phase, start, stop)
    for name, weight in phase.items():
      assert abs(found[name] - weight) < 0.003, (name, found)
  # Any row alone is what it is among all: a run may be resumed.
  again = row_order.RowSource(store, length=length, seed=5)
  assert again.place(12_345) == source.place(12_345)
  # Shares of rows are the default, and their tokens are other shares.
  rows = make_store(sizes, parts).ordered(
    text.replace("shares='tokens'", "shares='rows'"), 'documents'
  )
  source = row_order.RowSource(rows, length=length, seed=5)
  found = shares_of_tokens(source, first, 0, 7919)
  assert found['pairs'] < 0.25 and found['long'] > 0.55
  plain = phases(text.replace(", shares='tokens'", ''))
  assert plain == rows.mixture
