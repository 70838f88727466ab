# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published tasks. Each takes the folder of its files as published, or without
one looks for the set of TensorFlow Datasets: `sst2('data/SST-2')`, `sst2()`.

The forms are those that GPT-1 gives them (table 1): QNLI and the others of
natural language inference are entailment; MRPC, QQP and STS-B similarity; RACE
and the Story Cloze Test multiple choice.
"""

import os
from collections.abc import Iterable, Iterator

from gpt_jax.data import lines, records
from gpt_jax.data.records import Record
from gpt_jax.finetuning.task_forms import FORMS
from gpt_jax.finetuning.tasks import Task
from gpt_jax.spec import UsageError

_GLUE = 'https://gluebenchmark.com/tasks'


def sst2(folder: str = '') -> Task:
  """Stanford Sentiment Treebank: accuracy."""
  paths = _glue(folder, 'sst2')
  return Task(
    *('classification', paths, ('sentence',)),
    labels=('0', '1'),
    how=_how(_GLUE, 'SST-2', 'glue/sst2'),
  )


def cola(folder: str = '') -> Task:
  """Linguistic acceptability: Matthews correlation."""
  columns = ('source', 'label', 'mark', 'sentence')
  paths = _glue(folder, 'cola')
  # Its files name no columns, but test.tsv does, and holds no labels.
  paths = paths if not folder else {k: paths[k] for k in ('train', 'dev')}
  return Task(
    *('classification', paths, ('sentence',)),
    labels=('0', '1'),
    metrics=('matthews', 'accuracy'),
    columns=columns if folder else (),
    how=_how(_GLUE, 'CoLA', 'glue/cola'),
  )


def mrpc(folder: str = '') -> Task:
  """Microsoft paraphrases: F1. Also from the files that Microsoft published.

  GLUE's train split are the lines of msr_paraphrase_train.txt that dev_ids.tsv
  does not name.
  """
  task = Task(
    *('similarity', _glue(folder, 'mrpc'), ('sentence1', 'sentence2')),
    labels=('0', '1'),
    metrics=('f1', 'accuracy'),
    how=_how(_GLUE, 'MRPC', 'glue/mrpc'),
  )
  if not folder:
    return task
  task = task._replace(texts=('#1 String', '#2 String'), label='Quality')
  ids = os.path.join(folder, 'dev_ids.tsv')
  if not os.path.isfile(ids) or os.path.isfile(task.paths['train']):
    return task
  held = {(r['a'], r['b']) for r in records.read(ids, ('a', 'b'))}
  published = os.path.join(folder, 'msr_paraphrase_train.txt')

  def expand(record: Record) -> Iterator[Record]:
    pair = record['#1 ID'], record['#2 ID']
    if pair not in held or not record.where.startswith(published):
      yield record

  paths = {
    'train': published,
    'dev': task.paths['dev'],
    'test': os.path.join(folder, 'msr_paraphrase_test.txt'),
  }
  paths = {k: v for k, v in paths.items() if k != 'test' or os.path.isfile(v)}
  return task._replace(paths=paths, expand=expand)


def stsb(folder: str = '') -> Task:
  """Semantic similarity, scores of 0 to 5: Pearson and Spearman."""
  return Task(
    *('similarity', _glue(folder, 'stsb'), ('sentence1', 'sentence2')),
    label='score' if folder else 'label',
    regression=True,
    metrics=('pearson', 'spearman'),
    how=_how(_GLUE, 'STS-B', 'glue/stsb'),
  )


def qqp(folder: str = '') -> Task:
  """Quora question pairs: F1."""
  return Task(
    *('similarity', _glue(folder, 'qqp'), ('question1', 'question2')),
    label='is_duplicate' if folder else 'label',
    labels=('0', '1'),
    metrics=('f1', 'accuracy'),
    how=_how(_GLUE, 'QQP', 'glue/qqp'),
  )


def rte(folder: str = '') -> Task:
  """Recognizing textual entailment: accuracy."""
  return Task(
    *('entailment', _glue(folder, 'rte'), ('sentence1', 'sentence2')),
    labels=('entailment', 'not_entailment'),
    how=_how(_GLUE, 'RTE', 'glue/rte'),
  )


def qnli(folder: str = '') -> Task:
  """Does the sentence answer the question: accuracy."""
  return Task(
    *('entailment', _glue(folder, 'qnli'), ('question', 'sentence')),
    labels=('entailment', 'not_entailment'),
    how=_how(_GLUE, 'QNLI', 'glue/qnli'),
  )


def wnli(folder: str = '') -> Task:
  """Winograd sentences: accuracy."""
  return Task(
    *('entailment', _glue(folder, 'wnli'), ('sentence1', 'sentence2')),
    labels=('0', '1') if folder else ('not_entailment', 'entailment'),
    how=_how(_GLUE, 'WNLI', 'glue/wnli'),
  )


def mnli(folder: str = '') -> Task:
  """MultiNLI: accuracy; dev is matched, dev_mismatched of other genres."""
  names = {'dev': 'matched', 'dev_mismatched': 'mismatched'}
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  paths = {'train': _file(folder, 'train.tsv', 'glue/mnli:train')}
  for split, name in names.items():
    tfds = f'glue/mnli:validation_{name}'
    paths[split] = _file(folder, f'dev_{name}.tsv', tfds)
  return Task(
    *('entailment', paths, texts),
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=_how(_GLUE, 'MNLI', 'glue/mnli'),
  )


def snli(folder: str = '') -> Task:
  """Stanford inference: accuracy; those without a gold label are left out."""
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  return Task(
    'entailment',
    _three(folder, 'snli_1.0_{}.jsonl', 'snli'),
    texts,
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=_how('https://nlp.stanford.edu/projects/snli', 'snli_1.0', 'snli'),
  )


def scitail(folder: str = '') -> Task:
  """Science questions: accuracy; the files of its folder tsv_format."""
  return Task(
    'entailment',
    _three(folder, 'scitail_1.0_{}.tsv', 'sci_tail'),
    ('premise', 'hypothesis'),
    labels=('entails', 'neutral'),
    columns=('premise', 'hypothesis', 'label') if folder else (),
    how=_how('https://allenai.org/data/scitail', 'SciTailV1.1', 'sci_tail'),
  )


def race(folder: str = '', level: str = 'middle') -> Task:
  """Questions on passages: accuracy.

  Args:
    folder: with train_LEVEL.jsonl, dev_LEVEL.jsonl: a line a passage, with
      `article`, and lists `questions`, `options`, `answers`.
    level: middle or high.
  """
  if level not in ('middle', 'high'):
    raise UsageError(f'finetune.task: race: level={level!r}: middle or high')

  def expand(record: Record) -> Iterable[Record]:
    parts = [record[c] for c in ('questions', 'options', 'answers')]
    if len({len(part) for part in parts}) > 1:
      raise UsageError(
        f'{record.where}: has {len(parts[0])} questions, {len(parts[1])} lists '
        f'of options, {len(parts[2])} answers'
      )
    for question, options, answer in zip(*parts, strict=True):
      fields = {
        'article': record['article'],
        'question': question,
        'options': options,
        'answer': answer,
      }
      yield Record(record.where, fields)

  return Task(
    'choice',
    _three(folder, f'{{}}_{level}.jsonl', f'race/{level}'),
    ('article', 'question'),
    label='answer',
    labels=('A', 'B', 'C', 'D'),
    answers=('options',),
    expand=expand,
    how=_how('https://www.cs.cmu.edu/~glai1/data/race', 'RACE', 'race'),
  )


def story_cloze(folder: str = '', year: str = '2016') -> Task:
  """The right end of a story: accuracy.

  It trains on the published validation set of that year, 2016 or 2018, and is
  judged on the test set, as the paper's systems are. The folder holds both
  under the names that TFDS gives them, such as cloze_test_val__spring2016.csv.
  """
  seasons = {'2016': 'spring2016', '2018': 'winter2018'}
  if year not in seasons:
    raise UsageError(
      f'finetune.task: story_cloze: year={year!r}: unknown; one of '
      + ', '.join(seasons)
    )
  stories = [f'{{InputSentence{i}}}' for i in range(1, 5)]
  if folder:
    texts = (' '.join(stories),)
    answers = ('{RandomFifthSentenceQuiz1}', '{RandomFifthSentenceQuiz2}')
  else:
    texts, answers = ('context',), ('endings',)
  name, file = f'story_cloze/{year}', f'cloze_test_{{}}__{seasons[year]}.csv'
  return Task(
    'choice',
    {
      'train': _file(folder, file.format('val'), f'{name}:validation'),
      'dev': _file(folder, file.format('test'), f'{name}:test'),
    },
    texts,
    label='AnswerRightEnding' if folder else 'label',
    labels=('1', '2'),
    answers=answers,
    how=_how('https://cs.rochester.edu/nlp/rocstories', 'csv files', name),
  )


def _glue(folder: str, name: str) -> dict[str, str]:
  return _three(folder, '{}.tsv', f'glue/{name}')


def _three(folder: str, file: str, tfds: str) -> dict[str, str]:
  """The paths of train, dev and, where the folder has it, test."""
  splits = {'train': 'train', 'dev': 'validation', 'test': 'test'}
  paths = {
    split: _file(folder, file.format(split), f'{tfds}:{name}')
    for split, name in splits.items()
  }
  if folder and not os.path.isfile(paths['test']):
    del paths['test']
  return paths


def _file(folder: str, name: str, tfds: str) -> str:
  """A file of the folder, maybe compressed; or the split of TFDS."""
  if not folder:
    return f'tfds:{tfds}'
  path = os.path.join(folder, name)
  packed = [p for e in lines.COMPRESSED if os.path.isfile(p := path + e)]
  return packed[0] if packed and not os.path.isfile(path) else path


def _how(page: str, name: str, tfds: str) -> tuple[str, str]:
  return (
    f'unpack {name} from {page} and name its folder in finetune.task',
    f'leave the folder out and prepare the set of TFDS: tfds build {tfds} '
    '--file_format=array_record',
  )


TASKS = {
  **FORMS,
  'sst2': sst2,
  'cola': cola,
  'mrpc': mrpc,
  'stsb': stsb,
  'qqp': qqp,
  'rte': rte,
  'qnli': qnli,
  'wnli': wnli,
  'mnli': mnli,
  'snli': snli,
  'scitail': scitail,
  'race': race,
  'story_cloze': story_cloze,
}
