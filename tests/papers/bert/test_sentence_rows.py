# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of sentences and pairs of texts, against plain loops over lists."""

import itertools

import numpy as np
import pytest

from gpt_jax.core.rows import row_makers, row_order
from gpt_jax.core.rows.batch_rows import BatchRows
from gpt_jax.core.rows.rows import MAKING_ROWS, Keys
from gpt_jax.core.tokens.mixture import Place
from gpt_jax.papers.bert import pair_rows
from gpt_jax.papers.bert.sentence_rows import Sentences
from gpt_jax.papers.unilm.unified_order import BIDIRECTIONAL, masks
from tests.support.cases import slow
from tests.support.sentence_store import CLS, PAD, SEP, corpus, store_of


def read_all(store, length, seed=0):
  """All rows of an epoch in the order of the store."""
  maker = row_makers.load(store, length)
  numbers = np.arange(maker.num_rows)
  keys = Keys(seed, numbers, numbers, np.zeros_like(numbers))
  places = [Place('', 0, row) for row in numbers.tolist()]
  return maker.read(places, keys), keys


def as_lists(rows):
  return [tokens[real].tolist() for tokens, real in zip(rows.tokens, rows.real, strict=True)]


def expected_sentence_rows(documents, length, crossing):
  """Written out sentence by sentence."""
  room, rows, row, last = length - 2, [], [], None
  for i, sentences in enumerate(documents):
    for sentence in sentences:
      for start in range(0, len(sentence), room):
        piece = sentence[start : start + room]
        parted = [SEP] * bool(row and last != i)
        if row and (len(row) + len(parted) + len(piece) > room or (parted and not crossing)):
          rows.append(row)
          row, parted = [], []
        row = row + parted + piece
        last = i
  return [[CLS, *row, SEP] for row in [*rows, row]]


@pytest.mark.parametrize('length', [5, 11, 29])
@pytest.mark.parametrize('crossing', [True, False])
def test_rows_of_sentences_are_as_written_out(length, crossing):
  documents = corpus(97)
  name = 'full_sentences' if crossing else 'doc_sentences'
  rows, _ = read_all(store_of(documents, name), length)
  found = as_lists(rows)
  assert found == expected_sentence_rows(documents, length, crossing)
  assert rows.token_types is rows.pair is rows.before is rows.segments is None
  assert rows.special is not None
  # Each token of the corpus once, in its order; special ones are known.
  everything = [t for d in documents for s in d for t in s]
  assert rows.tokens[rows.real & ~rows.special].tolist() == everything
  assert {*rows.tokens[rows.special].tolist()} == {CLS, SEP}
  assert np.all(rows.tokens[~rows.real] == PAD)
  assert not np.any(rows.special & ~rows.real)
  document = {t: i for i, d in enumerate(documents) for s in d for t in s}
  within = [{document[t] for t in row if t >= 10} for row in found]
  assert (max(map(len, within)) > 1) == crossing


def next_of(documents, length, pair, short, generators):
  """BERT's loop over the sentences of documents, with our draws.

  But what followed an A does not go back where B is another text. Yields each
  row with its label, and whether it had one sentence.
  """
  kept = [d for d in documents if d]
  count = sum(map(len, kept))
  bits = np.random.Philox(key=pair_rows._SEED).random_raw((count, 2))
  draws, number, room = (bits >> 11) / 2**53, 0, length - 3
  numbers = iter(range(10**9))
  for i, document in enumerate(kept):
    at = 0
    while at < len(document):
      fewer, how_few = draws[number + at]
      aim = 2 + int(how_few * (room - 1)) if fewer < short else room
      chunk = []
      while at < len(document) and sum(map(len, chunk)) < aim:
        chunk.append(document[at])
        at += 1
      generator, label = generators[next(numbers)], 0
      end, coin, which, where = generator.random(4)
      a_end = 1 + int(end * (len(chunk) - 1))
      a, b = chunk[:a_end], chunk[a_end:]
      one = len(chunk) == 1
      if one or (pair == 'next' and coin < 0.5):
        label, b = 1, []
        others = [d for k, d in enumerate(kept) if k != i]
        other = others[int(which * len(others))]
        for sentence in other[int(where * len(other)) :]:
          b.append(sentence)
          if sum(map(len, b)) >= aim - sum(map(len, a)):
            break
      elif pair == 'order' and coin < 0.5:
        a, b, label = b, a, 1
      a, b = [*itertools.chain(*a)], [*itertools.chain(*b)]
      a_lost, b_lost = lost(len(a), len(b), room)
      fronts = generator.binomial([a_lost, b_lost], 0.5)
      a = a[fronts[0] : len(a) - (a_lost - fronts[0])]
      b = b[fronts[1] : len(b) - (b_lost - fronts[1])]
      yield a, b, label, one
    number += len(document)


def lost(a, b, room):
  """How many tokens the loop of the released code takes from each."""
  left = [a, b]
  while sum(left) > room:
    left[0 if left[0] > left[1] else 1] -= 1
  return a - left[0], b - left[1]


@pytest.mark.parametrize('pair', ['next', 'order'])
@pytest.mark.parametrize('length', [7, 23, 61])
def test_pairs_are_as_written_out(pair, length):
  documents = corpus(61)
  store = store_of(documents, f'pairs({pair!r}, short=0.3)')
  rows, keys = read_all(store, length, seed=5)
  expected = [*next_of(documents, length, pair, 0.3, keys.generators(MAKING_ROWS))]
  assert len(expected) == len(rows.tokens)
  assert rows.token_types is not None and rows.special is not None
  assert rows.pair is not None
  for i, (a, b, label, _) in enumerate(expected):
    row = [CLS, *a, SEP, *b, SEP]
    types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert rows.tokens[i].tolist() == row + [PAD] * (length - len(row))
    assert rows.real[i].sum() == len(row) and rows.real[i, : len(row)].all()
    assert rows.token_types[i].tolist() == types + [0] * (length - len(row))
    assert np.flatnonzero(rows.special[i]).tolist() == [0, len(a) + 1, len(row) - 1]
    assert rows.pair[i] == label and a and b


@pytest.mark.parametrize('pair', ['next', 'order'])
def test_half_of_the_pairs_are_of_each_kind(pair):
  rng = np.random.default_rng(3)
  sizes = rng.integers(1, 60, 40_009)
  stops = np.cumsum(sizes)
  documents = np.sort(rng.integers(0, 3001, len(sizes)))
  found = Sentences(stops - sizes, stops, documents)
  chunks = pair_rows.chunks(found, 125, short=0.1)
  count = len(chunks.first)
  assert count > 9_900
  numbers = np.arange(count)
  keys = Keys(7, numbers, numbers, np.zeros_like(numbers))
  drawn = [
    pair_rows.texts(chunks, row, 125, pair, generator)
    for row, generator in enumerate(keys.generators(MAKING_ROWS))
  ]
  labels = np.array([texts.pair for texts in drawn])
  a, b = (np.array([[t.ranges[k].start, t.ranges[k].stop] for t in drawn]) for k in (0, 1))
  a_in, b_in = (documents[np.searchsorted(stops, x - [0, 1], 'right')] for x in (a, b))
  for within in (a_in, b_in):
    np.testing.assert_array_equal(within[:, 0], within[:, 1])
  assert np.all((a[:, 1] - a[:, 0]) + (b[:, 1] - b[:, 0]) <= 125)
  assert np.all(a[:, 1] > a[:, 0]) and np.all(b[:, 1] > b[:, 0])
  one = chunks.stop - chunks.first == 1
  # A row of one sentence is always of pair 1, with a B from elsewhere.
  assert 0.01 < one.mean() < 0.15 and np.all(labels[one] == 1)
  assert 0.49 < labels[~one].mean() < 0.51
  assert labels.mean() > 0.5
  elsewhere = (labels == 1) if pair == 'next' else one
  assert np.all((a_in[:, 0] != b_in[:, 0]) == elsewhere)
  follows = a[:, 1] <= b[:, 0]
  assert np.all(follows[labels == 0])
  if pair == 'order':
    assert not np.any(follows[(labels == 1) & ~one])
  # One row in ten aims at fewer tokens, as many of each number.
  aims = chunks.aim[chunks.aim < 125]
  assert 0.09 < len(aims) / count < 0.11
  assert aims.min() == 2 and abs(aims.mean() - 63) < 3
  # Each row begins where the one before it ends.
  np.testing.assert_array_equal(chunks.first[1:], chunks.stop[:-1])
  assert chunks.first[0] == 0 and chunks.stop[-1] == len(sizes)


def labels_of(rows, seed, epochs, length=61):
  """Labels float [epochs, rows], NaN of rows whose label is not drawn."""
  store = store_of(corpus(401), rows)
  source = row_order.RowSource(store, length=length, seed=seed)
  count = source.rows_per_epoch
  read, keys = source.read(BatchRows(0, epochs * count, length, 0))
  assert read.pair is not None
  labels = np.full((epochs, count), np.nan)
  labels[keys.epoch, keys.row] = read.pair
  if rows != 'halves':
    # A row of one sentence has no B of its own.
    (found,) = row_makers.load(store, length)._chunks.values()
    labels[:, found.stop - found.first == 1] = np.nan
  if 'unified' in rows:
    both = np.zeros(labels.shape, bool)
    both[keys.epoch, keys.row] = masks(keys.run) == BIDIRECTIONAL
    labels[~both] = np.nan
  return labels


def even(found):
  """Of fair coins: passed by chance once in 16,000 times."""
  found = found[np.isfinite(found)]
  assert len(found) > 30
  assert abs(found.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(found))


@pytest.mark.parametrize(
  'rows',
  ["pairs('next')", *(slow(rows) for rows in ("pairs('order')", "pairs('unified')", 'halves'))],
)
def test_a_text_does_not_tell_its_label_in_later_epochs(rows):
  labels = labels_of(rows, 3, epochs=24)
  drawn = np.isfinite(labels)
  for epoch in labels:
    even(epoch)
  # Of each row over the epochs: sum of ((k - n / 2) / sd)^2 is chi-square.
  n = drawn.sum(axis=0)
  k = np.nansum(labels, axis=0)[n > 0]
  n = n[n > 0]
  squares = np.sum((k - n / 2) ** 2 / (n / 4))
  assert abs(squares - len(n)) < 4 * np.sqrt(2 * len(n))
  # Neither the epoch before nor another seed tells it.
  before, after = labels[:-1], labels[1:]
  other = labels_of(rows, 4, epochs=1)
  for one, two in ((before, after), (labels[:1], other)):
    known = np.isfinite(one) & np.isfinite(two)
    even(np.where(known, one == two, np.nan))


def test_rows_of_a_later_epoch_need_none_before_them():
  store = store_of(corpus(401), "pairs('next')")
  whole = row_order.RowSource(store, length=61, seed=3)
  count = whole.rows_per_epoch
  expected, _ = whole.read(BatchRows(0, 3 * count, 61, 0))
  again = row_order.RowSource(store, length=61, seed=3)
  first = 2 * count + 7
  found, _ = again.read(BatchRows(first, 11, 61, first))
  for name in ('tokens', 'pair', 'token_types'):
    np.testing.assert_array_equal(
      getattr(found, name), getattr(expected, name)[first : first + 11], name
    )


def test_unified_pairs_are_of_one_document_where_they_are_generated():
  """UniLM: another's text only in rows that see both sides, or have no B."""
  documents = corpus(211)
  document = {t: i for i, d in enumerate(documents) for s in d for t in s}
  rows, _ = read_all(store_of(documents, "pairs('unified', short=0.3)"), 29)
  of_next, _ = read_all(store_of(documents, "pairs('next', short=0.3)"), 29)
  assert rows.pair is not None and of_next.pair is not None
  assert rows.token_types is not None and rows.special is not None
  # The turns of each six rows: the first and the fourth see both sides.
  both = np.isin(np.arange(len(rows.pair)) % 6, (0, 3))
  np.testing.assert_array_equal(rows.tokens[both], of_next.tokens[both])
  np.testing.assert_array_equal(rows.pair[both], of_next.pair[both])
  assert 0.4 < rows.pair[both].mean() < 0.8
  assert 0 < rows.pair[~both].mean() < 0.25
  text = rows.real & ~rows.special
  for i in np.flatnonzero(~both):
    a, b = (rows.tokens[i, text[i] & (rows.token_types[i] == k)] for k in (0, 1))
    same = document[a[0]] == document[b[0]]
    assert same == (not rows.pair[i])
    if same:
      assert a[-1] < b[0] <= a[-1] + 29
    # A begins where it does with 'next'; what is cut off may differ.
    first = of_next.tokens[i, 1]
    assert document[a[0]] == document[first] and abs(a[0] - first) < 29


def test_what_is_drawn_differs_between_epochs_and_what_is_static_does_not():
  store = store_of(corpus(61), "pairs('order')")
  maker = row_makers.load(store, 23)
  numbers = np.arange(maker.num_rows)
  places = [Place('', 0, row) for row in numbers.tolist()]
  epochs = [
    maker.texts(places, Keys(0, numbers + e * 1000, numbers, numbers * 0 + e)) for e in (0, 0, 1)
  ]
  assert epochs[0] == epochs[1] != epochs[2]
  for row, again in zip(epochs[0], epochs[2], strict=True):
    if row.pair == again.pair == 0:  # both are cut somewhere of the same texts
      assert abs(row.ranges[0].start - again.ranges[0].start) < 60


@pytest.mark.parametrize('pair', ['next', 'order'])
def test_cutting_takes_from_the_longer_text(pair):
  generator = np.random.default_rng(2)
  for a, b, room in ((5, 5, 9), (9, 2, 6), (2, 9, 6), (7, 8, 4), (3, 3, 6)):
    fronts = set()
    for _ in range(40):
      texts = pair_rows.cut([range(a), range(100, 100 + b)], room, generator)
      assert (a - len(texts[0]), b - len(texts[1])) == lost(a, b, room)
      fronts.add(tuple(text.start for text in texts))
    assert (len(fronts) > 1) == (a + b > room)


@pytest.mark.parametrize('rows', ['full_sentences', 'doc_sentences', 'pairs'])
def test_sources_of_a_mixture_do_not_meet(rows):
  documents = corpus(41)
  parts = ['a'] * 17 + ['b'] * 24
  store = store_of(documents, rows, parts)
  maker = row_makers.load(store, 19)
  alone = {
    'a': row_makers.load(store_of(documents[:17], rows), 19),
    'b': row_makers.load(store_of(documents[17:], rows), 19),
  }
  begins = {'a': 0, 'b': store.manifest.parts['a']}
  for name, other in alone.items():
    numbers = np.arange(other.num_rows)
    keys = Keys(3, numbers, numbers, numbers * 0)
    assert maker.sizes[name] == other.num_rows
    whole, own = (
      m.texts([Place(n, 0, row) for row in numbers.tolist()], keys)
      for m, n in ((maker, name), (other, ''))
    )
    if rows == 'pairs' and name == 'b':
      continue  # what is drawn for a sentence goes by its number in a source
    assert [[(r.start, r.stop) for r in texts.ranges] for texts in whole] == [
      [(begins[name] + r.start, begins[name] + r.stop) for r in texts.ranges] for texts in own
    ]
