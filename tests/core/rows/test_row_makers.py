# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every choice of `data.rows` has to hold, on small stores in memory."""

import functools

import numpy as np
import pytest

from gpt_jax.core import spec
from gpt_jax.core.rows import row_makers, row_order
from gpt_jax.core.rows.batch_rows import BatchRows
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Place
from tests.support.sentence_store import corpus, store_of

LENGTH = 23
PARALLEL = ('parallel', "parallel(start='cls')")
CHOICES = (
  'stream',
  'documents',
  'full_sentences',
  'doc_sentences',
  "pairs('next')",
  "pairs('next', short=0.9)",
  "pairs('order', short=0.5)",
  "pairs('unified', short=0.3)",
  'halves',
  *PARALLEL,
)
# Rows whose tokens are drawn anew each time: counts of them are expectations.
DRAWN = ('pairs',)


def name_of(rows):
  return spec.parse('data.rows', rows)[0].name


def pairs_of(documents):
  """Documents of one text each, two a pair, none of them empty."""
  texts = [[[t for s in d for t in s]] for d in documents if d]
  return texts[: len(texts) // 2 * 2]


@functools.cache
def store(rows, kind='mixed'):
  """A store of `corpus`, or one that is hard on what counts tokens.

  Args:
    rows: `data.rows`.
    kind: 'mixed' (some documents are empty), 'sources' (a mixture of two) or
      'uneven' (one long document among many of a short sentence).
  """
  documents = corpus(97)
  if kind == 'uneven':
    token = iter(range(10, 10**6))
    sentences = [[next(token) for _ in range(7)] for _ in range(211)]
    documents = [[[next(token), next(token)]] for _ in range(151)]
    documents.insert(3, sentences)
  if rows in PARALLEL:
    documents = pairs_of(documents)
  parts = None
  if kind == 'sources':
    parts = ['a' if i < 40 else 'b' for i in range(len(documents))]
  return store_of(documents, rows, parts, pairs=rows in PARALLEL)


def places_of(maker):
  return [Place(name, 0, row) for name, n in maker.sizes.items() for row in range(n)]


def keys_of(places, seed=0, epoch=0):
  numbers = np.arange(len(places)) + epoch * len(places)
  rows = np.array([place.row for place in places], np.int64)
  return Keys(seed, numbers, rows, np.full(len(places), epoch))


def arrays(rows, prefix=''):
  """The arrays of rows by name, those of the source as 'source.NAME'."""
  found = {}
  for name, value in rows._asdict().items():
    if name == 'source' and value is not None:
      found |= arrays(value, 'source.')
    elif value is not None:
      found[prefix + name] = value
  return found


def real_tokens(maker, epochs=1):
  """Tokens of each source that are no padding, a mean over epochs."""
  places = places_of(maker)
  counts = dict.fromkeys(maker.sizes, 0)
  for epoch in range(epochs):
    real = maker.read(places, keys_of(places, 5, epoch)).real.sum(axis=1)
    for place, count in zip(places, real.tolist(), strict=True):
      counts[place.source] += count
  return {name: count / epochs for name, count in counts.items()}


def test_every_choice_is_here():
  assert {name_of(rows) for rows in CHOICES} == {*row_makers.ROWS}


@pytest.mark.parametrize('rows', CHOICES)
def test_blank_read_and_held_out_rows_have_the_same_arrays(rows):
  maker = row_makers.load(store(rows), LENGTH)
  numbers = np.arange(3)
  read = maker.read([Place('', 0, i) for i in range(3)], Keys.held_out(numbers))
  held = maker.read_held_out(Keys.held_out(numbers))
  blank = row_makers.blank(rows, LENGTH)
  kinds = [
    {name: (x.dtype, x.shape[1:]) for name, x in arrays(some).items()}
    for some in (read, held, blank)
  ]
  assert kinds[0] == kinds[1] == kinds[2]
  assert not any(x.any() for x in arrays(blank).values())


@pytest.mark.parametrize('kind', ['mixed', 'sources', 'uneven'])
@pytest.mark.parametrize('rows', CHOICES)
def test_counted_tokens_are_those_that_rows_have(rows, kind):
  maker = row_makers.load(store(rows, kind), LENGTH)
  assert maker.num_rows == sum(maker.sizes.values()) > 10
  drawn = name_of(rows) in DRAWN
  counted = maker.tokens
  if counted is None:  # no padding
    counted = {name: n * LENGTH for name, n in maker.sizes.items()}
  found = real_tokens(maker, 24 if drawn else 1)
  tolerance = 0.015 if drawn else 0
  assert counted == pytest.approx(found, rel=tolerance, abs=0)


@pytest.mark.parametrize('rows', CHOICES)
def test_texts_say_which_tokens_a_row_has(rows):
  made = store(rows)
  maker = row_makers.load(made, LENGTH)
  places = places_of(maker)
  keys = keys_of(places)
  read = maker.read(places, keys)
  for i, texts in enumerate(maker.texts(places, keys)):
    said = [t for part in texts.ranges for t in made.tokens(part.start, part.stop)]
    found = []
    for side in (read, read.source):
      if side is not None:
        found += side.tokens[i][side.real[i]].tolist()
    if read.before is not None and name_of(rows) == 'stream':
      found.append(int(read.before[i]))
    # Special tokens stand around texts, or for the end of a document.
    assert sorted(t for t in found if t >= 10) == sorted(int(t) for t in said if t >= 10)


@pytest.mark.parametrize('rows', CHOICES)
def test_a_row_does_not_depend_on_those_beside_it(rows):
  maker = row_makers.load(store(rows, 'sources'), LENGTH)
  places = places_of(maker)
  keys = keys_of(places, seed=3)
  together = arrays(maker.read(places, keys))
  order = np.random.default_rng(0).permutation(len(places))[:31]
  some = Keys(3, *(column[order] for column in keys[1:]))
  found = arrays(maker.read([places[i] for i in order], some))
  for name, value in found.items():
    np.testing.assert_array_equal(value, together[name][order], name)


@pytest.mark.parametrize('rows', CHOICES)
def test_rows_hold_together_under_the_order_of_a_mixture(rows):
  made = store(rows, 'sources')
  maker = row_makers.load(made, LENGTH)
  source = row_order.RowSource(made, length=LENGTH, seed=7)
  count = 2 * maker.num_rows
  taken = BatchRows(0, count, LENGTH, 0)
  places, _ = source.places(taken)
  read, _ = source.read(taken)
  bounds = {}
  for name, (start, stop) in made.parts().items():
    of_part = made.tokens(start, stop)
    bounds[name] = {*of_part[of_part >= 10].tolist()}
  for i, place in enumerate(places):
    row = read.tokens[i][read.real[i]]
    assert {*row[row >= 10].tolist()} <= bounds[place.source]
  # A source is gone through once before any of its rows comes again.
  for name, size in maker.sizes.items():
    seen = [place.row for place in places if place.source == name]
    assert len({*seen[:size]}) == min(size, len(seen))


@pytest.mark.parametrize(
  'rows', [pytest.param(rows, marks=[pytest.mark.slow] * (rows in PARALLEL)) for rows in CHOICES]
)
def test_shares_of_tokens_are_those_of_real_tokens(rows):
  """Of one source the rows are nearly full, of the other nearly empty."""
  token = iter(range(10, 10**6))
  long = [[[next(token) for _ in range(7)] for _ in range(59)] for _ in 'abcd']
  short = [[[next(token), next(token)]] for _ in range(601)]
  parts = ['a'] * len(long) + ['b'] * len(short)
  if rows in PARALLEL:
    long = pairs_of([[[next(token)] * 19] for _ in range(38)])
    short = pairs_of([[[next(token)] * (2 + i % 2 * 17)] for i in range(302)])
    parts = ['a'] * len(long) + ['b'] * len(short)
  made = store_of([*long, *short], rows, parts, pairs=rows in PARALLEL)
  made.ordered("mixture(a:0.5, b:0.5, shares='tokens')", rows)
  source = row_order.RowSource(made, length=LENGTH, seed=1)
  taken = BatchRows(0, 500, LENGTH, 0)
  places, _ = source.places(taken)
  counts = source.read(taken)[0].real.sum(axis=1)
  of_a = np.array([place.source == 'a' for place in places])
  assert counts[of_a].sum() / counts.sum() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize('rows', CHOICES)
def test_held_out_rows_are_the_same_and_end_in_padding(rows):
  made = store(rows)
  maker = row_makers.load(made, LENGTH)
  count = maker.num_held_out
  held = maker.read_held_out(Keys.held_out(np.arange(count + 3)))
  assert held.real[:count].any(axis=1).all()
  assert not held.real[count:].any()
  assert held.source is None or not held.source.real[count:].any()
  again = maker.read_held_out(Keys.held_out(np.arange(2, 5)))
  for name, value in arrays(again).items():
    np.testing.assert_array_equal(value, arrays(held)[name][2:5], name)
  # Cut or drawn texts aside, each token is a target once.
  if name_of(rows) in ('stream', 'documents', 'full_sentences'):
    found = held.tokens[held.real]
    everything = made.tokens(0, len(made))
    np.testing.assert_array_equal(found[found >= 10], everything[everything >= 10])


@pytest.mark.parametrize('rows', CHOICES)
def test_a_store_that_is_too_short_is_refused(rows):
  made = store_of([[[10, 11]], [[12]]], rows, pairs=rows in PARALLEL)
  try:
    num_rows = row_order.RowSource(made, length=501, seed=0).rows_per_epoch
  except UsageError as e:
    assert 'memory: has 5 tokens' in str(e) or 'one document only' in str(e)
    assert name_of(rows) in ('stream', 'pairs', 'halves')
  else:
    assert 1 <= num_rows <= 2  # one for each document


@pytest.mark.parametrize('rows', CHOICES)
def test_rows_of_sentences_need_sentences_and_the_tokens_around_them(rows):
  row_makers.check(rows, 'terminal')
  if not row_makers.of_sentences(rows):
    row_makers.check(rows, 'none')
    return
  with pytest.raises(UsageError, match=r"set data.sentences='terminal'"):
    row_makers.check(rows, 'none')
  made = store_of(corpus(13), rows)
  made.special = made.special._replace(sep_id=None)
  with pytest.raises(UsageError, match=r'has no \[SEP\], which data.rows='):
    row_makers.load(made, LENGTH)


@pytest.mark.parametrize(
  ('rows', 'length', 'words'),
  [
    ('pairs', 4, 'context_length=4: .* give 5 or more'),
    ('halves', 9, 'context_length=9: .* give 10 or more'),
    ('full_sentences', 2, 'context_length=2: .* give 3 or more'),
    ('parallel', 1, 'context_length=1: .* give 2 or more'),
    ("pairs('nsp')", 11, "pair='nsp' is unknown; one of next, order"),
    ('pairs(short=1.5)', 11, 'data.rows'),
    ('sentences', 11, 'data.rows.*full_sentences'),
  ],
)
def test_what_cannot_be_made_is_refused(rows, length, words):
  documents = pairs_of(corpus(13)) if rows == 'parallel' else corpus(13)
  with pytest.raises(UsageError, match=words):
    row_makers.load(store_of(documents, rows, pairs=rows == 'parallel'), length)


@pytest.mark.parametrize(
  ('rows', 'documents', 'words'),
  [
    ('pairs', [[[9, 8], [7]], []], 'text in one document only.*full_sent'),
    ('full_sentences', [[], []], 'no document has a token'),
  ],
)
def test_documents_without_rows_are_refused(rows, documents, words):
  with pytest.raises(UsageError, match=words):
    row_makers.load(store_of(documents, rows), 11)
