# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks of GLUE, from the folders of its files or from TFDS."""

import os
from collections.abc import Iterator

from gpt_jax.files import records
from gpt_jax.files.records import Record
from gpt_jax.tasks import tasks
from gpt_jax.tasks.tasks import Task

_PAGE = 'https://gluebenchmark.com/tasks'


def sst2(folder: str = '') -> Task:
  """Stanford Sentiment Treebank: accuracy."""
  paths = _glue(folder, 'sst2')
  return Task(
    form='classification',
    paths=paths,
    texts=('sentence',),
    labels=('0', '1'),
    how=tasks.instructions(_PAGE, 'SST-2', 'glue/sst2'),
  )


def cola(folder: str = '') -> Task:
  """Linguistic acceptability: Matthews correlation."""
  columns = ('source', 'label', 'mark', 'sentence')
  paths = _glue(folder, 'cola')
  # Its files name no columns, but test.tsv does, and holds no labels.
  paths = paths if not folder else {k: paths[k] for k in ('train', 'dev')}
  return Task(
    form='classification',
    paths=paths,
    texts=('sentence',),
    labels=('0', '1'),
    metrics=('matthews', 'accuracy'),
    columns=columns if folder else (),
    how=tasks.instructions(_PAGE, 'CoLA', 'glue/cola'),
  )


def mrpc(folder: str = '') -> Task:
  """Microsoft paraphrases: F1. Also from the files that Microsoft published.

  GLUE's train split are the lines of msr_paraphrase_train.txt that dev_ids.tsv
  does not name.
  """
  task = Task(
    form='similarity',
    paths=_glue(folder, 'mrpc'),
    texts=('sentence1', 'sentence2'),
    labels=('0', '1'),
    metrics=('f1', 'accuracy'),
    how=tasks.instructions(_PAGE, 'MRPC', 'glue/mrpc'),
  )
  if not folder:
    return task
  task = task._replace(texts=('#1 String', '#2 String'), label='Quality')
  ids = os.path.join(folder, 'dev_ids.tsv')
  if not os.path.isfile(ids) or os.path.isfile(task.paths['train']):
    return task
  held = {(r['a'], r['b']) for r in records.read(ids, ('a', 'b'))}
  whole = os.path.join(folder, 'msr_paraphrase_train.txt')

  def expand(record: Record) -> Iterator[Record]:
    pair = record['#1 ID'], record['#2 ID']
    if pair not in held or not record.where.startswith(whole):
      yield record

  paths = {
    'train': whole,
    'dev': task.paths['dev'],
    'test': os.path.join(folder, 'msr_paraphrase_test.txt'),
  }
  paths = {k: v for k, v in paths.items() if k != 'test' or os.path.isfile(v)}
  return task._replace(paths=paths, expand=expand)


def stsb(folder: str = '') -> Task:
  """Semantic similarity, scores of 0 to 5: Pearson and Spearman."""
  return Task(
    form='similarity',
    paths=_glue(folder, 'stsb'),
    texts=('sentence1', 'sentence2'),
    label='score' if folder else 'label',
    regression=True,
    metrics=('pearson', 'spearman'),
    how=tasks.instructions(_PAGE, 'STS-B', 'glue/stsb'),
  )


def qqp(folder: str = '') -> Task:
  """Quora question pairs: F1."""
  return Task(
    form='similarity',
    paths=_glue(folder, 'qqp'),
    texts=('question1', 'question2'),
    label='is_duplicate' if folder else 'label',
    labels=('0', '1'),
    metrics=('f1', 'accuracy'),
    how=tasks.instructions(_PAGE, 'QQP', 'glue/qqp'),
  )


def rte(folder: str = '') -> Task:
  """Recognizing textual entailment: accuracy."""
  return Task(
    form='entailment',
    paths=_glue(folder, 'rte'),
    texts=('sentence1', 'sentence2'),
    labels=('entailment', 'not_entailment'),
    how=tasks.instructions(_PAGE, 'RTE', 'glue/rte'),
  )


def qnli(folder: str = '') -> Task:
  """Does the sentence answer the question: accuracy."""
  return Task(
    form='entailment',
    paths=_glue(folder, 'qnli'),
    texts=('question', 'sentence'),
    labels=('entailment', 'not_entailment'),
    how=tasks.instructions(_PAGE, 'QNLI', 'glue/qnli'),
  )


def wnli(folder: str = '') -> Task:
  """Winograd sentences: accuracy."""
  return Task(
    form='entailment',
    paths=_glue(folder, 'wnli'),
    texts=('sentence1', 'sentence2'),
    labels=('0', '1') if folder else ('not_entailment', 'entailment'),
    how=tasks.instructions(_PAGE, 'WNLI', 'glue/wnli'),
  )


def mnli(folder: str = '') -> Task:
  """MultiNLI: accuracy; dev is matched, dev_mismatched of other genres."""
  names = {'dev': 'matched', 'dev_mismatched': 'mismatched'}
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  paths = {'train': tasks.table(folder, 'train.tsv', 'glue/mnli:train')}
  for split, name in names.items():
    tfds = f'glue/mnli:validation_{name}'
    paths[split] = tasks.table(folder, f'dev_{name}.tsv', tfds)
  return Task(
    form='entailment',
    paths=paths,
    texts=texts,
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=tasks.instructions(_PAGE, 'MNLI', 'glue/mnli'),
  )


def _glue(folder: str, name: str) -> dict[str, str]:
  return tasks.splits(folder, '{}.tsv', f'glue/{name}')


# Folders as GLUE calls them.
FOLDERS = {
  'sst2': 'SST-2',
  'cola': 'CoLA',
  'mrpc': 'MRPC',
  'stsb': 'STS-B',
  'qqp': 'QQP',
  'rte': 'RTE',
  'qnli': 'QNLI',
  'mnli': 'MNLI',
  'wnli': 'WNLI',
}

TASKS = {
  'sst2': sst2,
  'cola': cola,
  'mrpc': mrpc,
  'stsb': stsb,
  'qqp': qqp,
  'rte': rte,
  'qnli': qnli,
  'wnli': wnli,
  'mnli': mnli,
}
