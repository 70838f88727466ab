# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Equal documents on both sides of the split are counted and told."""

import functools
import hashlib
import logging
import shutil

import pytest

from gpt_jax.core.tokens import duplicates, encode, manifest, prepare, store
from gpt_jax.core.tokens.duplicates import Duplicates


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
