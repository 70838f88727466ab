# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every step of cleaning has to hold, and the calls that are refused."""

import pytest

from gpt_jax.core.files.document import Document, Source, utf8_size
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.clean import choices, report, run, stages
from tests.support.corpora import TEST, web_pages

# A call of each step that removes some of the pages below and keeps others.
CALLS = {
  'none': 'none',
  'c4': 'c4(words=1, sentences=1)',
  'gopher': 'gopher(min_words=40, stop_words=0, max_word_length=4.35)',
  'language': "language('zxx', probability=0.2)",
  'quality': "quality(function='builtins:len', threshold=240)",
  'minhash': 'minhash(threshold=0.5, rows=2, ngram=2)',
  'decontaminate': "decontaminate('test.txt', n=5, rule='pieces')",
}


@pytest.fixture
def pages(tmp_path, monkeypatch):
  """Pages of two sources, with near-duplicates and parts of a test."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'test.txt').write_text(TEST)
  return [Document(f'{"ab"[i % 2]}/{i}', t) for i, t in enumerate(web_pages(3))]


def cleaned(text, pages, folder):
  """The documents that are left, and the report's entries."""
  corpus = Source(units=[lambda skip: iter(pages)])
  result = run.clean(
    corpus, text, str(folder), None, in_mixture=True, num_workers=1, show=lambda *args: None
  )
  source = stages.cleaned(corpus, str(folder), result)
  left = [*source.documents()]
  assert source.num_bytes == sum(utf8_size(d.text) for d in left)
  return left, result.entries


def test_every_choice_is_here():
  assert {*CALLS} == {*choices.STEPS}


STEPS = sorted({*CALLS} - {'none'})


@pytest.mark.parametrize('name', STEPS)
def test_shards_do_not_matter_and_counts_add_up(pages, monkeypatch, name):
  whole, expected = cleaned(CALLS[name], pages, 'whole')
  monkeypatch.setattr(stages, '_SHARD', 1500)
  monkeypatch.setattr(run, '_ROWS', 300)
  left, entries = cleaned(CALLS[name], pages, 'parts')
  assert left == whole and entries == expected
  assert len(left) > 0 and [d.text for d in left] != [d.text for d in pages]
  assert [e['step'] for e in entries] == [step.name for step in choices.load(CALLS[name])]
  sizes = {key: 0 for key in report.COUNTS}
  for counts in entries[-1]['sources'].values():
    for key in sizes:
      sizes[key] += counts[key]
  assert sizes['documents_out'] == len(left)
  for entry in entries:
    assert {*entry['sources']} == {'a', 'b'}
    for counts in entry['sources'].values():
      removed = sum(r['documents_removed'] for r in counts['rules'].values())
      assert counts['documents_in'] - removed <= counts['documents_out']
      assert all(r['examples'] for r in counts['rules'].values())
  # Documents keep their order, and their names but for the pieces of one.
  order = [page.name for page in pages]
  numbers = [order.index(d.name.partition('#')[0]) for d in left]
  assert numbers == sorted(numbers)


@pytest.mark.parametrize('name', STEPS)
def test_what_was_cleaned_stays(pages, name):
  left, _ = cleaned(CALLS[name], pages, 'once')
  again, entries = cleaned(CALLS[name], left, 'twice')
  assert [d.text for d in again] == [d.text for d in left]
  assert not [*report.examples(entries)]


QUALITY = 'quality(high="text(\'test.txt\')", low="text(\'test.txt\')"'
REFUSED = [
  ("c4(bad_words='none.txt')", "bad_words='none.txt' cannot be read"),
  ('none, c4', 'stands alone'),
  ('c5', f'one of {", ".join(sorted(choices.STEPS))}'),
  ('c4, minhash, c4', 'names c4 twice with the same arguments'),
  ("language('xx')", "'xx'.* is unknown; one of "),
  ('gopher(top_ngrams=(0.2, 0.1))', 'takes 3 fractions between 0 and 1'),
  ("gopher(duplicate_ngrams=(1, 1, 1, 1, 1, 'a'))", 'takes 6 fractions'),
  ('quality', 'two sources of text'),
  ("quality(function='json:absent')", "no attribute 'absent'"),
  ("quality(function='json')", 'can be imported'),
  (f'{QUALITY}, alpha=9, threshold=0.5)', 'alpha .* or threshold .*both'),
  (f'{QUALITY}, threshold=True)', 'threshold=True must be a number'),
  (f"{QUALITY}, threshold='a')", "threshold='a' must be a number"),
  ("decontaminate('x', rule='pieces')", 'no file matches'),
  ('decontaminate()', 'name the evaluation files'),
  ("decontaminate('test.txt', n=32)", 'no text of 32 words'),
  (
    "decontaminate('test.txt', n=5, rule='pieces'), decontaminate('test.txt', n=6, rule='pieces')",
    'cut into pieces twice',
  ),
]
FILES = [
  ('a.parquet', b'PAR1\0\0\0', 'a.parquet:1: is not text: .*give CSV'),
  ('a.pdf', b'%PDF-1.7\n\xe2\xe3', 'a.pdf:2: is not UTF-8: .*give CSV'),
  ('a.csv', b'a,b\n1,2,3\n', 'a.csv:2: has 3 columns, not 2'),
  ('a.csv', b'a,b\n"x,2\n', 'a.csv.*is not CSV'),
  ('a.csv', b'a;b\nx;y\n', "'a;b' is one column"),
  ('a.jsonl', b'{"a": 1}\n{"a": \n', 'a.jsonl:2: is not JSON'),
  ('a.json', b'{"a": \n 1\n', 'a.json: is not JSON'),
]


@pytest.mark.parametrize(
  ('call', 'files', 'words'),
  [(call, {}, words) for call, words in REFUSED]
  + [(f"decontaminate('{name}')", {name: data}, words) for name, data, words in FILES],
)
def test_what_cannot_be_done_is_refused(tmp_path, monkeypatch, call, files, words):
  monkeypatch.chdir(tmp_path)
  for name, data in {'test.txt': TEST.encode(), **files}.items():
    (tmp_path / name).write_bytes(data)
  with pytest.raises(UsageError, match=words) as e:
    for step in choices.load(call):
      step.check()
  assert '\n' not in str(e.value)
