# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lines of texts: the same for all that read them, their limits, patterns."""

import glob
import gzip
import json
import os
import pathlib
import tracemalloc

import pytest
import zstandard

from gpt_jax.core.files import globs, lines, records
from gpt_jax.core.spec import NoFileError, UsageError
from gpt_jax.core.text import sources
from gpt_jax.core.text.clean import decontaminate
from gpt_jax.decoding import files as prompt_files
from gpt_jax.evaluation import likelihood, text_tasks
from gpt_jax.tasks import files
from gpt_jax.tasks import published as choices
from tests.support.stdin import stdin_of

# A byte-order mark; a lone carriage return, a form feed, a line separator and a
# second mark within lines; two kinds of line ends; none at the end.
DATA = '\ufeffalpha\rbeta\ngam\x0cma\r\nde\u2028lta\n\ufeffeta\nlast'.encode()
# As `wc -l` counts.
LINES = ['alpha\rbeta', 'gam\x0cma', 'de\u2028lta', '\ufeffeta', 'last']


def piped(path, monkeypatch):
  monkeypatch.setattr('sys.stdin', stdin_of(pathlib.Path(path).read_bytes()))
  return [*lines.piped()]


def pairs(path, monkeypatch):
  found = sources.documents('data.source', f"parallel_text('{path}', '{path}')")
  return [(name.removesuffix('#target'), text) for name, text in [*found][1::2]]


def held_out(path, monkeypatch):
  found = likelihood.ScoredText(files.Files('', ''), path)
  return found.texts()


READERS = {
  'lines': lambda path, m: [*lines.texts(path)],
  'standard input': piped,
  'prompts': lambda path, m: [x[:2] for x in prompt_files.read(path)],
  'sources': lambda path, m: [tuple(x) for x in prompt_files.read_sources(path)],
  'parallel_text': pairs,
  'evaluate': lambda path, m: text_tasks._lines('', path),
  'passages': lambda path, m: [(x.where, x['text']) for x in choices._passages(path)],
  'table': lambda path, m: [(x, y[0]) for x, y in records.tsv_rows(path)],
  'held-out text': held_out,
}


@pytest.mark.parametrize('reader', READERS)
def test_lines_end_at_line_feeds(tmp_path, monkeypatch, reader):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_bytes(DATA)
  found = READERS[reader]('a.txt', monkeypatch)
  name = 'standard input' if reader == 'standard input' else 'a.txt'
  assert found == [(f'{name}:{n}', x) for n, x in enumerate(LINES, start=1)]


@pytest.mark.parametrize('reader', READERS)
def test_what_is_no_utf8_is_refused_with_its_place(tmp_path, monkeypatch, reader):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.txt').write_bytes(b'a\nbc\xff\nd')
  where = {
    'standard input': 'standard input:2: is not UTF-8: byte 2',
    'held-out text': 'a.txt: is not UTF-8: byte 4',  # read as a whole
  }.get(reader, 'a.txt:2: is not UTF-8: byte 2')
  with pytest.raises(UsageError, match=where):
    READERS[reader]('a.txt', monkeypatch)


def test_lines_of_json(tmp_path, monkeypatch):
  """A byte-order mark, and both line ends."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path('a.jsonl').write_bytes(
    b'\xef\xbb\xbf{"prompt": "alpha", "source": "x"}\r\n{"prompt": "a\\rb", "source": "y"}'
  )
  assert [x.text for x in prompt_files.read('a.jsonl')] == ['alpha', 'a\rb']
  assert [x.text for x in prompt_files.read_sources('a.jsonl')] == ['x', 'y']


@pytest.mark.parametrize(
  'data, expected', [(b'\xef\xbb\xbfa\rb\r\nc\r\n', 'a\rb\r\nc'), (b'a\n\n', 'a\n'), (b'a', 'a')]
)
def test_a_prompt_of_standard_input_is_a_whole_text(monkeypatch, data, expected):
  monkeypatch.setattr('sys.stdin', stdin_of(data))
  (prompt,) = prompt_files.typed('--prompt', ['-'])
  assert prompt == expected


MIB = 1 << 20
PACKED = {
  '': bytes,
  '.gz': lambda data: gzip.compress(data, 9),
  '.zst': zstandard.ZstdCompressor().compress,
}
LONG = '"' + 'long ' * 30 + '"'


def pack_into(folder, name, data):
  ending = '.' + name.rpartition('.')[2]
  pack = PACKED.get(ending, PACKED[''])
  (folder / name).write_bytes(pack(data))
  return str(folder / name)


@pytest.mark.parametrize('ending', PACKED)
@pytest.mark.parametrize('end', [b'\n', b''])
def test_a_long_line_is_left_out(tmp_path, monkeypatch, ending, end):
  monkeypatch.setattr(lines, 'LONGEST', 10)
  longest = b'9 letters\n'
  data = [b'a\n', b'x' * 11 + b'\n', b'\n', longest, b'y' * 3000 + end]
  path = pack_into(tmp_path, f'a{ending}', b''.join(data))
  found = []
  assert [*lines.every(path, found.append)] == [b'a\n', b'', b'\n', longest, b'']
  assert [*lines.numbered(path, lambda bad: None)] == [(1, b'a\n'), (4, longest)]
  why = 'has more than 64 MiB in one line; split the line, or leave it out'
  assert [str(bad) for bad in found] == [f'{path}:{n}: {why}' for n in (2, 5)]


@pytest.mark.parametrize('ending', ['.gz', '.zst'])
def test_a_bomb_is_not_held(tmp_path, monkeypatch, ending):
  monkeypatch.setattr(lines, 'LONGEST', MIB)
  monkeypatch.setattr(lines, 'LARGEST', MIB)
  size = (64 if ending == '.gz' else 256) * MIB
  pieces = [b'{}\n', bytes(size), b'\n{}\n']
  path = pack_into(tmp_path, f'a{ending}', b''.join(pieces))
  assert (tmp_path / f'a{ending}').stat().st_size < MIB
  tracemalloc.start()
  try:
    found = [*lines.numbered(path, lambda bad: None)]
    with pytest.raises(UsageError, match='more than 1 MiB, decompressed'):
      lines.contents(path)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert found == [(1, b'{}\n'), (3, b'{}\n')]
  assert peak < 96 * MIB  # a kilobyte of zstd may stand for 32 MiB


# What stands in the place of a number beside a text, and what is said of it.
BAD = {
  'digits': ('9' * 5000, 'is not JSON: .*5000 digits; mend or remove it'),
  'deep': ('[' * 20000 + ']' * 20000, 'is not JSON: values within values'),
  'twice': ('1, "text": "again"', "is not JSON: an object has 'text' twice"),
  'long': (LONG, 'has more than 64 MiB in one line'),
  'broken': ('', 'is not JSON: '),
}
SURROGATE = {'surrogate': ('1', 'holds half of a surrogate pair')}
# A call, or what reads a file.
CALLS = {
  'jsonl': "jsonl('a.jsonl', on_error='{}')",
  'parallel_jsonl': "parallel_jsonl('a.jsonl', 'text', 'text', on_error='{}')",
}
TABLES = {
  'records': lambda path: [*records.read(path)],
  'decontaminate': lambda path: [*decontaminate.read([path], '', 1)],
}


def put(tmp_path, monkeypatch, kind):
  monkeypatch.chdir(tmp_path)
  value, why = (BAD | SURROGATE)[kind]
  if kind == 'long':
    monkeypatch.setattr(lines, 'LONGEST', 90)
  text = '"a\\ud800"' if kind == 'surrogate' else '"bad"'
  good = json.dumps({'text': 'good', 'id': 1})
  rows = [good, f'{{"text": {text}, "id": {value}}}', good]
  return pack_into(tmp_path, 'a.jsonl', '\n'.join(rows).encode()), why


@pytest.mark.parametrize('kind', BAD | SURROGATE)
@pytest.mark.parametrize('name', CALLS)
def test_a_bad_line_of_json_is_refused_or_skipped(tmp_path, monkeypatch, caplog, kind, name):
  _, why = put(tmp_path, monkeypatch, kind)
  call = CALLS[name]
  with pytest.raises(UsageError, match=rf'^a\.jsonl:2: {why}'):
    [*sources.documents('data.source', call.format('fail'))]
  found = [*sources.documents('data.source', call.format('skip'))]
  assert {document.text for document in found} == {'good'}
  assert 'skipped 1 that' in caplog.text


@pytest.mark.parametrize('kind', BAD | SURROGATE)
@pytest.mark.parametrize('name', TABLES)
def test_a_bad_line_of_a_table_is_refused(tmp_path, monkeypatch, kind, name):
  path, why = put(tmp_path, monkeypatch, kind)
  with pytest.raises(UsageError, match=rf'a\.jsonl:2: {why}'):
    TABLES[name](path)


@pytest.mark.parametrize('kind', ['digits', 'deep', 'surrogate', 'broken', 'gz'])
def test_bad_json_of_squad_is_refused(tmp_path, kind):
  value, why = (BAD | SURROGATE | {'gz': ('1', 'cannot be read')})[kind]
  data = f'{{"data": [], "version": "\\ud800", "n": {value}}}'.encode()
  if kind != 'surrogate':
    data = data.replace(b'\\ud800', b'')
  name = 'a.json'
  if kind == 'gz':
    name, data = 'a.json.gz', b'not gzip'
    (tmp_path / name).write_bytes(data)
  else:
    pack_into(tmp_path, name, data)
  with pytest.raises(UsageError, match=rf'a\.json.*: {why}'):
    [*records.read(str(tmp_path / name))]


def test_nested_texts_of_evaluation_files_are_read(tmp_path):
  depth = 500
  data = '{"a": ["one", ' + '[' * depth + '"two"' + ']' * depth + ']}'
  path = pack_into(tmp_path, 'a.jsonl', data.encode())
  assert [*decontaminate.read([path], '', 1)] == [('a.jsonl:1', 'one two')]


def test_numbers_of_pairs_stay_where_a_line_is_left_out(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(lines, 'LONGEST', 20)
  pack_into(tmp_path, 'a', b'a1\n' + b'a2' * 20 + b'\na3\n')
  pack_into(tmp_path, 'b', b'b1\nb2\nb3\n')
  call = "parallel_text('a', 'b', on_error='{}')"
  with pytest.raises(UsageError, match=r'^a:2: has more than'):
    [*sources.documents('data.source', call.format('fail'))]
  found = [*sources.documents('data.source', call.format('skip'))]
  assert [document.text for document in found] == ['a1', 'b1', 'a3', 'b3']
  pack_into(tmp_path, 'b', b'b1\nb2\n')
  with pytest.raises(UsageError, match='a has 3 lines and b has 2'):
    [*sources.documents('data.source', call.format('skip'))]


def test_a_quote_that_is_not_closed_does_not_take_all(tmp_path, monkeypatch):
  monkeypatch.setattr(lines, 'LONGEST', 99)
  path = pack_into(tmp_path, 'a.csv', b'text\n"x\n' + b'y\n' * 100)
  with pytest.raises(UsageError, match=r'a\.csv:\d+: is not CSV'):
    [*records.read(path)]


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
    'r/*',
    'r/**',
    'r/**/*',
    'r/**/*.txt',
    '**/a.txt',
    'r/b/*/d.*',
    '*/*',
    'r/**/c/*.md',
    'r/**/**/*.txt',
    'r/a.txt',
    'r/.h/*',
    'r/[bf]/*',
    'r/*/g',
    'r/b/**',
    '**',
    './r/*.txt',
    'r/../r/*.txt',
  ],
)
def test_the_files_are_those_of_glob(tree, pattern):
  expected = {os.path.abspath(p) for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)}
  found = globs.find(pattern)
  assert {os.path.abspath(p) for p in found.values()} == expected
  assert len(found) == len(expected) and list(found) == sorted(found)
  absolute = globs.find(str(tree.parent / pattern))
  assert {*map(os.path.realpath, absolute.values())} == expected


@pytest.mark.parametrize('pattern', ['r/x', 'no/*', 'no/**', 'r/a.txt/*'])
def test_nothing_is_said_so(tree, pattern):
  with pytest.raises(NoFileError, match='no file matches'):
    globs.find(pattern)


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
    assert len(list(sources.documents('data.source', "text('notes/**/*.log')"))) == 3


def names(call):
  return [d.name for d in sources.documents('data.source', call)]


def touch(folder, *files):
  for name in files:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('text')


def test_of_a_folder_the_text_files_are_read(tmp_path, monkeypatch, caplog):
  caplog.set_level('INFO')
  monkeypatch.chdir(tmp_path)
  files = 'a.md', 'b/c.txt', 'b/d.txt', 'x.png', '.git/e.md', 'b/.f.md'
  touch(tmp_path / 'notes', *files)
  for call in ("text('notes')", "text('notes/')", f"text('{tmp_path}/notes')"):
    assert names(call) == ['a.md', 'b/c.txt', 'b/d.txt']
  told = "text('notes'): reads the files below this folder that end in "
  assert caplog.text.count(f'{told}.txt (2), .md (1)') == 1
  left_out = [m for m in caplog.messages if m.startswith("text('notes'): left")]
  assert left_out == [
    "text('notes'): left out other files (1), that end in .png (1)",
    "text('notes'): left out 2 hidden, whose names begin with a dot: notes/.git, notes/b/.f.md",
  ]


def test_what_a_pattern_passes_over_is_logged(tmp_path, monkeypatch, caplog):
  caplog.set_level('INFO')
  monkeypatch.chdir(tmp_path)
  touch(tmp_path / 'r', 'a.md', 'b/c.md', 'd/e.md', '.f.md', '.g/h.md', '.i.txt')
  assert names("text('r/*')") == ['a.md']
  assert caplog.messages == [
    "text('r/*'): left out 3 hidden, whose names begin with a dot: r/.f.md, r/.g, r/.i.txt",
    "text('r/*'): left out what lies in folders (2), which a pattern with /**/ "
    'would read: r/b, r/d',
  ]
  caplog.clear()
  # Nothing is said of what the pattern does not name, or reads elsewhere.
  assert names("text('r/*.md', 'r/b/*')") == ['a.md', 'b/c.md']
  assert [m.partition(': ')[2] for m in caplog.messages] == [
    'left out 1 hidden, whose names begin with a dot: r/.f.md'
  ]
  caplog.clear()
  assert names("text('r/**/*')") == ['a.md', 'b/c.md', 'd/e.md']
  assert all('folders (' not in message for message in caplog.messages)


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
  touch(tmp_path, 'r/a.md', 'r/a.txt', 'r/b/a.md', 'r/c/a.md', 'other/o.md')
  assert names(call) == expected
  absolute = call.replace("'r/", f"'{tmp_path}/r/")
  absolute = absolute.replace("'other", f"'{tmp_path}/other")
  assert names(absolute) == expected


def test_a_name_that_is_not_utf8_is_named(tmp_path):
  (tmp_path / os.fsdecode(b'caf\xe9.txt')).write_text('x')
  with pytest.raises(UsageError, match=r'caf\\udce9\.txt.: the name of this'):
    names(f"text('{tmp_path}/*.txt')")


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
  touch(tmp_path, name, 'odd1/a.txt', 'ab.txt', 'a.txt', 'b.txt', 'x1/2/a.txt')
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
