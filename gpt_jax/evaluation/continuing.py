# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of how a text goes on, with GPT-3's prompts (appendix G)."""

import re
import string
from collections.abc import Iterator
from typing import Literal

from gpt_jax.evaluation import choices, measures
from gpt_jax.evaluation.choices import Choices, Example, Make, Pool
from gpt_jax.evaluation.files import Files, Split
from gpt_jax.evaluation.task import Task
from gpt_jax.files import lines
from gpt_jax.files.files import read_json
from gpt_jax.files.records import Record
from gpt_jax.spec import UsageError

_LAST_WORD = re.compile(r'(.*\S)(\s+\S+)\s*', re.DOTALL)
_BRACKETS = re.compile(r'\[.*?\]')
_LABELS_OF = re.compile(r'\.jsonl(\.\w+)?$')


def lambada(
  path: str = 'test',
  shown: str = 'rest',
  form: Literal['last_word', 'blank'] = 'last_word',
) -> Make:
  """LAMBADA (Paperno et al., 2016): the last word of a passage.

  JSON lines with `text`: the version that GPT-2 and GPT-3 report on; or the
  authors' own, a passage a line.

  Args:
    path: test, dev, or a file.
    shown: see `Pool`.
    form: last_word; or blank, GPT-3's form with shots (section 3.1.2 and
      figure G.21): 'Alice went to visit her friend ____. -> Bob'.
  """
  files = Files(
    folder='',
    home='fetch lambada_test.jsonl, 5,153 passages, from '
    'https://openaipublic.blob.core.windows.net/gpt-2/data/',
    splits={
      'test': Split(
        ('lambada/lambada_test.jsonl', 'lambada/lambada_test_plain_text.txt'),
        'lambada:test',
      ),
      'dev': Split(
        ('lambada/lambada_development_plain_text.txt',), 'lambada:train'
      ),
    },
    readers={'.txt': _passages},
  )

  def read(record: Record) -> Iterator[Example]:
    text = measures.text(record, 'text', 'passage')
    parts = _LAST_WORD.fullmatch(text)
    if not parts:
      raise UsageError(f'{record.where}: has no last word: {text[:40]!r}')
    if form == 'last_word':
      yield Example(record.where, parts[1], (parts[2],), 0)
      return
    yield Example(
      record.where,
      f'{parts[1]} ____. ->',
      (f' {parts[2].strip()}',),
      0,
      lead='Fill in blank:\n\n',
      plain=text,
    )

  return choices.choices(files, Pool(path, shown), read, measures.last_words)


def blimp(path: str = 'all') -> Make:
  """BLiMP (Warstadt et al., 2020): which of two sentences is grammatical.

  JSON lines with `sentence_good`, `sentence_bad` and `UID`, the paradigm.
  """
  files = Files(
    folder='',
    home='fetch the 67 files of data/ from '
    'https://github.com/alexwarstadt/blimp',
    splits={'all': Split(('blimp/*.jsonl', 'blimp/data/*.jsonl'))},
  )

  def read(record: Record) -> Iterator[Example]:
    good, bad, group = (
      measures.text(record, name)
      for name in ('sentence_good', 'sentence_bad', 'UID')
    )
    yield Example(record.where, '', (good, bad), 0, group=group)

  return choices.choices(files, Pool(path, ''), read, measures.paradigms)


def piqa(
  path: str = 'valid',
  labels: str = '',
  shown: str = 'train',
  shown_labels: str = '',
) -> Make:
  """PIQA (Bisk et al., 2020): which of two solutions reaches a goal.

  The labels of valid.jsonl are in valid-labels.lst beside it, unless named.
  """
  names = {'valid': ('valid', 'dev'), 'train': ('train', 'train')}
  home = Files(
    folder='',
    home='fetch the JSON lines and the labels from https://yonatanbisk.com/piqa',
    splits={
      split: Split(
        (f'piqa/{name}.jsonl', f'physicaliqa-train-dev/{other}.jsonl'),
        f'piqa:{"train" if split == "train" else "validation"}',
      )
      for split, (name, other) in names.items()
    },
  )
  if shown == 'rest':
    shown, shown_labels = path, labels

  def read(files: Files, path: str, labels: str) -> Iterator[Example]:
    if files.tfds(path):
      for record in files.records(path):
        yield pair(record, measures.label(record.where, record['label'], '01'))
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
        raise UsageError(f'{labels}:{number}: has no label 0 or 1')
      yield pair(record, int(numbers[number - 1]))
    if number < len(numbers):
      raise UsageError(
        f'{labels}: has {len(numbers)} labels, {path} {number} lines'
      )

  def pair(record: Record, label: int) -> Example:
    goal, *both = (
      measures.text(record, name) for name in ('goal', 'sol1', 'sol2')
    )
    return Example(record.where, goal, tuple(f' {x}' for x in both), label)

  def make(folder: str) -> Task:
    files = home._replace(folder=folder)
    return Choices(
      lambda: read(files, path, labels),
      measures.accuracies,
      (lambda: read(files, shown, shown_labels)) if shown else None,
    )

  return make


def hellaswag(path: str = 'val', shown: str = 'train') -> Make:
  """HellaSwag (Zellers et al., 2019): how a scene continues.

  Texts are cleaned as lm-eval does; the sentence to complete begins with a
  capital, as in GPT-3's figure G.9.
  """
  files = Files(
    folder='',
    home='fetch the JSON lines from https://github.com/rowanz/hellaswag, '
    'folder data',
    splits={
      split: Split((f'hellaswag/hellaswag_{split}.jsonl',), f'hellaswag:{name}')
      for split, name in {'val': 'validation', 'train': 'train'}.items()
    },
  )

  def read(record: Record) -> Iterator[Example]:
    where = record.where
    activity = measures.text(record, 'activity_label')
    if 'ctx_b' in record.fields:
      begun = measures.text(record, 'ctx_b').capitalize()
      scene = f'{measures.text(record, "ctx_a")} {begun}'
    else:
      scene = measures.text(record, 'ctx', 'context')
    endings = measures.texts(where, 'endings', record['endings'])
    yield Example(
      where,
      _plain(f'{activity}: {scene}'),
      tuple(f' {_plain(x)}' for x in endings),
      measures.label(where, record['label'], range(len(endings))),
    )

  return choices.choices(files, Pool(path, shown), read, measures.accuracies)


def story_cloze(
  path: str = 'test', shown: str = 'val', year: Literal['2016', '2018'] = '2016'
) -> Make:
  """Story Cloze (Mostafazadeh et al., 2016): the right end of a story.

  Its csv files, by the names that come with them or those that TFDS wants.

  Args:
    path: test, val, or a file; of 2018 only val has labels.
    shown: see `Pool`; GPT-3 shows examples of the validation set.
    year: 2016 or 2018.
  """
  seasons = {'2016': 'spring2016', '2018': 'winter2018'}
  if year == '2018' and path == 'test':
    raise UsageError(
      'story_cloze: the labels of the test set of 2018 are not published; '
      "measure story_cloze('val', shown='rest', year='2018')"
    )
  files = Files(
    folder='',
    home='ask for the csv files at https://cs.rochester.edu/nlp/rocstories',
    splits={
      split: Split(
        (f'story_cloze/cloze_test_{split}__{seasons[year]}*.csv',),
        f'story_cloze/{year}:{name}',
      )
      for split, name in {'val': 'validation', 'test': 'test'}.items()
    },
  )

  def read(record: Record) -> Iterator[Example]:
    where = record.where
    if 'context' in record.fields:  # TFDS
      story = measures.text(record, 'context')
      endings = measures.texts(where, 'endings', record['endings'])
      right = record['label']
    else:
      story = ' '.join(
        measures.text(record, f'InputSentence{i}') for i in range(1, 5)
      )
      endings = [
        measures.text(record, f'RandomFifthSentenceQuiz{i}') for i in (1, 2)
      ]
      right = record['AnswerRightEnding']
    yield Example(
      where,
      story,
      tuple(f' {ending}' for ending in endings),
      measures.label(where, right, (1, 2)),
    )

  return choices.choices(files, Pool(path, shown), read, measures.accuracies)


def _passages(path: str) -> Iterator[Record]:
  """The lines of a text file."""
  for where, text in lines.texts(path):
    if text.strip():
      yield Record(where, {'text': text})


def _plain(text: str) -> str:
  """Removes the WikiHow markup from a HellaSwag text, as lm-eval does."""
  text = _BRACKETS.sub('', text.strip().replace(' [title]', '. '))
  return text.replace('  ', ' ')


# Tasks of questions about a text, with GPT-3's prompts (appendix G).


def race(
  path: str = 'test',
  shown: str = 'train',
  level: Literal['middle', 'high'] = 'middle',
) -> Make:
  """RACE (Lai et al., 2017): questions about an article.

  Its folders, a file an article with `article`, `questions`, `options` and
  `answers` (A to D); or the same as JSON lines.

  Args:
    path: test, dev, train, or a file.
    shown: see `Pool`; 'article' shows the other questions of the same article
      before each one, after the article, as GPT-3 does (figures G.1 and G.3);
      see `shots.of_text`.
    level: middle or high.
  """
  files = Files(
    folder='',
    home='fetch RACE from https://www.cs.cmu.edu/~glai1/data/race/ and unpack '
    'it there',
    splits={
      split: Split(
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

  alone = shown == 'article'

  def read(record: Record) -> Iterator[Example]:
    where = record.where
    article = f'Article: {measures.text(record, "article")}\n\n'
    for question, options, answer in _questions(record):
      texts = measures.texts(where, 'options', options)
      asked = f'Q: {question}\n\nA:'
      yield Example(
        where,
        asked if alone else article + asked,
        tuple(f' {option}' for option in texts),
        measures.label(where, answer, string.ascii_uppercase[: len(texts)]),
        general='A:',
        lead=article if alone else '',
        about=where,
      )

  pool = Pool(path, 'rest' if alone else shown)
  return choices.choices(
    files, pool, read, measures.accuracies, same_text=alone
  )


def boolq(path: str = 'dev', shown: str = 'train') -> Make:
  """BoolQ (Clark et al., 2019): yes or no, by a passage.

  JSON lines with `question`, `passage` and `answer`, or `label` as SuperGLUE
  has it; its passages begin with the title, and so do they here.
  """
  files = Files(
    folder='',
    home='fetch train.jsonl and dev.jsonl from '
    'https://github.com/google-research-datasets/boolean-questions',
    splits={
      split: Split(
        (f'boolq/{split}.jsonl', f'BoolQ/{other}.jsonl'),
        f'bool_q:{"train" if split == "train" else "validation"}',
      )
      for split, other in {'dev': 'val', 'train': 'train'}.items()
    },
  )

  def read(record: Record) -> Iterator[Example]:
    passage = measures.text(record, 'passage')
    if 'title' in record.fields:
      passage = f'{measures.text(record, "title")} -- {passage}'
    question = measures.text(record, 'question').removesuffix('?')
    answer = record['answer' if 'answer' in record.fields else 'label']
    yield Example(
      record.where,
      f'{passage}\nquestion: {question}?\nanswer:',
      (' no', ' yes'),
      measures.label(record.where, answer, (False, True)),
    )

  return choices.choices(files, Pool(path, shown), read, measures.accuracies)


def _questions(record: Record) -> Iterator[tuple[str, object, str]]:
  """Question, options and answer of each question of an article."""
  where, options = record.where, record['options']
  parts = [
    measures.texts(where, 'questions', record['questions']),
    options if isinstance(options, list) else [options],
    measures.texts(where, 'answers', record['answers']),
  ]
  if len({len(part) for part in parts}) != 1:
    raise UsageError(
      f'{where}: questions, options and answers differ in number'
    )
  yield from zip(*parts, strict=True)


def _article(path: str) -> Iterator[Record]:
  """The one record of a file."""
  remedy = 'fetch it again'
  yield Record(path, read_json(path, remedy=remedy))
