# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Overlaps by n-grams, against a search through all windows."""

import random

import pytest

from gpt_jax.core.text import hashing, ngrams

WORDS = ['a', 'B,', 'c.', '—', 'd_e', '"F"', 'İ', 'de']


def test_words_have_no_case_and_no_punctuation():
  assert ngrams.words('It\'s "So_so" —\n\tHe said.') == ['its', 'soso', 'he', 'said']


@pytest.mark.parametrize('block', [7, 23, 1 << 20])
def test_all_overlaps_are_found_where_they_are(block, monkeypatch):
  monkeypatch.setattr(ngrams, '_BLOCK', block)
  rng = random.Random(block)
  num_found = 0
  for n in [1, 2, 3, 5] * 20:
    texts = [(f'set:{i}', ' '.join(rng.choices(WORDS, k=rng.randrange(11)))) for i in range(5)]
    document = ''.join(rng.choice(WORDS) + rng.choice([' ', '\n', '  ']) for _ in range(41))
    holders = {}
    for i, (_, text) in enumerate(texts):
      words = ngrams.words(text)
      for start in range(len(words) - n + 1):
        holders.setdefault(tuple(words[start : start + n]), set()).add(i)
    words = ngrams.words(document)
    expected = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    expected = [gram for gram in expected if gram in holders]
    index = ngrams.Index(texts, n)
    found = index.find(document)
    assert len(index) == len(holders)
    assert [tuple(index.text(o.gram).split()) for o in found] == expected
    assert index.num_short == sum(len(ngrams.words(t)) < n for _, t in texts)
    for overlap, gram in zip(found, expected, strict=True):
      place = document[overlap.start : overlap.stop]
      assert tuple(ngrams.words(place)) == gram and place == place.strip()
      assert {*index.holders(overlap.gram)} == holders[gram]
    num_found += len(found)
  assert num_found > 100


def test_hashes_that_collide_are_told_apart(monkeypatch):
  def same(ids, n):
    return ids[: len(ids) - n + 1].astype('u8') * 0

  monkeypatch.setattr(hashing, 'of_runs', same)
  index = ngrams.Index([('x', 'a b c d')], 2)
  found = index.find('b c a b d c')
  assert [index.text(o.gram) for o in found] == ['b c', 'a b']
