# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file that a document comes from, and documents on both sides of a split."""

import functools
import hashlib
import logging
import shutil

import pytest

from gpt_jax.core.tokens import document_names, duplicates, encode, manifest, prepare, store
from gpt_jax.core.tokens.duplicates import Duplicates
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


def test_held_out_copies_are_counted():
  found = Duplicates()
  for i in range(101):
    found.add(f'text {i}', False)
    found.add(f'text {i}', False)
  for i in range(97, 107):
    found.add(f'text {i}', True)
  found.add('text 97', True)
  assert found.copies() == (5, True)  # 97 twice, 98, 99, 100
  found.add('text 106', False)
  assert found.copies() == (6, True)


def test_memory_is_bounded_and_the_count_an_estimate(monkeypatch):
  monkeypatch.setattr(duplicates, 'MOST', 2003)
  monkeypatch.setattr(duplicates, '_BUFFER', 97)
  found, num_held = Duplicates(), 9973
  for i in range(num_held):
    found.add(f'{i}', True)
    found.add(f'{i}' if i % 3 == 0 else f'other {i}', False)
    assert sum(map(len, found._kept.values())) <= 2003
  copies = found.copies()
  assert not copies.exact
  # 1 in 16 is compared: of 3,325 copies about 208, with a deviation of 14.
  assert abs(copies.count - num_held / 3) < 4 * 14 * 16


@pytest.mark.parametrize('most', [1 << 21, 503])
def test_parts_of_a_corpus_are_merged(monkeypatch, most):
  """The same number as one after the other, also where it is an estimate."""
  monkeypatch.setattr(duplicates, 'MOST', most)
  monkeypatch.setattr(duplicates, '_BUFFER', 97)
  whole, parts = Duplicates(), [Duplicates() for _ in range(5)]
  for i in range(2003):
    for total in (whole, parts[i % 5]):
      total.add(f'{i}', True)
      total.add(f'{i * 3 % 2003 + i % 2}', False)
  merged = functools.reduce(Duplicates.merge, parts, Duplicates())
  assert merged.copies() == whole.copies()
  assert whole.copies().exact == (most > 503)


def held_out(name):
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:8], 'big') / 2**64 < 0.2


@pytest.mark.parametrize('num_copies', [0, 3])
def test_preparing_tells_of_copies(corpus, make_config, caplog, num_copies):
  docs = corpus / 'docs'
  held = [path for path in sorted(docs.iterdir()) if held_out(path.name)]
  names = (f'copy-{i}.txt' for i in range(1000))
  trained = (name for name in names if not held_out(name))
  for path in held[:num_copies]:
    shutil.copy(path, docs / next(trained))
  prepare.prepare(make_config(), 'D')
  told = f'{num_copies} of {len(held)} held-out documents are in the training'
  assert (told in caplog.text) == bool(num_copies)
  assert ('word for word' in caplog.text) == bool(num_copies)


def test_going_on_counts_what_was_written_before(corpus, make_config, caplog, monkeypatch):
  docs = corpus / 'docs'
  first = next(path for path in sorted(docs.iterdir()) if held_out(path.name))
  name = next(n for n in (f'z{i}' for i in range(99)) if not held_out(n))
  shutil.copy(first, docs / f'{name}')
  config = make_config("text('docs/*')")
  caplog.set_level(logging.INFO)
  monkeypatch.setattr(encode, '_BATCH', 1)
  monkeypatch.setattr(manifest, 'BLOCK', 64)
  monkeypatch.setattr(store, '_CHUNK', 64)
  monkeypatch.setattr(store, '_SHARD_BYTES', 512)

  def die(stage, done, total):
    if stage == 'tokenizing' and done > 4000:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepare.prepare(config, 'D', die)
  prepare.prepare(config, 'D')
  assert 'going on after' in caplog.text
  assert '1 of ' in caplog.text and 'word for word' in caplog.text
