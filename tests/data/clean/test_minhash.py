# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fuzzy deduplication, against Jaccard similarities of all pairs."""

import random

import numpy as np
import pytest
import scipy.sparse

from gpt_jax.data import ngrams
from gpt_jax.data.clean import choices, minhash
from gpt_jax.data.clean.steps import Document, Findings
from gpt_jax.spec import UsageError

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
  step = choices.load('minhash(threshold=0.63, hashes=40, rows=5)').steps[0]
  sets = [shingles(text, 5) for text in texts]
  exact = np.array([[jaccard(a, b) for a in sets] for b in sets])
  near = np.abs(exact - 0.63) < 0.1
  assert not near.any()  # or the test would hang on luck
  first = components(exact >= 0.63, len(texts))
  expected = {i: f for i, f in enumerate(first) if i != f}
  assert len(expected) > 13
  assert decide(step, texts) == expected


def test_the_order_of_work_does_not_matter(texts):
  step = choices.load('minhash(hashes=7, rows=2)').steps[0]
  expected = decide(step, texts)
  order = [*range(len(texts))]
  random.Random(1).shuffle(order)
  assert decide(step, texts, order) == expected != {}


def test_groups_are_links_of_candidates_that_agree(texts, monkeypatch):
  """The graph as it is defined, from signatures."""
  monkeypatch.setattr(minhash, '_PAIRS', 29)
  step = choices.load('minhash(threshold=0.75, hashes=6, rows=2)').steps[0]
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
  step = choices.load('minhash').steps[0]
  texts = ['Two words', 'two WORDS.', '— !', '— !', 'other words']
  assert decide(step, texts) == {1: 0}


def test_what_is_removed_names_what_stays():
  step = choices.load('minhash').steps[0]
  document = Document(512, '', 'x', 'ä b')
  assert step.clean(document, np.array([], 'u8')).documents == [document]
  documents, (removal,) = step.clean(document, np.array([256], 'u8'))
  assert not documents
  assert (removal.like, removal.num_bytes) == (256, 4)


@pytest.mark.parametrize('call', ['minhash(threshold=0)', 'minhash(rows=0)'])
def test_arguments_are_checked(call):
  with pytest.raises(UsageError, match='minhash'):
    choices.check(choices.load(call).steps)
