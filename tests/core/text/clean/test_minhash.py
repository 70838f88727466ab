# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fuzzy deduplication, against Jaccard similarities of all pairs."""

import random

import numpy as np
import pytest
import scipy.sparse

from gpt_jax.core.text import ngrams
from gpt_jax.core.text.clean import choices, minhash
from gpt_jax.core.text.clean.steps import Document, Findings

WORDS = [f'w{i}' for i in range(997)]


def shingles(text, n):
  words = text.split()
  return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def jaccard(a, b):
  return len(a & b) / len(a | b)


def decide(step, texts, order=None):
  """Document -> the one that stays for it, as the steps say."""
  rows = [step.rows(text) for text in texts]
  sketches = np.stack([r.sketch for r in rows])
  grouped = {}
  for place in order or range(len(texts)):
    for key in rows[place].keys.tolist():
      grouped.setdefault(key, []).append(place)
  found = [Findings(*np.empty((2, 0), 'u8'))]
  for key, members in grouped.items():  # group by group, as Beam does
    places = np.array(sorted(members), 'u8')
    keys = np.full(len(places), key, 'u8')
    zeros = np.zeros_like(keys)
    found.append(step.judge(keys, places, zeros, lambda p: sketches[p]))
  joined = Findings(*map(np.concatenate, zip(*found, strict=True)))
  gone = step.conclude(joined)
  return dict(zip(gone.places.tolist(), gone.values.tolist(), strict=True))


@pytest.fixture(scope='module')
def texts():
  """61 documents; some are copies with changes of 0 to 60 % of shingles."""
  rng = random.Random(5)
  made = [' '.join(rng.choices(WORDS, k=211)) for _ in range(31)]
  while len(made) < 61:
    words = rng.choice(made[:31]).split()
    for i in rng.sample(range(211), rng.choice([0, 1, 2, 3, 19, 23])):
      words[i] = rng.choice(WORDS)
    made.append(' '.join(words))
  rng.shuffle(made)
  return made


def components(links, size):
  """Number of its component's first member, for each."""
  graph = scipy.sparse.coo_array(links)
  _, of = scipy.sparse.csgraph.connected_components(graph, directed=False)
  return [int(np.flatnonzero(of == of[i])[0]) for i in range(size)]


def test_against_all_pairs(texts):
  """With so many values that estimates are nearly exact."""
  step = choices.load('minhash(threshold=0.63, hashes=40, rows=5)')[0]
  sets = [shingles(text, 5) for text in texts]
  exact = np.array([[jaccard(a, b) for a in sets] for b in sets])
  near = np.abs(exact - 0.63) < 0.1
  assert not near.any()  # or the test would hang on luck
  first = components(exact >= 0.63, len(texts))
  expected = {i: f for i, f in enumerate(first) if i != f}
  assert len(expected) > 13
  assert decide(step, texts) == expected


def test_the_order_of_work_does_not_matter(texts):
  step = choices.load('minhash(hashes=7, rows=2)')[0]
  expected = decide(step, texts)
  order = [*range(len(texts))]
  random.Random(1).shuffle(order)
  assert decide(step, texts, order) == expected != {}


def test_groups_are_links_of_candidates_that_agree(texts, monkeypatch):
  """The graph as it is defined, from signatures."""
  monkeypatch.setattr(minhash, '_PAIRS', 29)
  step = choices.load('minhash(threshold=0.75, hashes=6, rows=2)')[0]
  values = np.stack([minhash.signature(text, 5, 12) for text in texts])
  agree = values[:, None] == values
  tables = agree.reshape(*agree.shape[:2], 6, 2)
  links = tables.all(-1).any(-1) & (agree.mean(-1) >= 0.75)
  first = components(links, len(texts))
  expected = {i: f for i, f in enumerate(first) if i != f}
  assert decide(step, texts) == expected


def test_estimates_are_jaccard_similarities(texts):
  sets = [shingles(text, 3) for text in texts[:23]]
  values = [minhash.signature(text, 3, 997) for text in texts[:23]]
  for a, x in zip(sets, values, strict=True):
    for b, y in zip(sets, values, strict=True):
      # Five standard errors of 997 values.
      assert abs(np.mean(x == y) - jaccard(a, b)) < 5 * 0.5 / 997**0.5


def test_signatures_do_not_depend_on_blocks(monkeypatch):
  text = 'The one, the other;\nand "the one" again: ' * 11
  whole = minhash.signature(text, 3, 7)
  monkeypatch.setattr(ngrams, '_BLOCK', 17)
  monkeypatch.setattr(minhash, '_SHINGLES', 2)
  np.testing.assert_array_equal(minhash.signature(text, 3, 7), whole)


def test_short_documents():
  step = choices.load('minhash')[0]
  texts = ['Two words', 'two WORDS.', '— !', '— !', 'other words']
  assert decide(step, texts) == {1: 0}


def test_what_is_removed_names_what_stays():
  step = choices.load('minhash')[0]
  document = Document(512, '', 'x', 'ä b')
  assert step.clean(document, np.array([], 'u8')).documents == [document]
  documents, (removal,) = step.clean(document, np.array([256], 'u8'))
  assert not documents
  assert (removal.like, removal.num_bytes) == (256, 4)


def judged(sketches, threshold=0.8):
  """Of one group of documents: each, and the one that stays for it."""
  step = choices.load(f'minhash(threshold={threshold})')[0]
  places = np.arange(len(sketches), dtype='u8')
  keys = np.zeros_like(places)
  gone = step.conclude(step.judge(keys, places, keys, lambda wanted: sketches[wanted]))
  stays = np.arange(len(sketches))
  stays[gone.places.astype(int)] = gone.values
  return stays


@pytest.fixture
def compared(monkeypatch):
  """How many pairs of signatures were compared."""
  counts, count = [], minhash._num_equal

  def counted(some, sketches):
    found = count(some, sketches)
    counts.append(found.size)
    return found

  monkeypatch.setattr(minhash, '_num_equal', counted)
  return counts


def make_pages(num_pages, num_templates):
  """Signatures of pages made from templates: each differs in 5 of 50 values."""
  rng = np.random.default_rng(31)
  templates = rng.integers(1 << 32, size=(num_templates, 50), dtype='u4')
  of = rng.integers(num_templates, size=num_pages)
  pages = templates[of]
  for page in pages:
    at = rng.choice(50, size=5, replace=False)
    page[at] = rng.integers(1 << 32, size=5, dtype='u4')
  return pages, of


@pytest.mark.parametrize('num_templates', [1, 7])
def test_template_pages_are_not_compared_in_pairs(compared, num_templates):
  pages, of = make_pages(5003, num_templates)
  stays = judged(pages)
  first = [int(np.flatnonzero(of == t)[0]) for t in range(num_templates)]
  np.testing.assert_array_equal(stays, np.array(first)[of])
  # In pairs they would be 25,030,009.
  assert sum(compared) <= 5003 * num_templates


def test_a_group_without_any_alike_is_bounded(compared):
  rng = np.random.default_rng(37)
  pages = rng.integers(1 << 32, size=(3001, 50), dtype='u4')
  np.testing.assert_array_equal(judged(pages), np.arange(3001))
  assert sum(compared) == 3001 * 256


def test_large_groups_are_judged_as_small_ones(monkeypatch):
  # Chains too: of three in a row only neighbours are alike.
  pages, _ = make_pages(211, 13)
  pages[100] = pages[0]
  pages[100, :10] += 1
  pages[101] = pages[100]
  pages[101, 10:20] += 1
  expected = judged(pages)
  assert expected[100] == expected[101] == expected[0]
  monkeypatch.setattr(minhash, '_REPRESENTATIVES', 151)
  np.testing.assert_array_equal(judged(pages), expected)
