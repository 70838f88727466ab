# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tasks by name, with GPT-3's prompts (appendix G) unless noted.

`shown` names the pool of few-shot examples: a file, or 'rest', the other
examples of the measured file. An example equal to the measured one is never
shown.
"""

import functools
import re
import string
from collections.abc import Callable, Iterator

from gpt_jax.data.records import Record
from gpt_jax.evaluation import choices, fields
from gpt_jax.evaluation.choices import Choices, Example
from gpt_jax.evaluation.closed_book import ClosedBook, Question
from gpt_jax.evaluation.files import Files
from gpt_jax.evaluation.language_model import Text
from gpt_jax.evaluation.task import Task
from gpt_jax.spec import UsageError

# Makes a task from the folder of the task files.
Make = Callable[[str], Task]

_LAST_WORD = re.compile(r'(.*\S)(\s+\S+)\s*', re.DOTALL)
_BRACKETS = re.compile(r'\[.*?\]')


def lambada(
  path: str = 'lambada/lambada_test.jsonl', shown: str = 'rest'
) -> Make:
  """LAMBADA (Paperno et al., 2016): the last word of a passage.

  JSON lines with `text`: the version that GPT-2 and GPT-3 report on.
  """
  home = (
    'fetch lambada_test.jsonl, 5,153 passages, from '
    'https://openaipublic.blob.core.windows.net/gpt-2/data/'
  )

  def example(record: Record) -> Example:
    text = fields.text(record, 'text')
    parts = _LAST_WORD.fullmatch(text)
    if not parts:
      raise UsageError(f'{record.where}: has no last word: {text[:40]!r}')
    return Example(record.where, parts[1], (parts[2],), 0)

  return _choices(home, path, shown, example, choices.last_words)


def blimp(path: str = 'blimp/*.jsonl') -> Make:
  """BLiMP (Warstadt et al., 2020): which of two sentences is grammatical.

  JSON lines with `sentence_good`, `sentence_bad` and `UID`, the paradigm.
  """
  home = (
    'fetch the 67 files of data/ from https://github.com/alexwarstadt/blimp'
  )

  def example(record: Record) -> Example:
    good, bad, group = (
      fields.text(record, name)
      for name in ('sentence_good', 'sentence_bad', 'UID')
    )
    return Example(record.where, '', (good, bad), 0, group=group)

  return _choices(home, path, '', example, choices.paradigms)


def piqa(
  path: str = 'piqa/valid.jsonl',
  labels: str = 'piqa/valid-labels.lst',
  shown: str = 'piqa/train.jsonl',
  shown_labels: str = 'piqa/train-labels.lst',
) -> Make:
  """PIQA (Bisk et al., 2020): which of two solutions reaches a goal."""
  home = 'fetch the JSON lines and the labels from https://yonatanbisk.com/piqa'
  if shown == 'rest':
    shown, shown_labels = path, labels

  def read(files: Files, path: str, labels: str) -> Iterator[Example]:
    numbers = files.text(labels).split()
    number = 0
    for number, record in enumerate(files.records(path), start=1):
      if number > len(numbers) or numbers[number - 1] not in ('0', '1'):
        raise UsageError(f'{labels}:{number}: has no label 0 or 1')
      goal, *pair = (
        fields.text(record, name) for name in ('goal', 'sol1', 'sol2')
      )
      label = int(numbers[number - 1])
      yield Example(record.where, goal, tuple(f' {x}' for x in pair), label)
    if number < len(numbers):
      raise UsageError(
        f'{labels}: has {len(numbers)} labels, {path} {number} lines'
      )

  def make(folder: str) -> Task:
    files = Files(folder, home)
    return Choices(
      lambda: read(files, path, labels),
      choices.accuracies,
      (lambda: read(files, shown, shown_labels)) if shown else None,
    )

  return make


def hellaswag(
  path: str = 'hellaswag/hellaswag_val.jsonl',
  shown: str = 'hellaswag/hellaswag_train.jsonl',
) -> Make:
  """HellaSwag (Zellers et al., 2019): how a scene continues."""
  home = (
    'fetch the JSON lines from https://github.com/rowanz/hellaswag, folder data'
  )

  def example(record: Record) -> Example:
    where = record.where
    activity, scene = (
      fields.text(record, name) for name in ('activity_label', 'ctx')
    )
    endings = fields.texts(where, 'endings', record['endings'])
    return Example(
      where,
      _plain(f'{activity}: {scene}'),
      tuple(f' {_plain(x)}' for x in endings),
      fields.label(where, record['label'], range(len(endings))),
    )

  return _choices(home, path, shown, example, choices.accuracies)


def race(
  path: str = 'race/test_middle.jsonl.gz',
  shown: str = 'race/train_middle.jsonl.gz',
) -> Make:
  """RACE (Lai et al., 2017): questions about an article.

  JSON lines, one article each, with `article`, `questions`, `options` and
  `answers` (A to D), as in the original files.
  """
  home = (
    'fetch RACE from https://www.cs.cmu.edu/~glai1/data/race/ and write the '
    'files of a folder as JSON lines, one article a line'
  )

  def examples(record: Record) -> Iterator[Example]:
    where = record.where
    article = fields.text(record, 'article')
    options = record['options']
    parts = [
      fields.texts(where, 'questions', record['questions']),
      options if isinstance(options, list) else [options],
      fields.texts(where, 'answers', record['answers']),
    ]
    if len({len(part) for part in parts}) != 1:
      raise UsageError(
        f'{where}: questions, options and answers differ in number'
      )
    for question, options, answer in zip(*parts, strict=True):
      texts = fields.texts(where, 'options', options)
      yield Example(
        where,
        f'Article: {article}\n\nQ: {question}\n\nA:',
        tuple(f' {option}' for option in texts),
        fields.label(where, answer, string.ascii_uppercase[: len(texts)]),
        general='A:',
      )

  return _choices(home, path, shown, examples, choices.accuracies)


def multiple_choice(path: str, shown: str = '') -> Make:
  """Custom task: JSON lines with `context`, `choices` (texts) and `label`.

  A space separates context and choice.
  """

  def example(record: Record) -> Example:
    where, context = record.where, fields.text(record, 'context')
    texts = fields.texts(where, 'choices', record['choices'])
    return Example(
      where,
      context,
      tuple(f' {text}' for text in texts),
      fields.label(where, record['label'], range(len(texts))),
    )

  return _choices('check the path', path, shown, example, choices.accuracies)


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
    files = Files(folder, 'check the path')
    return ClosedBook(
      lambda: map(question, files.records(path)),
      (lambda: map(question, files.records(shown))) if shown else None,
      max_tokens,
    )

  return make


def wikitext2(path: str = 'wikitext2/test.raw.txt', stride: int = 0) -> Make:
  """WikiText-2's test split as raw, untokenized text.

  Its numbers of words and line ends are those of the word-level file.
  """
  home = (
    'fetch WikiText-2 raw (wikitext-2-raw-v1) and name its wiki.test.raw so'
  )
  return _text(home, path, stride)


def text(path: str, stride: int = 0) -> Make:
  """A custom text file, as one stream."""
  return _text('check the path', path, stride)


def _text(home: str, path: str, stride: int) -> Make:
  if stride < 0:
    raise UsageError(
      f'stride={stride}: is negative; give a number of tokens, or 0 for half '
      'of the context'
    )
  return lambda folder: Text(Files(folder, home), path, stride)


def _choices(home: str, path: str, shown: str, example, figures) -> Make:
  """A task over records with one or more examples each."""
  if shown == 'rest':
    shown = path

  def read(files: Files, path: str) -> Iterator[Example]:
    for record in files.records(path):
      found = example(record)
      yield from (found,) if isinstance(found, Example) else found

  def make(folder: str) -> Task:
    files = Files(folder, home)
    return Choices(
      functools.partial(read, files, path),
      figures,
      functools.partial(read, files, shown) if shown else None,
    )

  return make


def _plain(text: str) -> str:
  """Removes the WikiHow markup from a HellaSwag text."""
  text = _BRACKETS.sub('', text.replace(' [title]', '. '))
  return ' '.join(text.split())


TASKS: dict[str, Callable[..., Make]] = {
  'lambada': lambada,
  'blimp': blimp,
  'piqa': piqa,
  'hellaswag': hellaswag,
  'race': race,
  'multiple_choice': multiple_choice,
  'qa': qa,
  'wikitext2': wikitext2,
  'text': text,
}
