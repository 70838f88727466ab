# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of a user's own tables and texts."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.evaluation import choices, measures, results
from gpt_jax.evaluation.choices import Example, Make, Pool
from gpt_jax.evaluation.files import Files, Split, read_all
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.language_model import Text
from gpt_jax.evaluation.results import Figures
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.shots import draw
from gpt_jax.evaluation.task import Setting, Task
from gpt_jax.files.progress import Report
from gpt_jax.files.records import Record
from gpt_jax.spec import UsageError
from gpt_jax.tasks import metrics as answers_lib

# Closed-book question answering: greedy answers, scored by exact match.
#
# GPT-3, section 3.2: the answer is generated from the question alone, after
# few-shot examples 'Q: ...\nA: ...'. Case, punctuation, articles and white
# space of an answer do not count, as for TriviaQA (Joshi et al., 2017).


class Question(NamedTuple):
  """A question with its accepted answers."""

  where: str
  question: str
  answers: tuple[str, ...]


class ClosedBook(NamedTuple):
  """A task of questions.

  Attributes:
    questions: streams the questions to measure.
    shown: streams the pool of few-shot questions; None: there is none.
    max_tokens: in an answer.
  """

  questions: Callable[[], Iterator[Question]]
  shown: Callable[[], Iterator[Question]] | None
  max_tokens: int
  takes_sources = False

  @property
  def takes_shots(self) -> bool:
    """Whether there is a pool of few-shot questions."""
    return self.shown is not None

  def texts(self) -> list[tuple[str, str]]:
    """The questions, for overlap checks."""
    return [
      (q.where, q.question) for q in read_all('questions', self.questions)
    ]

  def check(self, shots: int) -> None:
    """See `task.Task`."""
    questions = read_all('questions', self.questions)
    if shots:
      self._drawn(questions, Setting(shots))

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """See `task.Task`."""
    questions = read_all('questions', self.questions)[: setting.limit]
    prompts, num_shown = self._prompts(scorer, questions, setting)
    answers = scorer.answers(prompts, self.max_tokens, journal, report)
    right = [
      answers_lib.exact_match(answer, question.answers)
      for answer, question in zip(answers, questions, strict=True)
    ]

    def measured(numbers: Sequence[int]) -> Figures:
      return results.mean('exact_match', [right[n] for n in numbers])

    everything = range(len(questions))
    return {
      **measured(everything),
      **({'shots_shown': float(np.mean(num_shown))} if setting.shots else {}),
      'examples': len(questions),
      **results.clean(everything, setting.seen, measured),
    }

  def _drawn(
    self, questions: Sequence[Question], setting: Setting
  ) -> list[list[Question]]:
    """The few-shot questions drawn for each question; see `shots.draw`."""
    assert self.shown is not None
    solved = read_all('questions', self.shown)
    drawn = draw(
      [q.question for q in solved],
      [(q.where, q.question) for q in questions],
      setting,
    )
    return [[solved[i] for i in indices] for indices in drawn]

  def _prompts(
    self, scorer: Scorer, questions: Sequence[Question], setting: Setting
  ) -> tuple[list[str], list[int]]:
    """The prompts, and the number of shots in each."""
    drawn: list[list[Question]] = [[] for _ in questions]
    if setting.shots:
      drawn = self._drawn(questions, setting)
    room = scorer.context_length - self.max_tokens - 1
    prompts, num_shown = [], []
    for question, others in zip(questions, drawn, strict=True):
      own = f'Q: {question.question}\nA:'
      prompt, count = '', 0
      if len(scorer.tokenizer.encode(own)) > room:
        raise UsageError(
          f'{question.where}: the question and {self.max_tokens} tokens of an '
          f'answer exceed the context of {scorer.context_length}; leave it out'
        )
      for other in others:
        more = f'Q: {other.question}\nA: {other.answers[0]}\n\n' + prompt
        if len(scorer.tokenizer.encode(more + own)) > room:
          break
        prompt, count = more, count + 1
      prompts.append(prompt + own)
      num_shown.append(count)
    return prompts, num_shown


_OWN = Files(folder='', home='check the path')


def multiple_choice(path: str, shown: str = '') -> Make:
  """Custom task: JSON lines with `context`, `choices` (texts) and `label`.

  A space separates context and choice.
  """

  def read(record: Record) -> Iterator[Example]:
    where, context = record.where, measures.text(record, 'context')
    texts = measures.texts(where, 'choices', record['choices'])
    yield Example(
      where,
      context,
      tuple(f' {text}' for text in texts),
      measures.label(where, record['label'], range(len(texts))),
    )

  return choices.choices(_OWN, Pool(path, shown), read, measures.accuracies)


def qa(path: str, shown: str = '', max_tokens: int = 32) -> Make:
  """Closed-book questions: JSON lines with `question` and `answers`.

  For TriviaQA, Natural Questions and WebQuestions, converted to this form.
  """

  def question(record: Record) -> Question:
    answers = record['answers']
    answers = [answers] if isinstance(answers, str) else answers
    return Question(
      record.where,
      measures.text(record, 'question'),
      measures.texts(record.where, 'answers', answers),
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
