# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Holding out: each character lands on one side, by a stable rule."""

import pytest

from gpt_jax.data import holdout
from gpt_jax.spec import UsageError

SOURCE = "text('docs/*.txt')"


def sides(text, source=SOURCE):
  parts = list(holdout.split(source, text).parts())
  return (
    [p.document for p in parts if not p.held_out],
    [p.document for p in parts if p.held_out],
  )


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


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('tail(fraction=1.0)', ['data.holdout', 'fraction=1.0 must be below 1']),
    ('documents(fraction=-1)', ['data.holdout', 'fraction=-1 must be above 0']),
    ('last', ['data.holdout', 'last', 'documents, jsonl, mixture, none']),
    ("text('gone')", ['data.holdout', 'gone', 'no file']),
    ('none, none', ['data.holdout', 'give one']),
  ],
)
def test_what_is_wrong_is_named(corpus, text, words):
  with pytest.raises(UsageError) as e:
    holdout.split(SOURCE, text)
  for word in words:
    assert word in str(e.value)
