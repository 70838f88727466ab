# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources of documents: text files, JSON lines, Parquet, and joins of them.

`SOURCES` at the foot lists the choices of `data.source`.
"""

import functools
import logging
import os
import pathlib
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from gpt_jax.core import spec
from gpt_jax.core.files import globs, lines
from gpt_jax.core.files.document import Bad, Document, OnError, Skip, Source, Stream, prefixed
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import NoFileError, Pair, Table, UsageError

_BLANK_LINES = re.compile(r'\r?\n\s*\n')
_NUMBERS = re.compile(r'(?:#\d+)+$')


def parents(field: str, text: str) -> Callable[[str], str]:
  """Maps the name of a document to that of the document it was cut from.

  Where documents may have been cut, the parent's name lacks the numbers at the
  end: that of 'book.txt#7' and of 'book.txt#7#0' is 'book.txt'. Elsewhere each
  document is its own parent.

  Args:
    field: the config's field that has the call.
    text: the call of a source.
  """
  call = spec.parse(field, text)[0]
  if call.name == 'passages':
    return without_numbers
  if call.name != 'mixture':
    return lambda name: name
  within = {pair.key: parents(f'data.sources.{pair.key}', pair.value) for pair in call.args}

  def parent(name: str) -> str:
    source, slash, rest = name.partition('/')
    return source + slash + within[source](rest)

  return parent


def without_numbers(name: str) -> str:
  """The name of the document that one was cut from, as if it was cut."""
  return _NUMBERS.sub('', name)


def cut(text: str, chars: int) -> Iterator[str]:
  """Cuts a text at the first blank line after each `chars` characters."""
  start = 0
  for blank in _BLANK_LINES.finditer(text):
    if blank.start() - start >= chars:
      yield text[start : blank.start()]
      start = blank.end()
  if start < len(text):
    yield text[start:]


log = logging.getLogger('gpt_jax')

# The files of a folder that are read as texts.
_ENDINGS = ('.txt', '.text', '.md', '.markdown', '.rst', '.org', '.tex')

_SHOWN = 7  # the most paths, or endings, that a line of the log names

# Bytes that one worker reads at once; each file counts for `_OPEN` bytes more.
_UNIT, _OPEN = 1 << 26, 1 << 16


def documents(field: str, text: str) -> Iterator[Document]:
  """Streams the documents of a call of `SOURCES`, which stands in `field`."""
  return load(field, text).documents()


def load(field: str, text: str) -> Source:
  """Builds a source without reading any document."""
  try:
    source: Source = spec.build(field, text, SOURCES)
  except NoFileError as e:
    name = spec.parse(field, text)[0].name
    remedy = f'; write {name}({e.instead!r})' if e.instead else ''
    raise UsageError(f'{field}={text!r}: {e}{remedy}') from None
  source.call = f'{field}={text!r}'
  return source


def of_pairs(field: str, text: str) -> bool:
  """Whether a source, or the first of a mixture, holds pairs of texts."""
  call = spec.parse(field, text)[0]
  if call.name == 'mixture':
    pair = call.args[0]
    return of_pairs(f'data.sources.{pair.key}', pair.value)
  return call.name in PAIRS


def at_commit(field: str, text: str) -> str:
  """The call of a source with each revision that may move as a commit.

  A text without one is returned as it is, as is the call of no source.
  """
  call = spec.parse(field, text)[0]
  if call.name in REVISIONS:
    return REVISIONS[call.name](field, text)
  if call.name == 'mixture':
    fixed = {p.key: at_commit(f'data.sources.{p.key}', p.value) for p in call.args}
    if [*fixed.values()] == [p.value for p in call.args]:
      return text
    return f'mixture({", ".join(f"{name}:{value!r}" for name, value in fixed.items())})'
  if call.name == 'passages':
    (bound,) = spec.bind_all(field, text, SOURCES)
    inner = bound.kwargs['documents']
    fixed = at_commit('passages', inner)
    bound.kwargs['documents'] = fixed
    return text if fixed == inner else spec.written(bound)
  return text


def stdlib() -> Source:
  """The standard library of the running Python, without its tests."""
  root = sysconfig.get_path('stdlib')
  skipped = {'test', 'tests', 'idle_test', '__pycache__', 'site-packages', 'dist-packages'}
  built = ('_sysconfigdata', 'config-')  # they differ between machines
  files = {}
  for folder, subfolders, names in os.walk(root):
    subfolders[:] = [s for s in subfolders if s not in skipped]
    for name in names:
      path = os.path.join(folder, name)
      relative = pathlib.Path(os.path.relpath(path, root)).as_posix()
      if name.endswith('.py') and not relative.startswith(built):
        files[relative] = path
  return _text_files(globs.Matches(sorted(files.items())))


def text(*patterns: str, on_error: OnError = 'fail') -> Source:
  """One document per file, in UTF-8; `**` in a pattern spans folders.

  A folder stands for the files below it with one of the `_ENDINGS` of texts,
  which the log names. A bad file is an error, or counted with
  `on_error='skip'`.
  """
  if not patterns:
    raise UsageError("text(): names no files; write text('books/**/*.txt')")
  call = f'text({", ".join(map(repr, patterns))})'
  return _text_files(matching(call, *map(_in_folder, patterns)), on_error)


def matching(call: str, *patterns: str) -> globs.Matches:
  """The files of patterns; logs what the wildcards of `call` pass over."""
  files = globs.find(*patterns)
  if files.hidden:
    _log_once(
      f'{call}: left out {len(files.hidden)} hidden, whose names begin with a '
      f'dot: {_some(files.hidden)}'
    )
  if files.folders:
    _log_once(
      f'{call}: left out what lies in folders ({len(files.folders)}), which a '
      f'pattern with /**/ would read: {_some(files.folders)}'
    )
  return files


def _some(paths: Sequence[str]) -> str:
  """The first of some paths."""
  return ', '.join([*paths[:_SHOWN], *['...'] * (len(paths) > _SHOWN)])


def _in_folder(pattern: str) -> str:
  """The pattern of the texts in a folder; any other pattern as it is."""
  if not globs.is_folder(pattern):
    return pattern
  below = f'{pattern.rstrip("/")}/**/*'
  try:
    everything = globs.find(below)
  except NoFileError:
    return pattern  # `find` will say so
  found = [name for name in everything if name.endswith(_ENDINGS)]
  if not found:
    return pattern  # `find` will say what its files are
  _log_once(f'text({pattern!r}): reads the files below this folder that end in ' + _endings(found))
  if others := everything.keys() - {*found}:
    _log_once(
      f'text({pattern!r}): left out other files ({len(others)}), that end in ' + _endings(others)
    )
  return f'{below}{{{",".join(_ENDINGS)}}}'


def _endings(names: Collection[str]) -> str:
  """'.md (5), .txt (3)': the endings of names, the most frequent first."""
  ends = sorted(os.path.splitext(name)[1] for name in names)
  counts = Counter(ends)
  ends = [f'{end or "nothing"} ({n})' for end, n in counts.most_common(_SHOWN)]
  return ', '.join([*ends, *['...'] * (len(counts) > _SHOWN)])


@functools.cache
def _log_once(message: str):
  """Logs a message once, although sources are built often."""
  log.info('%s', message)


def jsonl(pattern: str, field: str = 'text', on_error: OnError = 'fail') -> Source:
  """One document per line; its text is the entry `field` of a JSON object.

  Files whose names end in .gz are read through gzip, in .zst through zstd. A
  bad line is an error, or counted with `on_error='skip'`.
  """
  files = matching(f'jsonl({pattern!r})', pattern)
  call = "jsonl('glob', field='text')"

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    for number, line in lines.numbered(path, skip):
      try:
        (text,) = lines.entries(f'{path}:{number}', line, [field], call)
      except Bad as e:
        skip(e)
        continue
      yield Document(f'{name}:{number}', text)

  units = [functools.partial(unit, *named) for named in files.items()]
  return of_lines(files, units, on_error)


def mixture(*calls: Pair) -> Source:
  """All documents of several sources, in order, as 'name/document'.

  The corpus from which a mixture in `data.source` samples.
  """
  kinds = [of_pairs(f'data.sources.{p.key}', p.value) for p in calls]
  if len({*kinds}) > 1:
    raise UsageError(
      f'data.sources.{calls[kinds.index(True)].key} holds pairs of texts and '
      f'data.sources.{calls[kinds.index(False)].key} does not; a mixture has '
      'sources of one kind'
    )
  named = {pair.key: load(f'data.sources.{pair.key}', pair.value) for pair in calls}

  def stream(name: str, unit: int | None, skip: Skip) -> Iterator[Document]:
    counts = Counter[str]()
    for document in named[name].documents(counts, unit):
      yield document._replace(name=f'{name}/{document.name}')
    skip.counts.update(prefixed(counts, name))

  def whole(skip: Skip) -> Iterator[Document]:
    for name in named:
      yield from stream(name, None, skip)

  sizes = [source.num_bytes for source in named.values()]
  return Source(
    units=[
      functools.partial(stream, name, unit)
      for name, source in named.items()
      for unit in range(len(source.units))
    ],
    files={
      f'{name}/{file}': path
      for name, source in named.items()
      for file, path in source.files.items()
    },
    num_bytes=None if None in sizes else sum(filter(None, sizes)),
    inner=[*named.values()],
    whole=whole,
  )


def passages(documents: str, chars: Count = 1000) -> Source:
  """Cuts the documents of another source, `passages("text('books/*.txt')")`.

  Each is cut at blank lines into documents of at least `chars` characters (the
  last may have fewer), 'name#1' and on. Whole books have so few ends of
  documents that the embedding of that token is hardly trained, and text after
  it, as in every evaluation of a single text, is scored wrongly.
  """
  if of_pairs('passages', documents):
    raise UsageError(
      f'passages({documents!r}): would cut sides of pairs; name the source of pairs itself'
    )
  source = load('passages', documents)

  def stream(unit: int | None, skip: Skip) -> Iterator[Document]:
    for document in source.documents(skip.counts, unit):
      for number, text in enumerate(cut(document.text, chars), start=1):
        yield document._replace(name=f'{document.name}#{number}', text=text)

  return Source(
    units=[functools.partial(stream, i) for i in range(len(source.units))],
    files=source.files,
    num_bytes=source.num_bytes,
    inner=[source],
    whole=functools.partial(stream, None),
  )


def _text_files(files: globs.Matches, on_error: OnError | None = None) -> Source:
  def unit(named: Sequence[tuple[str, str]], skip: Skip) -> Iterator[Document]:
    for name, path in named:
      try:
        text = lines.whole(path)
      except Bad as e:
        skip(e)
        continue
      yield Document(name, text)

  units = [functools.partial(unit, group) for group in _groups(files)]
  return of_lines(files, units, on_error)


def of_lines(
  files: globs.Matches, units: Sequence[Stream], on_error: OnError | None, empty: str = Source.empty
) -> Source:
  """A source of text files, which may be compressed."""
  return Source(
    units=globs.with_bad(files, units),
    files=files,
    num_bytes=globs.total_size(files),
    on_error=on_error,
    empty=empty,
    look=lines.look,
  )


def _groups(files: dict[str, str]) -> Iterator[list[tuple[str, str]]]:
  """Groups the files so that each group takes about as long to read."""
  group, size = [], 0
  for name, path in files.items():
    group.append((name, path))
    size += globs.size(path) + _OPEN
    if size >= _UNIT:
      yield group
      group, size = [], 0
  if group:
    yield group


# Of pairs: a source and a target text.
PAIRS = Table({}, 'data.source of pairs')
# Of sources that name a revision, which may move: field and call -> the call
# with the commit.
REVISIONS = Table({}, 'revision of data.source')
SOURCES = Table(
  {
    'stdlib': stdlib,
    'text': text,
    'jsonl': jsonl,
    'mixture': mixture,
    'parquet': 'gpt_jax.core.text.parquet:parquet',
    'passages': passages,
    'tfds': 'gpt_jax.core.files.tfds:tfds',
    'tfds_dir': 'gpt_jax.core.files.tfds:tfds_dir',
  },
  'data.source',
  'data.source of pairs',
)
