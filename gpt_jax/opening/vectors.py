# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Word vectors in the text format of GloVe (Pennington et al., 2014).

A line is a word and its numbers, with one space between and no header. The
published files have words that hold spaces (`. . .`), so the numbers are the
last fields of a line, as many as a vector is wide. They also repeat words: the
first line counts.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.core.files import globs, lines, progress
from gpt_jax.core.files.document import Bad
from gpt_jax.core.spec import UsageError

_REPORTED = 1 << 24  # bytes between two reports of progress


class Vectors(NamedTuple):
  """The vectors of a list of words, in the order of the list.

  Attributes:
    values_VD: float32 [V, D]; 0 for words that the file lacks.
    found_V: bool [V], whether the file has the word.
  """

  values_VD: np.ndarray
  found_V: np.ndarray


def read(path: str, words: Sequence[str], size: int) -> Vectors:
  """Reads the vectors of `words` from a file.

  Only these vectors are held in memory, and only their numbers are parsed.

  Args:
    path: may be compressed: see `lines`.
    words: each once.
    size: D, the number of numbers of a line.
  """
  at = {word.encode(): i for i, word in enumerate(words)}
  vectors = Vectors(np.zeros((len(words), size), np.float32), np.zeros(len(words), bool))
  for where, word, line in _entries(path, size):
    i = at.pop(word, None)
    if i is None:
      continue
    try:
      values_D = np.array(line[len(word) :].split(), np.float32)
    except ValueError as e:
      raise _odd(where, size, f': {e}') from e
    if len(values_D) != size or not np.isfinite(values_D).all():
      raise _odd(where, size, ': not all of its numbers are finite')
    vectors.values_VD[i] = values_D
    vectors.found_V[i] = True
  return vectors


def words(path: str, size: int) -> Iterator[str]:
  """Yields the words of a file in its order, each once; see `read`."""
  seen: set[bytes] = set()
  for where, word, _ in _entries(path, size):
    if word not in seen:
      seen.add(word)
      yield lines.decoded(where, word)


def _entries(path: str, size: int) -> Iterator[tuple[str, bytes, bytes]]:
  """Yields 'file:line', the word, and the line without its end."""
  if not os.path.isfile(path):
    raise UsageError(f'{path}: no such file; name a file of word vectors')
  total = globs.total_size({path: path})
  with progress.bar() as report:
    done, reported, number = 0, 0, 0
    for number, whole in enumerate(lines.every(path, lines.fail), start=1):
      done += len(whole)
      if done - reported >= _REPORTED:
        reported = done
        report(f'reading {os.path.basename(path)}', done, total)
      line, where = whole.rstrip(b' \r\n'), f'{path}:{number}'
      spaces = line.count(b' ')
      if spaces < size:
        raise _odd(where, size, f': it has {spaces}')
      word = line.rsplit(b' ', size)[0] if spaces > size else line.split(b' ')[0]
      if number == 1 and b' ' in word and _is_number(word.split(b' ')[-1]):
        # Wider vectors would otherwise be taken for words that hold spaces.
        raise _odd(where, size, ': it has more')
      yield where, word, line
    if not number:
      raise UsageError(f'{path}: is empty; name a file of word vectors')


def _is_number(field: bytes) -> bool:
  try:
    float(field)
  except ValueError:
    return False
  return True


def _odd(where: str, size: int, why: str) -> Bad:
  return Bad(
    where,
    f'needs a word and {size} numbers after it',
    f'{why}; mend or remove the line, or set another width',
  )
