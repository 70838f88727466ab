# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""C4's rules, one by one, and its three-sentence duplicates by brute force."""

import random

import numpy as np
import pytest

from gpt_jax.core.text import sentences
from gpt_jax.core.text.clean import choices
from gpt_jax.core.text.clean.steps import Document

GOOD = 'One of them. Two of them! Is this three? "Four is here." Five it is.'


def cleaned(text, call='c4'):
  """The text that the page rules leave (None: nothing), and rule -> count."""
  step = choices.load(call)[0]
  documents, removals = step.clean(Document(0, '', 'x', text))
  assert len(documents) <= 1
  left = documents[0].text if documents else None
  return left, {removal.rule: removal.count for removal in removals}


def test_a_good_page_stays():
  assert cleaned(GOOD) == (GOOD, {})
  assert cleaned(f'  {GOOD} \r\n\n')[0] == GOOD


@pytest.mark.parametrize(
  ('line', 'rule'),
  [
    ('A line that just ends', 'line without terminal punctuation'),
    ('Two words.', 'line of too few words'),
    ('Please enable JavaScript here.', 'line with "javascript"'),
  ],
)
def test_lines_are_dropped(line, rule):
  page = f'{GOOD}\n{line}\nSome line stays.'
  assert cleaned(page) == (f'{GOOD}\nSome line stays.', {rule: 1})


@pytest.mark.parametrize('end', '.!?"”')
def test_terminal_punctuation(end):
  page = f'{GOOD}\nThis line stays{end}'
  assert cleaned(page) == (page, {})


@pytest.mark.parametrize(
  ('text', 'rule'),
  [('if (x) { y', 'page with a curly bracket'), ('Lorem Ipsum dolor', 'page with "lorem ipsum"')],
)
def test_pages_are_dropped(text, rule):
  assert cleaned(f'{GOOD}\n{text}') == (None, {rule: 1})


def test_pages_have_five_sentences():
  four = GOOD.removesuffix(' Five it is.')
  rule = 'page of too few sentences'
  assert cleaned(four) == (None, {rule: 1})
  assert cleaned(four, 'c4(words=5, sentences=3)') == (four, {})
  # Those of lines that went do not count.
  assert cleaned(f'{four}\nNo. No.')[0] is None


def test_bad_words_are_whole_words(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'bad.txt').write_text('# a list\nrude\nvery rude\n\n')
  call = "c4(bad_words='bad.txt')"
  assert cleaned(f'{GOOD} RUDE!', call) == (None, {'page with a bad word': 1})
  assert cleaned(f'{GOOD} How crude.', call)[0]
  assert choices.load(call)[0].files == {'bad.txt': 'bad.txt'}


def test_sentences_joined_are_the_text():
  text = ' He said "No!" Twice.\n\n  e.g. here, at 3.5\n'
  spans = [*sentences.spans(text)]
  found = [text[a:b] for a, b in spans]
  assert ''.join(found) == text
  assert [s.strip() for s in found] == ['He said "No!"', 'Twice.', 'e.g.', 'here, at 3.5']


def spans_removed(texts):
  """What the step leaves of texts, and the sentences that go of each."""
  step = choices.load('c4(sentences=1)')[1]
  rows = [step.rows(text) for text in texts]
  places = [np.full(len(r.keys), 256 * i, 'u8') for i, r in enumerate(rows)]
  table = np.stack(
    [
      np.concatenate([r.keys for r in rows]),
      np.concatenate(places),
      np.concatenate([r.values for r in rows]),
    ]
  )
  table = table[:, np.lexsort(table[::-1])]
  found = step.judge(*table, None)
  left = []
  for i, text in enumerate(texts):
    values = np.unique(found.values[found.places == 256 * i])
    outcome = step.clean(Document(256 * i, '', 'x', text), values)
    left.append([d.text for d in outcome.documents])
  return left


def brute_force(texts):
  """All but the first occurrence of three sentences, which is not touched."""
  first, left = {}, []
  for i, text in enumerate(texts):
    found = [text[a:b] for a, b in sentences.spans(text)]
    gone = set()
    for at in range(len(found) - 2):
      span = tuple(' '.join(s.lower().split()) for s in found[at : at + 3])
      where = first.setdefault(span, (i, at))
      if where != (i, at):
        gone |= {k for k in range(at, at + 3) if where[0] != i or k >= where[1] + 3}
    kept = [s for k, s in enumerate(found) if k not in gone]
    left.append([''.join(kept).strip()] if kept else [])
  return left


def test_three_sentence_duplicates():
  texts = ['A one. B two. C three. D four.', 'X. b  TWO. C three. D four. Y.']
  assert spans_removed(texts) == [[texts[0]], ['X. Y.']]
  assert spans_removed(['A a. B b. C c. A a. B b. C c. D.']) == [['A a. B b. C c. D.']]
  assert spans_removed(['No. No. No. No. No.']) == [['No. No. No.']]
  assert spans_removed(['No. No.', 'No. No.']) == [['No. No.']] * 2


def test_duplicates_match_brute_force():
  rng = random.Random(3)
  changed = 0
  for _ in range(200):
    texts = [
      ' '.join(rng.choice('ABC') + '.' for _ in range(rng.randrange(1, 13)))
      for _ in range(rng.randrange(1, 5))
    ]
    expected = brute_force(texts)
    assert spans_removed(texts) == expected
    changed += expected != [[text] for text in texts]
    # The first of every sentence stays.
    joined = ' '.join(text for left in expected for text in left)
    assert {*' '.join(texts).split()} == {*joined.split()}
  assert changed > 50
