# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GLUE: each row of `GLUE` defines a task, for fine-tuning and as T5's text.

A task is read from the folder of its files, `sst2('data/SST-2')`, or without a
folder from TensorFlow Datasets, `sst2()`.

T5 (Raffel et al., 2019, section 2.4 and appendix D) casts tasks as text: the
source is the task's name, then each text after its column's name; the target is
the answer in words. Classes have the released code's names; a similarity is
rounded to one of 0.0, 0.2, ..., 5.0. For MNLI, section 2.4 prints the premise
first; appendix D and the code that trained the released models put the
hypothesis first, as we do.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gpt_jax.core.files import records
from gpt_jax.core.files.document import Document, Skip, Source
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks.files import TFDS
from gpt_jax.tasks.task import Task, TextPair, instructions, read, splits, table

_PAGE = 'https://gluebenchmark.com/tasks'
# The label of an answer that names no class. It counts as a class of its own,
# as in T5's released code.
NOTHING = -1
_STEPS = 5  # steps of a similarity per 1.0
_SCORES = (0.0, 5.0)


class GlueTask(NamedTuple):
  """A task of GLUE.

  Attributes:
    folder: its folder in GLUE.
    task: for GLUE's files; paths are set according to the folder.
    source: T5's names of its columns.
    targets: T5's word for each class; (): the label is a similarity.
    order: of the columns in T5's source; (): unchanged.
    tfds: fields of `task` that differ in TFDS.
    adapt: adapts the task to peculiarities of its folder, '' for TFDS.
  """

  folder: str
  task: Task
  source: tuple[str, ...]
  targets: tuple[str, ...] = ()
  order: tuple[int, ...] = ()
  tfds: Mapping[str, Any] = MappingProxyType({})
  adapt: Callable[[Task, str], Task] = lambda task, folder: task


def _cola(task: Task, folder: str) -> Task:
  # test.tsv, unlike the others, has a header, and no labels.
  task.paths.pop('test' if folder else '', None)
  return task


def _mrpc(task: Task, folder: str) -> Task:
  """Also supports Microsoft's msr_paraphrase_train.txt beside GLUE's dev.tsv.

  GLUE's train split consists of the lines of msr_paraphrase_train.txt that are
  not listed in dev_ids.tsv.
  """
  ids = os.path.join(folder, 'dev_ids.tsv')
  if not folder or not os.path.isfile(ids):
    return task
  if os.path.isfile(task.paths['train']):
    return task
  held = {(r['a'], r['b']) for r in records.read(ids, ('a', 'b'))}
  whole = os.path.join(folder, 'msr_paraphrase_train.txt')

  def expand(record: Record) -> Iterator[Record]:
    pair = record['#1 ID'], record['#2 ID']
    if pair not in held or not record.where.startswith(whole):
      yield record

  paths = {'train': whole, 'dev': task.paths['dev']}
  test = os.path.join(folder, 'msr_paraphrase_test.txt')
  if os.path.isfile(test):
    paths['test'] = test
  return task._replace(paths=paths, expand=expand)


def _mnli(task: Task, folder: str) -> Task:
  """`dev` is the matched set; `dev_mismatched` has other genres."""
  paths = {'train': table(folder, 'train.tsv', 'glue/mnli:train')}
  for split, name in ('dev', 'matched'), ('dev_mismatched', 'mismatched'):
    tfds = f'glue/mnli:validation_{name}'
    paths[split] = table(folder, f'dev_{name}.tsv', tfds)
  return task._replace(paths=paths)


_TWO = ('sentence1', 'sentence2')
_NLI = ('entailment', 'not_entailment')
_NLI3 = ('entailment', 'neutral', 'contradiction')

# Tasks have GPT-1's forms (table 1).
GLUE = {
  'sst2': GlueTask(
    'SST-2',
    Task('classification', {}, ('sentence',), labels=('0', '1')),
    source=('sentence',),
    targets=('negative', 'positive'),
  ),
  'cola': GlueTask(
    'CoLA',
    Task(
      'classification',
      {},
      ('sentence',),
      labels=('0', '1'),
      metrics=('matthews', 'accuracy'),
      columns=('source', 'label', 'mark', 'sentence'),
    ),
    source=('sentence',),
    targets=('unacceptable', 'acceptable'),
    tfds={'columns': ()},
    adapt=_cola,
  ),
  'mrpc': GlueTask(
    'MRPC',
    Task(
      'similarity',
      {},
      ('#1 String', '#2 String'),
      label='Quality',
      labels=('0', '1'),
      metrics=('f1', 'accuracy'),
    ),
    source=_TWO,
    targets=('not_equivalent', 'equivalent'),
    tfds={'texts': _TWO, 'label': 'label'},
    adapt=_mrpc,
  ),
  'stsb': GlueTask(
    'STS-B',
    Task('similarity', {}, _TWO, label='score', regression=True, metrics=('pearson', 'spearman')),
    source=_TWO,
    tfds={'label': 'label'},
  ),
  'qqp': GlueTask(
    'QQP',
    Task(
      'similarity',
      {},
      ('question1', 'question2'),
      label='is_duplicate',
      labels=('0', '1'),
      metrics=('f1', 'accuracy'),
    ),
    source=('question1', 'question2'),
    targets=('not_duplicate', 'duplicate'),
    tfds={'label': 'label'},
  ),
  'mnli': GlueTask(
    'MNLI',
    Task('entailment', {}, _TWO, label='gold_label', labels=_NLI3, drop=('-', '-1')),
    source=('premise', 'hypothesis'),
    targets=_NLI3,
    order=(1, 0),
    tfds={'texts': ('premise', 'hypothesis'), 'label': 'label'},
    adapt=_mnli,
  ),
  'qnli': GlueTask(
    'QNLI',
    Task('entailment', {}, ('question', 'sentence'), labels=_NLI),
    source=('question', 'sentence'),
    targets=_NLI,
  ),
  'rte': GlueTask('RTE', Task('entailment', {}, _TWO, labels=_NLI), source=_TWO, targets=_NLI),
  'wnli': GlueTask(
    'WNLI',
    Task('entailment', {}, _TWO, labels=('0', '1')),
    source=_TWO,
    targets=_NLI[::-1],
    tfds={'labels': _NLI[::-1]},
  ),
}


def load(name: str, folder: str = '') -> Task:
  """A task of `GLUE`, from the files in its folder; '': from TFDS."""
  row, tfds = GLUE[name], f'glue/{name}'
  task = row.task._replace(
    paths=splits(folder, '{}.tsv', tfds), how=instructions(_PAGE, row.folder, tfds)
  )
  return row.adapt(task if folder else task._replace(**row.tfds), folder)


def find(name: str, base: str, folder: str) -> Task:
  """A task of `GLUE` from its folder below that of all tasks.

  Args:
    base: the folder of all tasks, maybe with a folder glue; or `TFDS`.
    folder: of the task, below `base` or its glue. With `TFDS` only another
      one than GLUE's is read.
  """
  if base == TFDS:
    return load(name, '' if folder == GLUE[name].folder else folder)
  places = [os.path.join(base, x, folder) for x in ('', 'glue')]
  there = [place for place in places if os.path.isdir(place)]
  return load(name, (there or places)[0])


def source_text(name: str, texts: Sequence[str]) -> str:
  """T5's source: 'rte sentence1: ... sentence2: ...'."""
  row = GLUE[name]
  order = row.order or range(len(row.source))
  parts = [f'{row.source[i]}: {texts[i].strip()}' for i in order]
  return ' '.join([name, *parts])


def target_text(name: str, label: int | float) -> str:
  """T5's target: the word for a class, '3.2' for 3.25."""
  if targets := GLUE[name].targets:
    return targets[int(label)]
  # Python rounds half to even, as TensorFlow does.
  return f'{round(_STEPS * label) / _STEPS:.1f}'


def label_of(name: str, text: str) -> int | float | None:
  """The label that an answer denotes: a class, or any number from 0 to 5."""
  text = text.strip()
  if targets := GLUE[name].targets:
    return targets.index(text) if text in targets else None
  try:
    score = float(text)
  except ValueError:
    return None
  least, most = _SCORES
  return score if least <= score <= most else None


def pairs(name: str, task: Task, split: str) -> Iterator[TextPair]:
  """The examples of a split as T5's sources and targets.

  `split` is 'train' or 'dev'; other splits may lack labels.
  """
  splits = [s for s in task.paths if s.startswith(('train', 'dev'))]
  if split not in splits:
    raise UsageError(
      f'text_to_text({name!r}): has no split {split!r} with labels; one of ' + ', '.join(splits)
    )
  for example in read(task, split):
    if example.label is None:
      raise UsageError(f'{example.where}: has no label; remove the line')
    yield TextPair(
      example.where,
      source_text(name, example.texts),
      target_text(name, example.label),
      example.label,
    )


def text_to_text(task: str, folder: str = '', split: str = 'train') -> Source:
  """A source of pairs: 'sst2 sentence: ...' and 'positive'.

  A pair is two documents, one after the other: NUMBER#source, NUMBER#target.

  Args:
    task: of `GLUE`.
    folder: of its files as published; '': TensorFlow Datasets.
    split: 'train' or 'dev'.
  """
  if task not in GLUE:
    raise UsageError(f'text_to_text({task!r}): no such task; one of ' + ', '.join(GLUE))
  tables = load(task, folder)

  def unit(skip: Skip) -> Iterator[Document]:
    del skip  # invalid lines are always errors
    for number, pair in enumerate(pairs(task, tables, split)):
      yield Document(f'{split}:{number}#source', pair.source)
      yield Document(f'{split}:{number}#target', pair.target)

  path = tables.paths.get(split, '')
  known = bool(path) and not path.startswith('tfds:')
  size = os.path.getsize(path) if known and os.path.isfile(path) else None
  files = {os.path.basename(path): path} if known else {}
  return Source(units=[unit], files=files, num_bytes=size)
