# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pairs of a source text and a target text, for sequence to sequence.

  data.source = "parallel_text('train.en', 'train.de')"

A pair is two consecutive documents: NAME#source and NAME#target. A pair with a
side of white space alone is left out, and counted.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence

from gpt_jax.core.files import globs, lines
from gpt_jax.core.files import tfds as tfds_lib
from gpt_jax.core.files.document import SIDES, Bad, Document, OnError, Skip, Source
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import sources

_EMPTY = 'had an empty side'


def parallel_text(source: str, target: str, on_error: OnError = 'fail') -> Source:
  """Line i of one file with line i of another.

  Files are read through gzip or zstd if their names end in .gz or .zst. With
  wildcards the same number of files must match on both sides; they are paired
  in the order of their names. Lines end at line feeds alone.

  Args:
    source: pattern of the files with the sources.
    target: pattern of the files with the targets.
    on_error: 'skip' counts pairs that are too long or not UTF-8, and truncated
      files, instead of failing. Files with different numbers of lines always
      fail.
  """
  sides = globs.find(source), globs.find(target)
  if len(sides[0]) != len(sides[1]):
    raise UsageError(
      f'parallel_text: {source!r} matches {len(sides[0])} files and {target!r} '
      f'matches {len(sides[1])}; name as many on both sides'
    )
  units = [
    functools.partial(_side_by_side, name, paths)
    for name, *paths in zip(sides[0], *map(dict.values, sides), strict=True)
  ]
  for side in sides:
    units = globs.with_bad(side, units)
  return Source(
    units=units,
    files=_both(*sides),
    num_bytes=globs.total_size(*sides),
    on_error=on_error,
    empty=_EMPTY,
    look=lines.look,
  )


def parallel_jsonl(pattern: str, source: str, target: str, on_error: OnError = 'fail') -> Source:
  """One pair per line: the entries `source` and `target` of a JSON object.

  Files and `on_error` are as for `jsonl`.
  """
  files = globs.find(pattern)
  call = "parallel_jsonl('glob', 'en', 'de')"

  def unit(name: str, path: str, skip: Skip) -> Iterator[Document]:
    for number, line in lines.numbered(path, skip):
      try:
        texts = lines.entries(f'{path}:{number}', line, (source, target), call)
      except Bad as e:
        skip(e)
        continue
      yield from _pair(f'{name}:{number}', texts)

  units = [functools.partial(unit, *named) for named in files.items()]
  return sources.of_lines(files, units, on_error, _EMPTY)


def parallel_tfds(
  name: str,
  source: str,
  target: str,
  split: str = 'train',
  data_dir: str = '',
  on_error: OnError = 'fail',
) -> Source:
  """One pair per example of a data set of TFDS: 'wmt14_translate/de-en'.

  Args:
    name: as for `tfds`, like the arguments after `target`.
    source: field of each example; 'a/b' is a field inside another.
  """
  builder = tfds_lib.by_name(name, data_dir)
  call = f'parallel_tfds({name!r})'
  return tfds_lib.reader(builder, call, split, (source, target), on_error, make=_pair, empty=_EMPTY)


def parallel_tfds_dir(
  path: str, source: str, target: str, split: str = 'train', on_error: OnError = 'fail'
) -> Source:
  """One pair per example of a prepared data set in a folder; see `tfds_dir`."""
  call = f'parallel_tfds_dir({path!r})'
  builder = tfds_lib.in_folder(path, call)
  return tfds_lib.reader(builder, call, split, (source, target), on_error, make=_pair, empty=_EMPTY)


def _pair(name: str, texts: Sequence[str]) -> Iterator[Document]:
  """Both documents of a pair, or one without text."""
  if all(map(str.strip, texts)):
    for side, text in zip(SIDES, texts, strict=True):
      yield Document(f'{name}{side}', text)
  else:
    yield Document(name, '')


def _side_by_side(name: str, paths: Sequence[str], skip: Skip) -> Iterator[Document]:
  """The pairs of two files."""
  broken = False

  def skip_line(bad: Bad):
    nonlocal broken
    skip(bad)
    broken = broken or bad.kind != lines.TOO_LONG

  with contextlib.ExitStack() as opened:
    # Closed here: an error below would hold both files, open, until it is gone.
    sides = [
      opened.enter_context(contextlib.closing(lines.every(path, skip_line))) for path in paths
    ]
    for number, both in enumerate(itertools.zip_longest(*sides), start=1):
      if None in both:
        counts = [
          number - (line is None) + sum(1 for _ in side)
          for side, line in zip(sides, both, strict=True)
        ]
        if broken:  # its lines are paired; how many it lacks is not known
          return
        raise UsageError(
          f'{paths[0]} has {counts[0]} lines and {paths[1]} has {counts[1]}: '
          'line i of one must be that of the other; mend the files'
        )
      if b'' in both:  # a line that was left out
        continue
      try:
        texts = [
          lines.text(f'{path}:{number}', line) for path, line in zip(paths, both, strict=True)
        ]
      except Bad as e:
        skip(e)
        continue
      yield from _pair(f'{name}:{number}', texts)


def _both(source: dict[str, str], target: dict[str, str]) -> dict[str, str]:
  """Name -> path of the files of both sides, which may have the same names."""
  named = {'source': source, 'target': target}
  return {f'{side}: {name}': path for side, files in named.items() for name, path in files.items()}
