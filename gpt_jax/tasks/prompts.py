# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts with choices, whose likelihood `evaluation.likelihood` measures."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from gpt_jax.core.files.records import Record
from gpt_jax.tasks.files import Files


class Prompt(NamedTuple):
  """One question with its choices.

  Attributes:
    where: 'file:line'.
    context: text before the continuation.
    choices: the continuations, including leading white space.
    label: index of the right choice; with the measure `threshold` the class.
    group: examples of a group, such as a BLiMP paradigm, are averaged first.
    general: a context without the question, such as 'Answer:'; None if the
      task has none.
    lead: text before the few-shot examples, such as the article that they are
      about too.
    about: identifies the text that the question is about; '' if there is none.
    plain: the text that training data must not contain; '' if it is lead,
      context and right choice.
  """

  where: str
  context: str
  choices: tuple[str, ...]
  label: int
  group: str = ''
  general: str | None = None
  lead: str = ''
  about: str = ''
  plain: str = ''


# Folder of all tasks -> stream of examples.
Examples = Callable[[str], Iterator[Prompt]]
Measure = Literal['accuracies', 'paradigms', 'last_words', 'threshold']


class Prompted(NamedTuple):
  """A task of examples with choices.

  Attributes:
    examples: the examples to measure.
    shown: the pool of few-shot examples; None if there is none.
    measure: accuracies by each scoring rule; accuracies of BLiMP's paradigms;
      how often greedy decoding yields the last words; or two classes, told
      apart by a threshold on the mean log-probability of a text's tokens.
    same_text: whether few-shot examples must be about the same text.
    main: the figure that is reported first; '': the first of the measure.
    best: result of the main figure that counts as 1 in `relative`, in which
      chance counts as 0; None: there is no such figure.
  """

  examples: Examples
  shown: Examples | None
  measure: Measure = 'accuracies'
  same_text: bool = False
  main: str = ''
  best: float | None = None


def of_records(
  files: Files,
  path: str,
  shown: str,
  read: Callable[[Record], Iterable[Prompt]],
  measure: Measure = 'accuracies',
  *,
  same_text: bool = False,
) -> Prompted:
  """A task whose records are read one by one.

  Args:
    files: of the task; their folder is replaced.
    path: the examples to measure: a file or a split; see `Files`.
    shown: the few-shot examples: another file or split, 'rest' for the others
      of `path`, or '' for none. An example equal to the measured one is never
      shown.
    read: makes examples of a record.
    measure: see `Prompted`.
    same_text: see `Prompted`.
  """

  def examples(folder: str, path: str) -> Iterator[Prompt]:
    for record in files._replace(folder=folder).records(path):
      yield from read(record)

  shown = path if shown == 'rest' else shown
  return Prompted(
    functools.partial(examples, path=path),
    functools.partial(examples, path=shown) if shown else None,
    measure,
    same_text,
  )
