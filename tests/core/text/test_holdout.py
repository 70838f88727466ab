# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Holding out: each character lands on one side, by a stable rule."""

import pytest

from gpt_jax.core.files.document import Document, Source
from gpt_jax.core.text import holdout

SOURCE = "text('docs/*.txt')"


def sides(text, source=SOURCE):
  parts = list(holdout.split(source, text).parts())
  return ([p.document for p in parts if not p.held_out], [p.document for p in parts if p.held_out])


def test_documents_stay_on_their_side_when_others_go(corpus):
  train, held = sides('documents(fraction=0.3)')
  assert len(train) + len(held) == 37 and 4 < len(held) < 20
  before = {d.name for d in held}
  for path in sorted((corpus / 'docs').iterdir())[::3]:
    path.unlink()
  train, held = sides('documents(fraction=0.3)')
  left = {d.name for d in train + held}
  assert {d.name for d in held} == before & left


def test_tail_of_one_document_is_its_last_characters(corpus):
  text = 'é' * 7 + '0123456789' * 9
  (corpus / 'one.md').write_text(text, encoding='utf-8')
  train, held = sides('tail(fraction=0.1)', "text('one.md')")
  cut = int(97 * 0.9)
  assert train == [('one.md', text[:cut])]
  assert held == [('one.md', text[cut:])]


@pytest.mark.parametrize('fraction', [0.013, 0.1, 0.5, 0.97])
def test_tail_of_many_cuts_the_document_at_the_boundary(corpus, fraction):
  everything = ''.join(d.text for d in sides('none')[0])
  train, held = sides(f'tail(fraction={fraction})')
  cut = int(len(everything) * (1 - fraction))
  assert ''.join(d.text for d in train) == everything[:cut]
  assert ''.join(d.text for d in held) == everything[cut:]
  assert all(d.text for d in train + held)
  assert len(train) + len(held) in (37, 38)


def test_none_and_another_source(corpus):
  (corpus / 'valid.md').write_text('held')
  assert not holdout.split(SOURCE, 'none').holds_out
  assert sides('none')[1] == []
  assert sides("text('valid.md')")[1] == [('valid.md', 'held')]
  assert len(sides("text('valid.md')")[0]) == 37


PASSAGES = 'passages("text(\'books/*.txt\')", chars=5)'


def write_books(folder):
  """41 books of 7 passages each."""
  (folder / 'books').mkdir()
  for i in range(41):
    text = '\n\n'.join(f'book {i}, part {j}' for j in range(7))
    (folder / 'books' / f'{i}#1.txt').write_text(text)


def test_all_passages_of_a_document_are_on_one_side(corpus):
  write_books(corpus)
  books = sides('documents(fraction=0.3)', "text('books/*.txt')")
  passages = sides('documents(fraction=0.3)', PASSAGES)
  for whole, cut in zip(books, passages, strict=True):
    assert 4 < len(whole) < 37 and len(cut) == 7 * len(whole)
    # The side is that of the book: a hash of its name.
    names = {d.name.removesuffix(f'#{i}') for d in cut for i in range(1, 8)}
    assert {d.name for d in whole} == {n for n in names if n.endswith('.txt')}


def test_of_a_mixture_only_passages_have_a_parent(corpus):
  write_books(corpus)
  for i in range(53):
    (corpus / 'docs' / f'x#{i}').write_text(f'{i}')
  text = f'mixture(a:{PASSAGES!r}, b:"text(\'docs/*\')")'
  train, held = sides('documents(fraction=0.3)', text)
  names = [{d.name for d in side} for side in (train, held)]
  books = [{n.rpartition('#')[0] for n in s if n[0] == 'a'} for s in names]
  assert len(books[0]) + len(books[1]) == 41 and not books[0] & books[1]
  notes = [{n for n in side if n.startswith('b/x#')} for side in names]
  assert min(map(len, notes)) > 4  # each drawn by itself, as ever


def test_passages_of_a_mixture_in_a_mixture_stay_with_their_book(corpus):
  write_books(corpus)
  found = sides('documents(fraction=0.3)', f'mixture(m:{PASSAGES!r})')
  inner = f'mixture(m:{PASSAGES!r})'
  nested = sides('documents(fraction=0.3)', f'mixture(outer:{inner!r})')
  books = [{d.name.rpartition('#')[0] for d in side} for side in nested]
  assert [len(side) for side in nested] != [0, 0] and not books[0] & books[1]
  assert sum(map(len, nested)) == sum(map(len, found))


def test_pieces_that_cleaning_cut_stay_with_their_document(corpus):
  write_books(corpus)
  pieces = [(f'{i}.txt#{j}#{k}') for i in range(41) for j in (1, 2) for k in (0, 1)]
  left = Source(units=[lambda skip: (Document(n, n) for n in pieces)])
  split = holdout.split(PASSAGES, 'documents(0.3)')
  parts = [*holdout.cleaned(split, left).parts()]
  of = {(p.document.name.partition('#')[0], p.held_out) for p in parts}
  assert len(of) == 41 and {held for _, held in of} == {True, False}
