# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Closed-book question answering: greedy answers, scored by exact match.

GPT-3, section 3.2: the answer is generated from the question alone, after
few-shot examples 'Q: ...\nA: ...'. Case, punctuation, articles and white space
of an answer do not count, as for TriviaQA (Joshi et al., 2017).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.data import answers as answers_lib
from gpt_jax.data.progress import Report
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.files import read_all
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.shots import draw
from gpt_jax.evaluation.task import Setting
from gpt_jax.spec import UsageError


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
      return figures.mean('exact_match', [right[n] for n in numbers])

    everything = range(len(questions))
    return {
      **measured(everything),
      **({'shots_shown': float(np.mean(num_shown))} if setting.shots else {}),
      'examples': len(questions),
      **figures.clean(everything, setting.seen, measured),
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
