# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file that a document is said to come from holds its text."""

import pytest

from gpt_jax.core.tokens import document_names, prepare
from tests.support.corpora import write_lines


def texts(store):
  made, start, found = store.tokenizer(), 0, []
  for stop in store.document_ends.tolist():
    found.append(made.decode(store.tokens(start, stop - 1).tolist()))
    start = stop
  return found


@pytest.mark.parametrize(
  'holdout', ['documents(fraction=0.3)', 'tail(fraction=0.37)', 'none', "text('docs/1*.txt')"]
)
def test_each_file_is_a_document(corpus, make_config, holdout):
  for name in ('05.txt', '23.txt'):
    (corpus / 'docs' / name).write_text('')
  store = prepare.ensure(make_config(holdout=holdout), 'D')
  name = document_names.of_store(store)
  found = texts(store)
  assert len({name(i) for i in range(len(found))}) == len(found) > 7
  for i, text in enumerate(found):
    whole = (corpus / 'docs' / name(i)).read_text(encoding='utf-8')
    # `tail` cuts the last one.
    assert whole == text or (i == len(found) - 1 and whole.startswith(text))


@pytest.mark.parametrize('holdout', ['documents(fraction=0.3)', 'tail(fraction=0.37)', 'none'])
def test_names_are_known_where_files_were_left_out(corpus, make_config, holdout):
  """As those of the same corpus without the files that cannot be read."""
  expected = document_names.of_store(
    prepare.ensure(make_config("text('docs/*.txt')", holdout), 'D')
  )
  docs = corpus / 'docs'
  (docs / '05a.txt').write_bytes(b'\xff')
  # A file that the system fails to read: an I/O error at its first byte.
  (docs / '07a.txt').symlink_to('/proc/self/mem')
  (docs / '09a.txt').symlink_to('nowhere')
  config = make_config("text('docs/*.txt', on_error='skip')", holdout)
  store = prepare.ensure(config, 'E')
  name = document_names.of_store(store)
  found = [name(i) for i in range(len(store.document_ends))]
  assert found == [expected(i) for i in range(len(found))]
  assert all(each.endswith('.txt') for each in found)
  # Nothing has changed since.
  assert 'be read' in str(store.manifest.skipped)
  prepare.prepare(config, 'E')


def test_a_mixture_names_the_source_at_least(corpus, make_config):
  for name, count in (('one', 5), ('a', 3), ('b', 2)):
    write_lines(corpus / f'{name}.jsonl', [f'{name} {i}' for i in range(count)])
  config = make_config(
    'mixture(books:0.5, lines:0.2, web:0.3)',
    'none',
    sources={
      'books': "text('docs/0*.txt')",
      'lines': "jsonl('one.jsonl')",
      'web': "jsonl('[ab].jsonl')",
    },
  )
  store = prepare.ensure(config, 'D')
  name = document_names.of_store(store)
  assert [name(i) for i in range(len(store.document_ends))] == [
    *(f'books/{i:02}.txt' for i in range(10)),
    *(f'lines/one.jsonl: document {i}' for i in range(10, 15)),
    *(f'web: document {i}' for i in range(15, 20)),
  ]
