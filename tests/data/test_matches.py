# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Patterns against the standard library's glob, and links in a circle."""

import glob
import os

import pytest

from gpt_jax.data import matches
from gpt_jax.data.sources import sources
from gpt_jax.spec import UsageError


@pytest.fixture
def tree(tmp_path, monkeypatch):
  for name in ('a.txt', 'b/a.txt', 'b/c/d.md', 'b/c/.e.txt', '.h/a.txt', 'f/g'):
    path = tmp_path / 'r' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  monkeypatch.chdir(tmp_path)
  return tmp_path / 'r'


@pytest.mark.parametrize(
  'pattern',
  [
    *('r/*', 'r/**', 'r/**/*', 'r/**/*.txt', '**/a.txt', 'r/b/*/d.*', '*/*'),
    *('r/**/c/*.md', 'r/**/**/*.txt', 'r/a.txt', 'r/.h/*', 'r/[bf]/*', 'r/*/g'),
    *('r/b/**', '**', './r/*.txt', 'r/../r/*.txt'),
  ],
)
def test_the_files_are_those_of_glob(tree, pattern):
  expected = {
    os.path.abspath(p)
    for p in glob.glob(pattern, recursive=True)
    if os.path.isfile(p)
  }
  found = matches.find(pattern)
  assert {os.path.abspath(p) for p in found.values()} == expected
  assert len(found) == len(expected) and list(found) == sorted(found)
  absolute = matches.find(str(tree.parent / pattern))
  assert {*map(os.path.realpath, absolute.values())} == expected


@pytest.mark.parametrize('pattern', ['r/x', 'no/*', 'no/**', 'r/a.txt/*'])
def test_nothing_is_said_so(tree, pattern):
  with pytest.raises(matches.NoFile, match='no file matches'):
    matches.find(pattern)


def test_links_in_a_circle_are_named_and_end(tree):
  # Two of them: glob would follow 2^40 paths.
  (tree / 'b' / 'up').symlink_to('..')
  (tree / 'b' / 'again').symlink_to('../b')
  with pytest.raises(UsageError, match='link in a circle; remove the link'):
    list(sources.documents('data.source', "text('r/**/*.txt')"))
  call = "text('r/**/*.txt', on_error='skip')"
  names = [d.name for d in sources.documents('data.source', call)]
  assert names == ['a.txt', 'b/a.txt']
  # A folder that another leads to, without a circle, is as good as any.
  (tree / 'b' / 'up').unlink()
  (tree / 'b' / 'again').unlink()
  (tree / 'f' / 'other').symlink_to('../b')
  names = [d.name for d in sources.documents('data.source', call)]
  assert names == ['a.txt', 'b/a.txt', 'f/other/a.txt']


def test_a_link_that_leads_nowhere_is_named(tree):
  (tree / 'gone.txt').symlink_to('nothing')
  with pytest.raises(UsageError, match=r'gone.txt: is a link that leads'):
    list(sources.documents('data.source', "text('r/*.txt')"))


@pytest.mark.parametrize(
  ('call', 'instead'),
  [
    ("text('notes')", "text('notes/**/*.md')"),
    ("jsonl('notes/')", "jsonl('notes/**/*.md')"),
    ("passages('text(\\'notes\\')')", "text('notes/**/*.md')"),
    ("text('empty')", "text('empty/**/*.txt')"),
  ],
)
def test_a_folder_says_what_to_write(tree, monkeypatch, call, instead):
  monkeypatch.chdir(tree)
  for name in ('notes/a.md', 'notes/b/c.md', 'notes/b/d.md', 'notes/x.png'):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('text')
  (tree / 'empty').mkdir()
  with pytest.raises(UsageError) as e:
    list(sources.documents('data.source', call))
  assert str(e.value).endswith(f' is a folder; write {instead}')
  if 'empty' not in call:
    assert (
      len(list(sources.documents('data.source', "text('notes/**/*.md')"))) == 3
    )
