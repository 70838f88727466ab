# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of tasks, which users fetch themselves."""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from gpt_jax.data import matches, records
from gpt_jax.data.records import Record
from gpt_jax.spec import UsageError

T = TypeVar('T')


class Files(NamedTuple):
  """The files of a task.

  Attributes:
    folder: base of relative paths, `--tasks_dir`.
    home: tells the user how to get the files.
  """

  folder: str
  home: str

  def find(self, pattern: str) -> list[str]:
    """Lists the matching paths, sorted.

    Raises:
      UsageError: none matches; says how to get the files.
    """
    path = os.path.join(self.folder, pattern)
    try:
      found = matches.find(path)
    except matches.NoFile as e:
      raise UsageError(
        f'{path}: no such file; {self.home}, or name the folder by --tasks_dir'
      ) from e
    for bad in found.bad:
      raise bad
    return [*found.values()]

  def records(self, pattern: str) -> Iterator[Record]:
    """Streams the records of all files; see `data.records`."""
    for path in self.find(pattern):
      yield from records.read(path)

  def text(self, pattern: str) -> str:
    """Reads the text of one file.

    Raises:
      UsageError: it is not UTF-8, or the pattern matches several.
    """
    paths = self.find(pattern)
    if len(paths) > 1:
      raise UsageError(f'{pattern!r} matches {len(paths)} files; name one')
    try:
      with open(paths[0], encoding='utf-8', newline='') as f:
        return f.read()
    except UnicodeDecodeError as e:
      raise UsageError(f'{paths[0]}: is not UTF-8: byte {e.start}') from e


def read_all(kind: str, entries: Callable[[], Iterator[T]]) -> list[T]:
  """Reads all entries of a task; `kind` names them: examples, questions.

  Raises:
    UsageError: there are none.
  """
  out = [*entries()]
  if not out:
    raise UsageError(f'the task has no {kind}: its files are empty')
  return out
