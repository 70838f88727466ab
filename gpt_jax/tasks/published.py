# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks that choose one of several continuations, with GPT-3's prompts.

The functions that return `Prompted` make the prompts of GPT-3's appendix G.
`race_rows` and `story_cloze_rows` are RACE and the Story Cloze Test for
fine-tuning, made of the same records.
"""

import functools
import re
import string
from collections.abc import Iterator
from typing import Literal

from gpt_jax.core.files import lines
from gpt_jax.core.files.records import Record
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import task as task_lib
from gpt_jax.tasks.files import OWN, Files, PublishedSplit, label, text, texts
from gpt_jax.tasks.prompts import Prompt, Prompted, of_records
from gpt_jax.tasks.task import Task, instructions, table

_LAST_WORD = re.compile(r'(.*\S)(\s+\S+)\s*', re.DOTALL)
_BRACKETS = re.compile(r'\[.*?\]')
_LABELS_OF = re.compile(r'\.jsonl(\.\w+)?$')


def lambada(
  path: str = 'test', shown: str = 'rest', form: Literal['last_word', 'blank'] = 'last_word'
) -> Prompted:
  """LAMBADA (Paperno et al., 2016): the last word of a passage.

  JSON lines with `text`, the version that GPT-2 and GPT-3 report on; or the
  authors' own files, one passage per line.

  Args:
    path: test, dev, or a file.
    shown: see `prompts.of_records`.
    form: last_word; or blank, GPT-3's form with shots (section 3.1.2 and
      figure G.21): 'Alice went to visit her friend ____. -> Bob'.
  """
  files = Files(
    folder='',
    home='fetch lambada_test.jsonl, 5,153 passages, from '
    'https://openaipublic.blob.core.windows.net/gpt-2/data/',
    splits={
      'test': PublishedSplit(
        ('lambada/lambada_test.jsonl', 'lambada/lambada_test_plain_text.txt'), 'lambada:test'
      ),
      'dev': PublishedSplit(('lambada/lambada_development_plain_text.txt',), 'lambada:train'),
    },
    readers={'.txt': _passages},
  )

  def read(record: Record) -> Iterator[Prompt]:
    passage = text(record, 'text', 'passage')
    parts = _LAST_WORD.fullmatch(passage)
    if not parts:
      raise UsageError(
        f'{record.where}: has no last word: {passage[:40]!r}; end it with '
        'the word to predict, or remove it'
      )
    if form == 'last_word':
      yield Prompt(record.where, parts[1], (parts[2],), 0)
      return
    yield Prompt(
      record.where,
      f'{parts[1]} ____. ->',
      (f' {parts[2].strip()}',),
      0,
      lead='Fill in blank:\n\n',
      plain=passage,
    )

  return of_records(files, path, shown, read, 'last_words')


def _passages(path: str) -> Iterator[Record]:
  for where, passage in lines.texts(path):
    if passage.strip():
      yield Record(where, {'text': passage})


def blimp(path: str = 'all') -> Prompted:
  """BLiMP (Warstadt et al., 2020): which of two sentences is grammatical.

  JSON lines with `sentence_good`, `sentence_bad` and `UID`, the paradigm.
  """
  files = Files(
    folder='',
    home='fetch the 67 files of data/ from https://github.com/alexwarstadt/blimp',
    splits={'all': PublishedSplit(('blimp/*.jsonl', 'blimp/data/*.jsonl'))},
  )

  def read(record: Record) -> Iterator[Prompt]:
    names = 'sentence_good', 'sentence_bad', 'UID'
    good, bad, group = (text(record, name) for name in names)
    yield Prompt(record.where, '', (good, bad), 0, group=group)

  return of_records(files, path, '', read, 'paradigms')


def piqa(
  path: str = 'valid', labels: str = '', shown: str = 'train', shown_labels: str = ''
) -> Prompted:
  """PIQA (Bisk et al., 2020): which of two solutions reaches a goal.

  The labels of valid.jsonl are in valid-labels.lst beside it, unless named.
  """
  names = {'valid': ('valid', 'dev'), 'train': ('train', 'train')}
  home = Files(
    folder='',
    home='fetch the JSON lines and the labels from https://yonatanbisk.com/piqa',
    splits={
      split: PublishedSplit(
        (f'piqa/{name}.jsonl', f'physicaliqa-train-dev/{other}.jsonl'),
        f'piqa:{"train" if split == "train" else "validation"}',
      )
      for split, (name, other) in names.items()
    },
  )
  if shown == 'rest':
    shown, shown_labels = path, labels

  def read(folder: str, path: str, labels: str) -> Iterator[Prompt]:
    files = home._replace(folder=folder)
    if files.tfds(path):
      for record in files.records(path):
        yield pair(record, label(record.where, record['label'], '01'))
      return
    if not labels:
      found = files.find(path)
      if len(found) > 1:
        raise UsageError(f'{path!r} matches {len(found)} files; name one')
      path, files = found[0], files._replace(folder='')
      labels = _LABELS_OF.sub('-labels.lst', path)
    numbers = files.text(labels).split()
    number = 0
    for number, record in enumerate(files.records(path), start=1):
      if number > len(numbers) or numbers[number - 1] not in ('0', '1'):
        raise UsageError(f'{labels}:{number}: has no label 0 or 1; write one a line')
      yield pair(record, int(numbers[number - 1]))
    if number < len(numbers):
      raise UsageError(
        f'{labels}: has {len(numbers)} labels, {path} {number} lines; give as many of both'
      )

  def pair(record: Record, right: int) -> Prompt:
    goal, *both = (text(record, name) for name in ('goal', 'sol1', 'sol2'))
    return Prompt(record.where, goal, tuple(f' {x}' for x in both), right)

  pool = functools.partial(read, path=shown, labels=shown_labels)
  return Prompted(functools.partial(read, path=path, labels=labels), pool if shown else None)


def hellaswag(path: str = 'val', shown: str = 'train') -> Prompted:
  """HellaSwag (Zellers et al., 2019): how a scene continues.

  Texts are cleaned as lm-eval does; the sentence to complete begins with a
  capital, as in GPT-3's figure G.9, except from TFDS, which has no column of
  it.
  """
  files = Files(
    folder='',
    home='fetch the JSON lines from https://github.com/rowanz/hellaswag, folder data',
    splits={
      split: PublishedSplit((f'hellaswag/hellaswag_{split}.jsonl',), f'hellaswag:{name}')
      for split, name in {'val': 'validation', 'train': 'train'}.items()
    },
  )

  def plain(marked: str) -> str:  # without WikiHow's markup
    marked = _BRACKETS.sub('', marked.strip().replace(' [title]', '. '))
    return marked.replace('  ', ' ')

  def read(record: Record) -> Iterator[Prompt]:
    where = record.where
    activity = text(record, 'activity_label')
    if 'ctx_b' in record.fields:
      begun = text(record, 'ctx_b').capitalize()
      scene = f'{text(record, "ctx_a")} {begun}'
    else:
      scene = text(record, 'ctx', 'context')
    endings = texts(where, 'endings', record['endings'])
    yield Prompt(
      where,
      plain(f'{activity}: {scene}'),
      tuple(f' {plain(x)}' for x in endings),
      label(where, record['label'], range(len(endings))),
    )

  return of_records(files, path, shown, read)


def boolq(path: str = 'dev', shown: str = 'train') -> Prompted:
  """BoolQ (Clark et al., 2019): yes or no, by a passage.

  JSON lines with `question`, `passage` and `answer`, or `label` as in
  SuperGLUE. Passages begin with the title, as SuperGLUE's do.
  """
  files = Files(
    folder='',
    home='fetch train.jsonl and dev.jsonl from '
    'https://github.com/google-research-datasets/boolean-questions',
    splits={
      split: PublishedSplit(
        (f'boolq/{split}.jsonl', f'BoolQ/{other}.jsonl'),
        f'bool_q:{"train" if split == "train" else "validation"}',
      )
      for split, other in {'dev': 'val', 'train': 'train'}.items()
    },
  )

  def read(record: Record) -> Iterator[Prompt]:
    passage = text(record, 'passage')
    if 'title' in record.fields:
      passage = f'{text(record, "title")} -- {passage}'
    question = text(record, 'question').removesuffix('?')
    answer = record['answer' if 'answer' in record.fields else 'label']
    yield Prompt(
      record.where,
      f'{passage}\nquestion: {question}?\nanswer:',
      (' no', ' yes'),
      label(record.where, answer, (False, True)),
    )

  return of_records(files, path, shown, read)


# The Story Cloze Test (Mostafazadeh et al., 2016): the right ending of a story.

_SEASONS = {'2016': 'spring2016', '2018': 'winter2018'}


def _cloze_files(split: str, year: str) -> tuple[str, str]:
  """The csv file's name as TFDS expects it, and a pattern of the published."""
  name = f'cloze_test_{split}__{_SEASONS[year]}'
  return f'{name}.csv', f'{name}*.csv'


def _story(record: Record) -> Iterator[Record]:
  """Converts a record to TFDS's columns: context, two endings, label 1 or 2."""
  if 'context' in record.fields:
    yield record
    return
  story = [text(record, f'InputSentence{i}') for i in range(1, 5)]
  ends = [text(record, f'RandomFifthSentenceQuiz{i}') for i in (1, 2)]
  right = record['AnswerRightEnding']
  fields = {'context': ' '.join(story), 'endings': ends, 'label': right}
  yield Record(record.where, fields)


def story_cloze_rows(folder: str = '') -> Task:
  """The Story Cloze Test for fine-tuning; accuracy.

  Trains on the published validation set of 2016, and evaluates on the test set,
  like the paper's systems. The test labels of 2018 are not published.
  """
  name, page = 'story_cloze/2016', 'https://cs.rochester.edu/nlp/rocstories'
  val, test = (_cloze_files(split, '2016')[1] for split in ('val', 'test'))
  return Task(
    'choice',
    paths={
      'train': table(folder, val, f'{name}:validation'),
      'dev': table(folder, test, f'{name}:test'),
    },
    texts=('context',),
    labels=('1', '2'),
    answers=('endings',),
    expand=_story,
    how=instructions(page, 'csv files', name),
  )


def story_cloze(
  path: str = 'test', shown: str = 'val', year: Literal['2016', '2018'] = '2016'
) -> Prompted:
  """The Story Cloze Test.

  Args:
    path: test, val, or a file; only val has labels for 2018.
    shown: see `prompts.of_records`; GPT-3 shows examples of the validation set.
    year: edition of the data.
  """
  files = Files(
    folder='',
    home='ask for the csv files at https://cs.rochester.edu/nlp/rocstories',
    splits={
      split: PublishedSplit(
        tuple(f'story_cloze/{file}' for file in _cloze_files(split, year)),
        f'story_cloze/{year}:{name}',
      )
      for split, name in {'val': 'validation', 'test': 'test'}.items()
    },
  )
  if year == '2018' and path == 'test':
    raise UsageError(
      'story_cloze: the labels of the test set of 2018 are not published; '
      "measure story_cloze('val', shown='rest', year='2018')"
    )

  def read(record: Record) -> Iterator[Prompt]:
    (story,), where = _story(record), record.where
    endings = texts(where, 'endings', story['endings'])
    yield Prompt(
      where,
      text(story, 'context'),
      tuple(f' {ending}' for ending in endings),
      label(where, story['label'], (1, 2)),
    )

  return of_records(files, path, shown, read)


# RACE (Lai et al., 2017): questions about an article.


def questions(record: Record) -> Iterator[Record]:
  """One record per question of an article; answers are A, B, ..."""
  columns = 'questions', 'options', 'answers'
  for column in columns:
    if not isinstance(record[column], list) or not record[column]:
      raise UsageError(
        f'{record.where}: {column}={record[column]!r} is not a list; fix or remove the line'
      )
  if len({len(record[column]) for column in columns}) > 1:
    counts = ', '.join(f'{len(record[c])} {c}' for c in columns)
    raise UsageError(
      f'{record.where}: questions, options and answers differ in number: '
      f'{counts}; mend or remove it'
    )
  for parts in zip(*(record[column] for column in columns), strict=True):
    fields = dict(zip(('question', 'options', 'answer'), parts, strict=True))
    yield Record(record.where, {'article': record['article'], **fields})


def race_rows(folder: str = '', level: Literal['middle', 'high'] = 'middle') -> Task:
  """RACE for fine-tuning; accuracy.

  Args:
    folder: contains train_LEVEL.jsonl and dev_LEVEL.jsonl, with one passage per
      line: `article`, and lists `questions`, `options`, `answers`.
    level: school level.
  """
  paths = task_lib.splits(folder, f'{{}}_{level}.jsonl', f'race/{level}')
  if not folder:
    paths['dev'] = f'tfds:race/{level}:dev'  # elsewhere called `validation`
  page = 'https://www.cs.cmu.edu/~glai1/data/race'
  return Task(
    'choice',
    paths,
    texts=('article', 'question'),
    label='answer',
    labels=('A', 'B', 'C', 'D'),
    answers=('options',),
    expand=questions,
    how=instructions(page, 'RACE', 'race'),
  )


def race(
  path: str = 'test', shown: str = 'train', level: Literal['middle', 'high'] = 'middle'
) -> Prompted:
  """RACE.

  Reads its folders, which have a file per article with `article`, `questions`,
  `options` and `answers` (A to D); or the same as JSON lines.

  Args:
    path: test, dev, train, or a file.
    shown: see `prompts.of_records`; 'article' shows the other questions of the
      same article before each one, after the article, as GPT-3 does (figures
      G.1 and G.3).
    level: school level.
  """
  alone = shown == 'article'

  def read(record: Record) -> Iterator[Prompt]:
    where = record.where
    article = f'Article: {text(record, "article")}\n\n'
    for question in questions(record):
      options = texts(where, 'options', question['options'])
      asked = f'Q: {text(question, "question")}\n\nA:'
      letters = string.ascii_uppercase[: len(options)]
      yield Prompt(
        where,
        asked if alone else article + asked,
        tuple(f' {option}' for option in options),
        label(where, question['answer'], letters),
        general='A:',
        lead=article if alone else '',
        about=where,
      )

  shown = 'rest' if alone else shown
  files = race_files(level)
  return of_records(files, path, shown, read, same_text=alone)


def race_files(level: str) -> Files:
  """The files of RACE's questions at a school level."""
  return Files(
    folder='',
    home='fetch RACE from https://www.cs.cmu.edu/~glai1/data/race/ and unpack it there',
    splits={
      split: PublishedSplit(
        (
          f'race/{split}_{level}.jsonl.gz',
          f'race/{split}_{level}.jsonl',
          f'RACE/{split}/{level}/*.txt',
        ),
        f'race/{level}:{split}',
      )
      for split in ('test', 'dev', 'train')
    },
    readers={'.txt': _article},
  )


def _article(path: str) -> Iterator[Record]:
  """The one record of a file."""
  found = lines.record(path, lines.contents(path))
  if not isinstance(found, dict):
    raise UsageError(
      f'{path}: is not a JSON object with article, questions, options and answers; fetch it again'
    )
  yield Record(path, found)


def multiple_choice(path: str, shown: str = '') -> Prompted:
  """A user's task: JSON lines with `context`, `choices` (texts) and `label`.

  A space separates context and choice.
  """

  def read(record: Record) -> Iterator[Prompt]:
    where, context = record.where, text(record, 'context')
    options = texts(where, 'choices', record['choices'])
    if len(options) < 2:
      raise UsageError(f'{where}: has one choice; at least two are needed')
    yield Prompt(
      where,
      context,
      tuple(f' {option}' for option in options),
      label(where, record['label'], range(len(options))),
    )

  return of_records(OWN, path, shown, read)
