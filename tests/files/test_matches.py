# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Patterns against the standard library's glob, and links in a circle."""

import glob
import os

import pytest

from gpt_jax.files import lines
from gpt_jax.spec import UsageError
from gpt_jax.text import sources


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
  found = lines.find(pattern)
  assert {os.path.abspath(p) for p in found.values()} == expected
  assert len(found) == len(expected) and list(found) == sorted(found)
  absolute = lines.find(str(tree.parent / pattern))
  assert {*map(os.path.realpath, absolute.values())} == expected


@pytest.mark.parametrize('pattern', ['r/x', 'no/*', 'no/**', 'r/a.txt/*'])
def test_nothing_is_said_so(tree, pattern):
  with pytest.raises(lines.NoFile, match='no file matches'):
    lines.find(pattern)


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
    ("text('notes')", "text('notes/**/*.log')"),
    ("jsonl('notes/')", "jsonl('notes/**/*.log')"),
    ("passages('text(\\'notes\\')')", "text('notes/**/*.log')"),
    ("text('empty')", "text('empty/**/*.txt')"),
  ],
)
def test_a_folder_says_what_to_write(tree, monkeypatch, call, instead):
  monkeypatch.chdir(tree)
  for name in ('notes/a.log', 'notes/b/c.log', 'notes/b/d.log', 'notes/x.png'):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('text')
  (tree / 'empty').mkdir()
  with pytest.raises(UsageError) as e:
    list(sources.documents('data.source', call))
  assert str(e.value).endswith(f' is a folder; write {instead}')
  if 'empty' not in call:
    assert (
      len(list(sources.documents('data.source', "text('notes/**/*.log')"))) == 3
    )


def names(call):
  return [d.name for d in sources.documents('data.source', call)]


def write(folder, *files):
  for name in files:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('text')


def test_of_a_folder_the_text_files_are_read(tmp_path, monkeypatch, caplog):
  caplog.set_level('INFO')
  monkeypatch.chdir(tmp_path)
  files = 'a.md', 'b/c.txt', 'b/d.txt', 'x.png', '.git/e.md', 'b/.f.md'
  write(tmp_path / 'notes', *files)
  for call in ("text('notes')", "text('notes/')", f"text('{tmp_path}/notes')"):
    assert names(call) == ['a.md', 'b/c.txt', 'b/d.txt']
  told = "text('notes'): reads the files below this folder that end in "
  assert caplog.text.count(f'{told}.md (1), .txt (2)') == 1


@pytest.mark.parametrize(
  ('call', 'expected'),
  [
    ("text('r/*.{md,txt}')", ['a.md', 'a.txt']),
    ("text('r/{b,c}/*.md')", ['b/a.md', 'c/a.md']),
    ("text('r/{a.{md,txt},b/a.md}')", ['a.md', 'a.txt', 'b/a.md']),
    ("text('r/b/*.md', 'r/c/*.md')", ['b/a.md', 'c/a.md']),
    ("text('r/a.md', 'r/*.md')", ['a.md']),
    ("text('r/*.txt', 'other')", ['other/o.md', 'r/a.txt']),
    ("text('r/b/*.{md,no}')", ['a.md']),
  ],
)
def test_braces_and_several_patterns(tmp_path, monkeypatch, call, expected):
  monkeypatch.chdir(tmp_path)
  write(tmp_path, 'r/a.md', 'r/a.txt', 'r/b/a.md', 'r/c/a.md', 'other/o.md')
  assert names(call) == expected
  absolute = call.replace("'r/", f"'{tmp_path}/r/")
  absolute = absolute.replace("'other", f"'{tmp_path}/other")
  assert names(absolute) == expected


def test_each_of_several_patterns_names_a_file(tree):
  for call in ("text('r/*.txt', 'r/*.no')", "text('r/*.{no,none}')"):
    with pytest.raises(UsageError, match=r'no file matches .*no'):
      names(call)
  with pytest.raises(UsageError, match='names no files'):
    names('text()')


@pytest.mark.parametrize(
  'name', ['odd[1]/a.txt', 'a[b].txt', 'a*?.txt', '{a,b}.txt', 'x{1}/[2]/a.txt']
)
def test_a_file_that_is_there_is_itself(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  write(tmp_path, name, 'odd1/a.txt', 'ab.txt', 'a.txt', 'b.txt', 'x1/2/a.txt')
  line = '{"text": "x", "other": "y"}\n'
  (tmp_path / name).write_text(line)
  base = os.path.basename(name)
  for place in (name, f'{tmp_path}/{name}'):
    assert names(f'text({place!r})') == [base]
    assert names(f'jsonl({place!r})') == [f'{base}:1']
    call = f"parallel_jsonl({place!r}, 'text', 'other')"
    assert names(call) == [f'{base}:1#source', f'{base}:1#target']
    call = f'parallel_text({place!r}, {place!r})'
    assert names(call) == [f'{base}:1#source', f'{base}:1#target']
  folder = os.path.dirname(name)
  if folder:
    for pattern in ('*.txt', '**/*.txt', '*.{md,txt}'):
      assert names(f"text('{folder}/{pattern}')") == ['a.txt']
    assert names(f"text('{folder}')") == ['a.txt']
