# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published tasks. Each takes the folder of its files as published, or without
one looks for the set of TensorFlow Datasets: `sst2('data/SST-2')`, `sst2()`.

The forms are those that GPT-1 gives them (table 1): QNLI and the others of
natural language inference are entailment; MRPC, QQP and STS-B similarity; RACE
and the Story Cloze Test multiple choice.
"""

from collections.abc import Iterable

from gpt_jax.data import glue, published
from gpt_jax.data.records import Record
from gpt_jax.data.tasks import Task
from gpt_jax.finetuning import ranking, task_forms
from gpt_jax.finetuning import tags as tags_lib
from gpt_jax.finetuning.task_forms import FORMS
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError


def snli(folder: str = '') -> Task:
  """Stanford inference: accuracy; those without a gold label are left out."""
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  return Task(
    form='entailment',
    paths=published.splits(folder, 'snli_1.0_{}.jsonl', 'snli'),
    texts=texts,
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=published.instructions(
      'https://nlp.stanford.edu/projects/snli', 'snli_1.0', 'snli'
    ),
  )


def scitail(folder: str = '') -> Task:
  """Science questions: accuracy; the files of its folder tsv_format."""
  return Task(
    form='entailment',
    paths=published.splits(folder, 'scitail_1.0_{}.tsv', 'sci_tail'),
    texts=('premise', 'hypothesis'),
    labels=('entails', 'neutral'),
    columns=('premise', 'hypothesis', 'label') if folder else (),
    how=published.instructions(
      'https://allenai.org/data/scitail', 'SciTailV1.1', 'sci_tail'
    ),
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

  paths = published.splits(folder, f'{{}}_{level}.jsonl', f'race/{level}')
  if not folder:
    paths['dev'] = f'tfds:race/{level}:dev'  # not `validation`, as of others
  return Task(
    form='choice',
    paths=paths,
    texts=('article', 'question'),
    label='answer',
    labels=('A', 'B', 'C', 'D'),
    answers=('options',),
    expand=expand,
    how=published.instructions(
      'https://www.cs.cmu.edu/~glai1/data/race', 'RACE', 'race'
    ),
  )


def story_cloze(folder: str = '', year: str = '2016') -> Task:
  """The right end of a story: accuracy.

  It trains on the published validation set of that year, 2016 or 2018, and is
  judged on the test set, as the paper's systems are. The folder holds both
  under their own names, which begin with cloze_test_val__spring2016, or those
  that TFDS gives them.
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
  name, file = f'story_cloze/{year}', f'cloze_test_{{}}__{seasons[year]}*.csv'
  return Task(
    form='choice',
    paths={
      'train': published.table(
        folder, file.format('val'), f'{name}:validation'
      ),
      'dev': published.table(folder, file.format('test'), f'{name}:test'),
    },
    texts=texts,
    label='AnswerRightEnding' if folder else 'label',
    labels=('1', '2'),
    answers=answers,
    how=published.instructions(
      'https://cs.rochester.edu/nlp/rocstories', 'csv files', name
    ),
  )


def squad(
  folder: str = '',
  version: str = '1.1',
  stride: Count = 128,
  max_question: Count = 64,
  max_answer: Count = 30,
  null_threshold: float = 0.0,
) -> Task:
  """Questions whose answer is a span of an article: F1 and exact match.

  Args:
    folder: with train-v1.1.json and dev-v1.1.json, or those of v2.0.
    version: 1.1 or 2.0, where questions may have no answer.
    stride: see `spans`, also for the others.
    max_question: in tokens.
    max_answer: in tokens.
    null_threshold: for 2.0.
  """
  if version not in ('1.1', '2.0'):
    raise UsageError(f'finetune.task: squad: version={version!r}: 1.1 or 2.0')
  name = f'squad/v{version}'
  task = task_forms.spans(
    published.table(folder, f'train-v{version}.json', f'{name}:train'),
    published.table(folder, f'dev-v{version}.json', f'{name}:validation'),
    empty=version == '2.0',
    stride=stride,
    max_question=max_question,
    max_answer=max_answer,
    null_threshold=null_threshold,
  )
  return task._replace(
    how=published.instructions(
      'https://rajpurkar.github.io/SQuAD-explorer', 'the files', name
    )
  )


def conll2003(folder: str = '') -> Task:
  """Named entities of English news: F1 of entities.

  Args:
    folder: with eng.train, eng.testa (dev) and eng.testb (test) as published,
      whose tags are read with B- at the beginning of each entity.
  """
  names = {'train': 'train', 'testa': 'dev', 'testb': 'test'}
  paths = {
    split: published.table(folder, f'eng.{name}', f'conll2003:{split}')
    for name, split in names.items()
  }
  tags = [f'{x}-{kind}' for kind in ('PER', 'ORG', 'LOC', 'MISC') for x in 'BI']

  def expand(record: Record) -> Iterable[Record]:
    if 'tags' not in record.fields:  # TFDS has B- at each
      return [record]
    fields = {**record.fields, 'tags': tags_lib.iob2(record['tags'])}
    return [Record(record.where, fields)]

  return Task(
    form='tags',
    paths=paths,
    texts=('words' if folder else 'tokens',),
    label='tags' if folder else 'ner',
    labels=('O', *tags),
    metrics=('f1', 'accuracy'),
    example=tags_lib.example,
    expand=expand,
    how=published.instructions(
      'https://www.clips.uantwerpen.be/conll2003/ner', 'eng.*', 'conll2003'
    ),
  )


def qnli_ranking(folder: str = '', candidates: Count = 2) -> Task:
  """QNLI as MT-DNN has it: does the sentence that answers score highest?

  The paper used QNLI's first edition. In that of today few questions have both
  a sentence that answers and one that does not; how many are left out is told.

  Args:
    folder: as of `qnli`.
    candidates: of a group; see `ranking.ranking`.
  """
  plain = glue.qnli(folder)
  task = ranking.ranking(
    plain.paths['train'],
    plain.paths['dev'],
    relevant='entailment' if folder else '0',
    candidates=candidates,
  )
  return task._replace(how=plain.how)


TASKS = {
  **FORMS,
  **glue.TASKS,
  'qnli_ranking': qnli_ranking,
  'snli': snli,
  'scitail': scitail,
  'race': race,
  'story_cloze': story_cloze,
  'squad': squad,
  'conll2003': conll2003,
}
