# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of a user's own tables and texts."""

from collections.abc import Iterator

from gpt_jax.data.records import Record
from gpt_jax.evaluation import fields, making, measures
from gpt_jax.evaluation.choices import Example
from gpt_jax.evaluation.closed_book import ClosedBook, Question
from gpt_jax.evaluation.files import Files, Split
from gpt_jax.evaluation.language_model import Text
from gpt_jax.evaluation.making import Make, Pool
from gpt_jax.evaluation.task import Task
from gpt_jax.spec import UsageError

_OWN = Files(folder='', home='check the path')


def multiple_choice(path: str, shown: str = '') -> Make:
  """Custom task: JSON lines with `context`, `choices` (texts) and `label`.

  A space separates context and choice.
  """

  def read(record: Record) -> Iterator[Example]:
    where, context = record.where, fields.text(record, 'context')
    texts = fields.texts(where, 'choices', record['choices'])
    yield Example(
      where,
      context,
      tuple(f' {text}' for text in texts),
      fields.label(where, record['label'], range(len(texts))),
    )

  return making.choices(_OWN, Pool(path, shown), read, measures.accuracies)


def qa(path: str, shown: str = '', max_tokens: int = 32) -> Make:
  """Closed-book questions: JSON lines with `question` and `answers`.

  For TriviaQA, Natural Questions and WebQuestions, converted to this form.
  """

  def question(record: Record) -> Question:
    answers = record['answers']
    answers = [answers] if isinstance(answers, str) else answers
    return Question(
      record.where,
      fields.text(record, 'question'),
      fields.texts(record.where, 'answers', answers),
    )

  if max_tokens < 1:
    raise UsageError(
      f'max_tokens={max_tokens}: leaves no answer; give 1 or more'
    )
  if shown == 'rest':
    shown = path

  def make(folder: str) -> Task:
    files = _OWN._replace(folder=folder)
    return ClosedBook(
      lambda: map(question, files.records(path)),
      (lambda: map(question, files.records(shown))) if shown else None,
      max_tokens,
    )

  return make


def wikitext2(path: str = 'test', stride: int = 0) -> Make:
  """WikiText-2's test split as raw, untokenized text.

  Its numbers of words and line ends are those of the word-level file.
  """
  names = 'wikitext2/test.raw.txt', 'wikitext-2-raw/wiki.test.raw'
  files = Files(
    folder='',
    home='fetch WikiText-2 raw (wikitext-2-raw-v1) and unpack it there',
    splits={'test': Split(names)},
  )
  return _text(files, path, stride)


def text(path: str, stride: int = 0) -> Make:
  """A custom text file, as one stream."""
  return _text(_OWN, path, stride)


def _text(files: Files, path: str, stride: int) -> Make:
  if stride < 0:
    raise UsageError(
      f'stride={stride}: is negative; give a number of tokens, or 0 for half '
      'of the context'
    )
  return lambda folder: Text(files._replace(folder=folder), path, stride)
