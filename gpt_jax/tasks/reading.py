# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spans of a text that answer a question, and tags of words: SQuAD, CoNLL.

`spans` and `tags` are forms for a user's own tables; `squad` and `conll2003`
are published sets.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gpt_jax.core.files import lines
from gpt_jax.core.files.records import Record
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError
from gpt_jax.tasks import metrics as metrics_lib
from gpt_jax.tasks.task import (
  UNLABELLED,
  Example,
  Task,
  check_label,
  check_tag,
  filled,
  instructions,
  is_missing,
  names,
  table,
  tables,
)


class SpanOptions(NamedTuple):
  """Options of span prediction.

  Attributes:
    stride: tokens between the beginnings of consecutive windows.
    question: maximum tokens of a question.
    answer: maximum tokens of an answer.
    empty: whether questions can have no answer.
    null_threshold: margin by which no answer must outscore the best span.
  """

  stride: int
  question: int
  answer: int
  empty: bool
  null_threshold: float


class Answer(NamedTuple):
  """The position of an answer, and all accepted texts.

  Attributes:
    start: first character in the context; -1 if there is no answer.
    texts: accepted answers, the first being at `start`; ('',) if there is none.
  """

  start: int
  texts: tuple[str, ...]


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
  """A question whose answer is a part of a text.

  Args:
    train: a table, or SQuAD's JSON, like dev and test.
    dev: for evaluation.
    test: for predictions.
    question: a column or a template.
    context: a column or a template of the text.
    answers: a column with a list of objects with `text` and `answer_start`, its
      first character; the first answer is trained on, all are accepted.
    empty: whether questions can have no answer, as in SQuAD 2.0: an empty list.
    stride: tokens between the beginnings of windows, for texts longer than a
      row.
    max_question: tokens to which questions are truncated.
    max_answer: maximum tokens of an answer.
    null_threshold: margin by which no answer must outscore the best span.
    metrics: comma list; the first selects the best step.
    columns: comma list of the column names, for a table without a header.
  """
  return Task(
    form='spans',
    paths=tables(train, dev, test),
    texts=(question, context),
    label=answers,
    metrics=names(metrics),
    columns=names(columns),
    example=_asked,
    options=SpanOptions(stride, max_question, max_answer, empty, null_threshold),
  )


def _asked(task: Task, record: Record, needed: bool) -> Example:
  """Reads a question.

  Its answers are a list of objects with `text` and `answer_start`, as in SQuAD;
  or an object of two lists by these names, as in TFDS.
  """
  question, context = (filled(record, text) for text in task.texts)
  texts = question, context
  if not needed and record.fields.get(task.label) in (None, ''):
    return Example(record.where, texts, None)
  pairs = _answers(record, task.label)
  if any(not text for text, _ in pairs):
    if any(text for text, _ in pairs):
      raise UsageError(f'{record.where}: one of the answers is empty; remove it')
    pairs = []
  for text, start in pairs:
    if context[start : start + len(text)] != text or start < 0:
      raise UsageError(
        f'{record.where}: the answer {text!r:.60} is not at character {start} '
        'of the text; fix or remove it'
      )
  if not pairs and not task.options.empty:
    if not needed:
      return Example(record.where, texts, None)
    raise UsageError(f"{record.where}: has no answer; give empty=True, or squad(version='2.0')")
  if not pairs:
    return Example(record.where, texts, Answer(-1, ('',)))
  accepted = tuple(text for text, _ in pairs)
  return Example(record.where, texts, Answer(pairs[0][1], accepted))


def _answers(record: Record, column: str) -> list[tuple[str, int]]:
  found = record[column]
  try:
    if isinstance(found, dict):
      both = found['text'], found['answer_start']
    else:
      both = [x['text'] for x in found], [x['answer_start'] for x in found]
    if None in both[0]:
      raise TypeError
    return [(str(x), int(i)) for x, i in zip(*both, strict=True)]
  except (KeyError, OverflowError, TypeError, ValueError) as e:
    raise UsageError(
      f'{record.where}: column {column!r} is not a list of objects with text and answer_start'
    ) from e


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
    folder: contains train-v1.1.json and dev-v1.1.json, or those of v2.0.
    version: 1.1, or 2.0, in which questions can have no answer.
    stride: see `spans`.
    max_question: see `spans`.
    max_answer: see `spans`.
    null_threshold: see `spans`; for 2.0.
  """
  name = f'squad/v{version}'
  task = spans(
    table(folder, f'train-v{version}.json', f'{name}:train'),
    table(folder, f'dev-v{version}.json', f'{name}:validation'),
    empty=version == '2.0',
    stride=stride,
    max_question=max_question,
    max_answer=max_answer,
    null_threshold=null_threshold,
  )
  page = 'https://rajpurkar.github.io/SQuAD-explorer'
  return task._replace(how=instructions(page, 'the files', name))


def tags(
  train: str,
  dev: str,
  test: str = '',
  words: str = 'words',
  tags: str = 'tags',
  labels: str = '',
  metrics: str = 'f1, accuracy',
  unlabelled: str = '',
) -> Task:
  """A tag for each word.

  Args:
    train: a .jsonl, or a .conll with one word per line, its tag in the last
      column and blank lines between sentences, like dev and test.
    dev: for evaluation.
    test: for predictions.
    words: a column with a list of words.
    tags: a column with a list of tags; in a .conll also '1', '2', ...: the
      columns after the word.
    labels: comma list of the tags; '': those in the train split.
    metrics: comma list; f1 is that of entities, given by tags B-... and I-...,
      of BIOES also E-... and S-....
    unlabelled: a text with a sentence a line, its words separated by spaces, to
      learn from by cross-view training: `finetune.views`.
  """
  for tag in names(labels):
    check_tag(f'tags(labels={labels!r})', tag)
  return Task(
    form='tags',
    paths=tables(train, dev, test) | _unlabelled(unlabelled),
    texts=(words,),
    label=tags,
    labels=names(labels),
    metrics=names(metrics),
    example=_tagged,
  )


def _unlabelled(path: str) -> dict[str, str]:
  return {UNLABELLED: path} if path else {}


def sentences(path: str) -> list[Example]:
  """The sentences of a text, one a line; the label of each word is 0."""
  found = []
  for where, line in lines.texts(path):
    if words := line.split():
      found.append(Example(where, (' '.join(words),), (0,) * len(words)))
  if not found:
    raise UsageError(f'{path}: holds no sentences; give a text with one a line')
  return found


def _tagged(task: Task, record: Record, needed: bool) -> Example:
  """Reads a sentence: a list of words, and an equally long one of tags."""
  words = _words(record, task.texts[0])
  texts = (' '.join(words),)
  if not needed and is_missing(record, record.fields.get(task.label)):
    return Example(record.where, texts, None)
  tags = record[task.label]
  if not isinstance(tags, list) or len(tags) != len(words):
    count = len(tags) if isinstance(tags, list) else 'no'
    raise UsageError(f'{record.where}: has {len(words)} words and {count} tags; give as many')
  numbers = []
  for tag in tags:
    check_label(record, task.label, tag)
    if str(tag) in task.labels:
      numbers.append(task.labels.index(str(tag)))
    elif (  # TFDS counts the classes
      record.where.startswith('tfds(') and type(tag) is int and 0 <= tag < len(task.labels)
    ):
      numbers.append(tag)
    else:
      raise UsageError(f'{record.where}: the tag {tag!r} is none of ' + ', '.join(task.labels))
  return Example(record.where, texts, tuple(numbers))


def _words(record: Record, column: str) -> list[str]:
  found = record[column]
  if (
    not isinstance(found, list)
    or not found
    or not all(isinstance(word, str | int | float) for word in found)
  ):
    raise UsageError(
      f'{record.where}: {column!r} is not a list of words; write one, or name another column'
    )
  words = [str(word) for word in found]
  for word in words:
    if len(word.split()) != 1:
      raise UsageError(
        f'{record.where}: the word {word!r:.60} is empty or holds white space; fix or remove it'
      )
  return words


def iob2(tags: Sequence[str]) -> list[str]:
  """Converts IOB1 tags of CoNLL 2003's files, so that all entities begin B-.

  In the files, B- only separates adjacent entities of a type.
  """
  out = [*tags]
  for _, start, _ in metrics_lib.entities(tags):
    out[start] = 'B-' + out[start].partition('-')[2]
  return out


def conll2003(folder: str = '', unlabelled: str = '') -> Task:
  """Named entities of English news: F1 of entities.

  Args:
    folder: contains eng.train, eng.testa (dev) and eng.testb (test) as
      published; their tags are converted by `iob2`.
    unlabelled: see `tags`.
  """
  files = {'train': 'train', 'testa': 'dev', 'testb': 'test'}
  tags = [f'{x}-{kind}' for kind in ('PER', 'ORG', 'LOC', 'MISC') for x in 'BI']

  def expand(record: Record) -> Iterable[Record]:
    if 'tags' not in record.fields:  # TFDS is in IOB2 already
      return [record]
    fields = {**record.fields, 'tags': iob2(record['tags'])}
    return [Record(record.where, fields)]

  page = 'https://www.clips.uantwerpen.be/conll2003/ner'
  return Task(
    form='tags',
    paths={
      split: table(folder, f'eng.{name}', f'conll2003:{split}') for name, split in files.items()
    }
    | _unlabelled(unlabelled),
    texts=('words' if folder else 'tokens',),
    label='tags' if folder else 'ner',
    labels=('O', *tags),
    metrics=('f1', 'accuracy'),
    example=_tagged,
    expand=expand,
    how=instructions(page, 'eng.*', 'conll2003'),
  )
