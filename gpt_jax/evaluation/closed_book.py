# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Closed-book question answering: greedy answers, by exact match.

GPT-3, section 3.2: the answer is generated from the question alone, after
solved examples 'Q: ...\nA: ...'.
"""

import re
import string
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.data.progress import Report
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.task import Setting
from gpt_jax.spec import UsageError

_ARTICLES = re.compile(r'\b(a|an|the)\b')


class Question(NamedTuple):
  """A question with the answers that count as right."""

  where: str
  question: str
  answers: tuple[str, ...]


class ClosedBook(NamedTuple):
  """Questions, and those that may be shown before.

  Attributes:
    questions: streams those that are measured.
    shown: streams those that may be shown before; None: there are none.
    max_tokens: of an answer.
  """

  questions: Callable[[], Iterator[Question]]
  shown: Callable[[], Iterator[Question]] | None
  max_tokens: int

  @property
  def takes_shots(self) -> bool:
    """Whether there are questions to show."""
    return self.shown is not None

  def texts(self) -> list[tuple[str, str]]:
    """The questions."""
    return [(q.where, q.question) for q in self.questions()]

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """See `task.Task`."""
    questions = [*self.questions()]
    if not questions:
      raise UsageError('the task has no questions: its files are empty')
    prompts = self._prompts(scorer, questions, setting)
    answers = scorer.answers(prompts, self.max_tokens, journal, report)
    right = [
      exact_match(answer, question.answers)
      for answer, question in zip(answers, questions, strict=True)
    ]
    return {**figures.mean('exact_match', right), 'examples': len(questions)}

  def _prompts(
    self, scorer: Scorer, questions: Sequence[Question], setting: Setting
  ) -> list[str]:
    shown: list[Question] = []
    if setting.shots:
      assert self.shown is not None
      shown = [*self.shown()]
      if len(shown) < setting.shots:
        raise UsageError(
          f'--shots={setting.shots}: there are only {len(shown)} questions to '
          'show; give fewer'
        )
    rng = np.random.default_rng(setting.seed)
    prompts = []
    for question in questions:
      own = f'Q: {question.question}\nA:'
      room = scorer.context_length - self.max_tokens - 1
      prompt = ''
      if len(scorer.tokenizer.encode(own)) > room:
        raise UsageError(
          f'{question.where}: the question and {self.max_tokens} tokens of an '
          f'answer exceed the context of {scorer.context_length}; leave it out'
        )
      drawn = rng.choice(len(shown), setting.shots, replace=False)
      for i in drawn if setting.shots else ():
        more = f'Q: {shown[i].question}\nA: {shown[i].answers[0]}\n\n' + prompt
        if len(scorer.tokenizer.encode(more + own)) > room:
          break
        prompt = more
      prompts.append(prompt + own)
    return prompts


def exact_match(answer: str, answers: Sequence[str]) -> bool:
  """Whether two answers are the same, apart from what TriviaQA ignores.

  That is case, punctuation, articles and white space (Joshi et al., 2017).
  """
  return _normal(answer) in {_normal(x) for x in answers}


def _normal(text: str) -> str:
  text = text.lower().translate(str.maketrans('', '', string.punctuation))
  return ' '.join(_ARTICLES.sub(' ', text).split())
