# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes tasks of records: which are measured, and which are shown before."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpt_jax.data.records import Record
from gpt_jax.evaluation.choices import Choices, Example, Measure
from gpt_jax.evaluation.files import Files
from gpt_jax.evaluation.task import Task

# Makes a task from the folder of the task files.
Make = Callable[[str], Task]


class Pool(NamedTuple):
  """The examples of a task.

  Attributes:
    path: of those measured: a file or a split; see `Files`.
    shown: of those shown before them: another, 'rest' for the others of
      `path`, or '' for none. An example equal to the measured one is never
      shown.
  """

  path: str
  shown: str


def choices(
  files: Files,
  pool: Pool,
  read: Callable[[Record], Iterable[Example]],
  measure: Measure,
  *,
  same_text: bool = False,
) -> Make:
  """A task of choices.

  Args:
    files: of the task; its folder is replaced.
    pool: where its examples are.
    read: makes examples of a record.
    measure: see `Choices.figures`.
    same_text: see `Choices`.
  """

  def examples(files: Files, path: str) -> Iterator[Example]:
    for record in files.records(path):
      yield from read(record)

  def make(folder: str) -> Task:
    here = files._replace(folder=folder)
    shown = pool.path if pool.shown == 'rest' else pool.shown
    return Choices(
      functools.partial(examples, here, pool.path),
      measure,
      functools.partial(examples, here, shown) if shown else None,
      same_text=same_text,
    )

  return make
