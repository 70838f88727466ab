# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of tasks, which users download, or the tasks' sets in TFDS."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpt_jax.core.files import globs, lines, records
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import NoFileError, NotPreparedError, UsageError

# `--tasks_dir` for sets prepared by TensorFlow Datasets, and the prefix of a
# path that names such a set: 'tfds:piqa:validation'.
TFDS = 'tfds:'


class PublishedSplit(NamedTuple):
  """A split of a published task.

  Attributes:
    paths: its file, or a pattern of its files, under each name in use.
    tfds: set and split in TFDS, such as 'piqa:validation'; '' if it has none.
  """

  paths: tuple[str, ...]
  tfds: str = ''


class Files(NamedTuple):
  """The files of a task. A path can be the name of one of its splits.

  Attributes:
    folder: base of relative paths, `--tasks_dir`; or `TFDS`.
    home: tells the user where to get the files.
    splits: as published, by name.
    readers: by file extension, for files that are not tables; see
      `files.records`.
  """

  folder: str
  home: str
  splits: Mapping[str, PublishedSplit] = {}
  readers: Mapping[str, Callable[[str], Iterator[Record]]] = {}

  def tfds(self, path: str) -> str:
    """The path of a set in TFDS, if this is one; else ''."""
    if path.startswith(TFDS):
      return path
    if self.folder != TFDS or path not in self.splits:
      return ''
    if not self.splits[path].tfds:
      raise UsageError(
        f'--tasks_dir={TFDS}: TensorFlow Datasets does not hold '
        f'{self.splits[path].paths[0]}; {self.home}, and name its folder'
      )
    return TFDS + self.splits[path].tfds

  def find(self, path: str) -> list[str]:
    """Lists the matching files, sorted."""
    self.tfds(path)
    split = self.splits.get(path, PublishedSplit((path,)))
    folder = '' if self.folder == TFDS else self.folder
    paths = [os.path.join(folder, name) for name in split.paths]
    for pattern in paths:
      try:
        found = globs.find(pattern)
      except NoFileError:
        continue
      for bad in found.bad:
        raise bad
      return [*found.values()]
    raise UsageError(
      f'{paths[0]}: no such file; {self.home}, or name the folder by '
      '--tasks_dir'
      + f'; also read: {", ".join(paths[1:])}' * (len(paths) > 1)
      + f'; from TensorFlow Datasets: --tasks_dir={TFDS}' * bool(split.tfds)
    )

  def records(self, path: str) -> Iterator[Record]:
    """Streams the records of all files; see `files.records`."""
    if place := self.tfds(path):
      try:
        yield from records.read(place)
      except NotPreparedError as e:
        if not self.splits:
          raise
        raise UsageError(f'{e}. Or {self.home}') from None
      return
    for file in self.find(path):
      yield from self.readers.get(lines.kind(file), records.read)(file)

  def text(self, path: str) -> str:
    """Reads the text of one file."""
    paths = self.find(path)
    if len(paths) > 1:
      raise UsageError(f'{path!r} matches {len(paths)} files; name one')
    return lines.whole(paths[0])


# The files of a user's own tasks.
OWN = Files(folder='', home='check the path')


# Typed access to the fields of task records.
#
# Values of the wrong type are rejected: a string instead of a list would become
# one choice per letter, and null the text 'None'.


def text(record: Record, *columns: str) -> str:
  """Returns the text in the first of these columns that exists."""
  there = [name for name in columns if name in record.fields]
  column = (*there, columns[0])[0]
  value = record[column]
  if not isinstance(value, str):
    raise UsageError(f'{record.where}: {column}={value!r} is not a text; fix or remove the line')
  return value


def texts(where: str, column: str, value: Any) -> tuple[str, ...]:
  """Returns a non-empty list of texts.

  Args:
    where: 'file:line', for errors.
    column: of the value, for errors.
    value: the column's value, or a part of it.
  """
  if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
    raise UsageError(
      f'{where}: {column}={value!r} is not a list of texts; write it as ["one", "another"]'
    )
  return tuple(value)


def label(where: str, value: Any, names: Sequence[object]) -> int:
  """Returns the index of the right choice.

  Args:
    where: 'file:line', for errors.
    value: one of the names, or the name as a string.
    names: of the choices, in order: numbers or letters.
  """
  known = [str(name) for name in names]
  if str(value) not in known:
    raise UsageError(
      f'{where}: label {value!r} is none of its {len(known)} choices, which '
      f'are {", ".join(known)}; fix or remove the line'
    )
  return known.index(str(value))
