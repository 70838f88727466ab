# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Published tasks. Each takes the folder of its files as published, or without
one looks for the set of TensorFlow Datasets: `sst2('data/SST-2')`, `sst2()`.

The forms are those that GPT-1 gives them (table 1): QNLI and the others of
natural language inference are entailment; MRPC, QQP and STS-B similarity; RACE
and the Story Cloze Test multiple choice.
"""

import re
from collections.abc import Iterable
from typing import Literal

from gpt_jax.files.records import Record
from gpt_jax.finetuning import ranking
from gpt_jax.finetuning import spans as spans_lib
from gpt_jax.finetuning import tags as tags_lib
from gpt_jax.finetuning.ranking import rank_choices
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError
from gpt_jax.tasks import glue, tasks
from gpt_jax.tasks.tasks import Task

# Tasks of one's own tables: the four forms of GPT-1 (figure 1), pairs, two of
# BERT's (figure 4), spans and tags, and ranking (see there).


def classification(
  train: str,
  dev: str,
  test: str = '',
  text: str = 'text',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One text: start, text, extract.

  Args:
    train: a table; see `records`.
    dev: another, which judges.
    test: another, which gets predictions; '': none.
    text: a column or a template.
    label: a column.
    labels: comma list of the classes; '': those of the train split.
    regression: the label is a score.
    metrics: comma list; '': accuracy, or pearson and spearman of scores.
    columns: comma list of the columns, of a table that does not name them.
  """
  return Task(
    form='classification',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(text,),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def entailment(
  train: str,
  dev: str,
  test: str = '',
  premise: str = 'premise',
  hypothesis: str = 'hypothesis',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts: start, premise, delimiter, hypothesis, extract."""
  return Task(
    form='entailment',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(premise, hypothesis),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def similarity(
  train: str,
  dev: str,
  test: str = '',
  first: str = 'sentence1',
  second: str = 'sentence2',
  label: str = 'label',
  labels: str = '',
  regression: bool = False,
  metrics: str = '',
  columns: str = '',
) -> Task:
  """Two texts without an order: both orders, their activations added."""
  return Task(
    form='similarity',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(first, second),
    label=label,
    labels=_names(labels),
    regression=regression,
    metrics=_metrics(metrics, regression=regression),
    columns=_names(columns),
  )


def choice(
  train: str,
  dev: str,
  test: str = '',
  context: str = 'context',
  answers: str = 'answers',
  label: str = 'label',
  labels: str = '',
  metrics: str = '',
  columns: str = '',
) -> Task:
  """One of several answers: start, context, delimiter, answer, extract each.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    context: a template, or a comma list of columns that follow each other;
      where it is too long each is cut by itself.
    answers: a column with a list, or a comma list of columns or of templates
      without commas.
    label: a column; which answer is right: 0 is the first, unless `labels` says
      otherwise.
    labels: comma list of what the column calls the answers: 'A, B, C, D'.
    metrics: comma list.
    columns: as above.
  """
  return Task(
    form='choice',
    paths=_paths(train=train, dev=dev, test=test),
    # A template may hold commas.
    texts=(context,) if '{' in context else _names(context),
    label=label,
    labels=_names(labels),
    answers=_names(answers),
    metrics=_metrics(metrics),
    columns=_names(columns),
  )


def target(
  train: str,
  dev: str,
  test: str = '',
  prompt: str = '{prompt}',
  target: str = '{target}',
  metrics: str = 'exact_match',
  columns: str = '',
) -> Task:
  """Prompt and target, with the loss on the target alone.

  Args:
    train: a table; dev and test too.
    dev: judges.
    test: gets predictions.
    prompt: a template: '{en} =' (GPT-2, section 3.7); '{context} RESPONSE', or
      '{context} RESPONSE {response} {attribute}' (LaMDA, section 6).
    target: a template, with the space before it: ' {de}'.
    metrics: comma list.
    columns: as above.
  """
  return Task(
    form='target',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(prompt, target),
    label='',
    metrics=_metrics(metrics),
    columns=_names(columns),
  )


def spans(
  train: str,
  dev: str,
  test: str = '',
  question: str = 'question',
  context: str = 'context',
  answers: str = 'answers',
  empty: bool = False,
  stride: Count = 128,
  max_question: Count = 64,
  max_answer: Count = 30,
  null_threshold: float = 0.0,
  metrics: str = 'f1, exact_match',
  columns: str = '',
) -> Task:
  """An answer that is a part of a text.

  Args:
    train: a table, or SQuAD's JSON; dev and test too.
    dev: judges.
    test: gets predictions.
    question: a column or a template.
    context: another, of the text.
    answers: a column with a list of objects with `text` and `answer_start`,
      the character where it begins; the first is learned, each is accepted.
    empty: whether there may be no answer, as in SQuAD 2.0: an empty list.
    stride: tokens from the beginning of a window to the next, where a text is
      longer than a row.
    max_question: tokens of a question, which is cut there.
    max_answer: tokens of an answer.
    null_threshold: how much more than the best span no answer must score.
    metrics: comma list; the first judges.
    columns: as above.
  """
  return Task(
    form='spans',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(question, context),
    label=answers,
    metrics=_metrics(metrics),
    columns=_names(columns),
    example=spans_lib.example,
    options=spans_lib.Options(
      stride, max_question, max_answer, empty, null_threshold
    ),
  )


def tags(
  train: str,
  dev: str,
  test: str = '',
  words: str = 'words',
  tags: str = 'tags',
  labels: str = '',
  metrics: str = 'f1, accuracy',
) -> Task:
  """A tag for each word.

  Args:
    train: a .jsonl, or a .conll with a word a line, its tag in the last column
      and blank lines between sentences; dev and test too.
    dev: judges.
    test: gets predictions.
    words: a column with a list.
    tags: another; of a .conll also '1', '2', ...: the columns after the words.
    labels: comma list of the tags; '': those of the train split.
    metrics: comma list; f1 is that of entities, of tags B-... and I-....
  """
  return Task(
    form='tags',
    paths=_paths(train=train, dev=dev, test=test),
    texts=(words,),
    label=tags,
    labels=_names(labels),
    metrics=_metrics(metrics),
    example=tags_lib.example,
  )


def _paths(**tables: str) -> dict[str, str]:
  """The tables that are there, by split."""
  return {split: path for split, path in tables.items() if path}


def _metrics(text: str, *, regression: bool = False) -> tuple[str, ...]:
  """Those of a comma list, or what suits the labels."""
  default = ('pearson', 'spearman') if regression else ('accuracy',)
  return _names(text) or default


def _names(text: str) -> tuple[str, ...]:
  """The parts of a comma list."""
  return tuple(x.strip() for x in re.split(r',\s*', text) if x.strip())


FORMS = {
  'classification': classification,
  'entailment': entailment,
  'similarity': similarity,
  'choice': choice,
  'ranking': rank_choices,
  'target': target,
  'spans': spans,
  'tags': tags,
}


def snli(folder: str = '') -> Task:
  """Stanford inference: accuracy; those without a gold label are left out."""
  texts = ('sentence1', 'sentence2') if folder else ('premise', 'hypothesis')
  return Task(
    form='entailment',
    paths=tasks.splits(folder, 'snli_1.0_{}.jsonl', 'snli'),
    texts=texts,
    label='gold_label' if folder else 'label',
    labels=('entailment', 'neutral', 'contradiction'),
    drop=('-', '-1'),
    how=tasks.instructions(
      'https://nlp.stanford.edu/projects/snli', 'snli_1.0', 'snli'
    ),
  )


def scitail(folder: str = '') -> Task:
  """Science questions: accuracy; the files of its folder tsv_format."""
  return Task(
    form='entailment',
    paths=tasks.splits(folder, 'scitail_1.0_{}.tsv', 'sci_tail'),
    texts=('premise', 'hypothesis'),
    labels=('entails', 'neutral'),
    columns=('premise', 'hypothesis', 'label') if folder else (),
    how=tasks.instructions(
      'https://allenai.org/data/scitail', 'SciTailV1.1', 'sci_tail'
    ),
  )


def race(folder: str = '', level: Literal['middle', 'high'] = 'middle') -> Task:
  """Questions on passages: accuracy.

  Args:
    folder: with train_LEVEL.jsonl, dev_LEVEL.jsonl: a line a passage, with
      `article`, and lists `questions`, `options`, `answers`.
    level: middle or high.
  """

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

  paths = tasks.splits(folder, f'{{}}_{level}.jsonl', f'race/{level}')
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
    how=tasks.instructions(
      'https://www.cs.cmu.edu/~glai1/data/race', 'RACE', 'race'
    ),
  )


def story_cloze(
  folder: str = '', year: Literal['2016', '2018'] = '2016'
) -> Task:
  """The right end of a story: accuracy.

  It trains on the published validation set of that year, 2016 or 2018, and is
  judged on the test set, as the paper's systems are. The folder holds both
  under their own names, which begin with cloze_test_val__spring2016, or those
  that TFDS gives them.
  """
  seasons = {'2016': 'spring2016', '2018': 'winter2018'}
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
      'train': tasks.table(folder, file.format('val'), f'{name}:validation'),
      'dev': tasks.table(folder, file.format('test'), f'{name}:test'),
    },
    texts=texts,
    label='AnswerRightEnding' if folder else 'label',
    labels=('1', '2'),
    answers=answers,
    how=tasks.instructions(
      'https://cs.rochester.edu/nlp/rocstories', 'csv files', name
    ),
  )


def squad(
  folder: str = '',
  version: Literal['1.1', '2.0'] = '1.1',
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
  name = f'squad/v{version}'
  task = spans(
    tasks.table(folder, f'train-v{version}.json', f'{name}:train'),
    tasks.table(folder, f'dev-v{version}.json', f'{name}:validation'),
    empty=version == '2.0',
    stride=stride,
    max_question=max_question,
    max_answer=max_answer,
    null_threshold=null_threshold,
  )
  return task._replace(
    how=tasks.instructions(
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
    split: tasks.table(folder, f'eng.{name}', f'conll2003:{split}')
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
    how=tasks.instructions(
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
  task = ranking.rank_choices(
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
