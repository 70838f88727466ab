# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GLUE as pairs of texts: the formats of T5 (Raffel et al., 2019).

Section 2.4 and appendix D: the task's name, and each text after its column's
name; the answer in words. A class is named by the released code's word, a
similarity is the nearest of 0.0, 0.2, ..., 5.0. What the paper prints for MNLI
in section 2.4 has the premise first; its appendix D, and the code that the
released models were trained with, the hypothesis.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt_jax.files.document import Document, Reader, Skip, Unit
from gpt_jax.spec import UsageError
from gpt_jax.tasks import glue, tasks
from gpt_jax.tasks.tasks import Task

# What an answer that says nothing counts as: the released code's choice. Of
# classes it is one of its own.
NOTHING = -1
_STEPS = 5  # of a similarity, in 1
_SCORES = (0.0, 5.0)


class Format(NamedTuple):
  """How a task is written.

  Attributes:
    columns: what the texts of the task are called, in their order there.
    order: of these in the source.
    targets: of each class, by its number; (): the label is a similarity.
  """

  columns: tuple[str, ...]
  order: tuple[int, ...]
  targets: tuple[str, ...]


class Pair(NamedTuple):
  """What a model reads, and what it is to write.

  Attributes:
    where: of the example, as 'file:line'.
    source: read.
    target: to write.
    label: what the target says: a class, or the similarity before rounding.
  """

  where: str
  source: str
  target: str
  label: int | float


def source_text(name: str, texts: Sequence[str]) -> str:
  """What the model reads: 'rte sentence1: ... sentence2: ...'.

  Args:
    name: of the task, of `FORMATS`.
    texts: of an example, as `data.tasks` reads them.
  """
  form = FORMATS[name]
  parts = [f'{form.columns[i]}: {texts[i].strip()}' for i in form.order]
  return ' '.join([name, *parts])


def target_text(name: str, label: int | float) -> str:
  """What the model is to write: a word for a class, '3.2' for 3.25."""
  form = FORMATS[name]
  if form.targets:
    return form.targets[int(label)]
  # Python rounds a half to even, as TensorFlow does.
  return f'{round(_STEPS * label) / _STEPS:.1f}'


def label_of(name: str, text: str) -> int | float | None:
  """What an answer says: a class, or a similarity; None: nothing known.

  A similarity is any number of 0 to 5, one of the steps or not.
  """
  form, text = FORMATS[name], text.strip()
  if form.targets:
    return form.targets.index(text) if text in form.targets else None
  try:
    score = float(text)
  except ValueError:
    return None
  least, most = _SCORES
  return score if least <= score <= most else None


def load(name: str, folder: str) -> Task:
  """The tables of a task of `FORMATS`.

  Args:
    name: of the task.
    folder: of its files as published; '': the set of TFDS.
  """
  if name not in FORMATS:
    raise UsageError(
      f'text_to_text({name!r}): no such task; one of ' + ', '.join(FORMATS)
    )
  return glue.TASKS[name](folder)


def pairs(name: str, task: Task, split: str) -> Iterator[Pair]:
  """The examples of a split.

  Args:
    name: of the task, of `FORMATS`.
    task: see `load`.
    split: 'train', or 'dev'; others need not have labels.
  """
  splits = [s for s in task.paths if s.startswith(('train', 'dev'))]
  if split not in splits:
    raise UsageError(
      f'text_to_text({name!r}): has no split {split!r} with labels; one of '
      + ', '.join(splits)
    )
  for example in tasks.read(task, split):
    if example.label is None:
      raise UsageError(f'{example.where}: has no label; remove the line')
    yield Pair(
      example.where,
      source_text(name, example.texts),
      target_text(name, example.label),
      example.label,
    )


_TWO = ('sentence1', 'sentence2')
_NLI = ('entailment', 'not_entailment')

FORMATS = {
  'cola': Format(('sentence',), (0,), ('unacceptable', 'acceptable')),
  'sst2': Format(('sentence',), (0,), ('negative', 'positive')),
  'mrpc': Format(_TWO, (0, 1), ('not_equivalent', 'equivalent')),
  'stsb': Format(_TWO, (0, 1), ()),
  'qqp': Format(
    ('question1', 'question2'), (0, 1), ('not_duplicate', 'duplicate')
  ),
  'mnli': Format(
    ('premise', 'hypothesis'),
    (1, 0),
    ('entailment', 'neutral', 'contradiction'),
  ),
  'qnli': Format(('question', 'sentence'), (0, 1), _NLI),
  'rte': Format(_TWO, (0, 1), _NLI),
  'wnli': Format(_TWO, (0, 1), _NLI[::-1]),
}


# GLUE's tasks as a source of pairs of texts, in T5's formats.
#
#   data.source = "text_to_text('sst2', 'glue/SST-2')"
#
# A pair is two documents, one after the other: NAME#source and NAME#target.


def text_to_text(task: str, folder: str = '', split: str = 'train') -> Reader:
  """The examples of a task: 'sst2 sentence: ...' and 'positive'.

  Args:
    task: of `text_to_text.FORMATS`.
    folder: of its files as published; '': the set of TensorFlow Datasets.
    split: 'train' or 'dev'.
  """
  tables = load(task, folder)

  def unit(skip: Skip) -> Iterator[Document]:
    del skip  # a line that is bad is always an error
    for number, pair in enumerate(pairs(task, tables, split)):
      yield Document(f'{split}:{number}#source', pair.source)
      yield Document(f'{split}:{number}#target', pair.target)

  path = tables.paths.get(split, '')
  known = bool(path) and not path.startswith('tfds:')
  size = os.path.getsize(path) if known and os.path.isfile(path) else None
  files = {os.path.basename(path): path} if known else {}
  return Reader([Unit(unit)], files, size)
