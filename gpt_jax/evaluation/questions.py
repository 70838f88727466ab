# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Questions that a model answers in words, after few-shot examples.

`qa`: closed-book questions (GPT-3, section 3.2). `gsm8k`: problems solved step
by step (Wei et al., 2022: Chain-of-Thought Prompting Elicits Reasoning).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epy

from gpt_jax.core.files.progress import Report
from gpt_jax.core.files.records import Record
from gpt_jax.core.ranges import Count, Positive, Whole
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.settings import Sampler
from gpt_jax.evaluation import figures
from gpt_jax.evaluation.figures import Figures, Make, MeasuredTask, Setting, read_all
from gpt_jax.evaluation.likelihood import draw
from gpt_jax.evaluation.score import GREEDY, Journal, Scorer
from gpt_jax.tasks import files as files_lib
from gpt_jax.tasks import reasoning as reasoning_lib
from gpt_jax.tasks.files import OWN
from gpt_jax.tasks.metrics import exact_match

with epy.lazy_imports():
  from gpt_jax.decoding import sampler as sampler_lib


class Question(NamedTuple):
  """A question."""

  where: str  # 'file:line'
  question: str
  answers: tuple[str, ...]  # the accepted answers
  shown: str  # what stands after 'A: ' in a few-shot example


class Questions(NamedTuple):
  """A task of questions, each answered once or several times."""

  questions: Callable[[], Iterator[Question]]  # reads them
  # Reads the questions that may be few-shot examples; None: none may.
  pool: Callable[[], Iterator[Question]] | None
  max_tokens: int  # the most tokens of an answer
  # Figures of a question from its answers; their means are reported.
  judge: Callable[[Question, Sequence[str]], Mapping[str, float]]
  separator: str = '\n\n'  # stands between two examples
  stop: str = '\n'  # the text that ends an answer
  sampler: Sampler = GREEDY  # how answers are sampled
  num_samples: int = 1  # answers to each question
  takes_sources = False

  @property
  def takes_shots(self) -> bool:
    """Whether there is a pool of few-shot questions."""
    return self.pool is not None

  def texts(self) -> list[tuple[str, str]]:
    """The questions, for overlap checks."""
    return [(q.where, q.question) for q in read_all('questions', self.questions)]

  def check(self, shots: int) -> None:
    """See `figures.MeasuredTask`."""
    questions = read_all('questions', self.questions)
    if shots:
      self._drawn(questions, Setting(shots))

  def measure(self, scorer: Scorer, setting: Setting, journal: Journal, report: Report) -> Figures:
    """See `figures.MeasuredTask`."""
    questions = read_all('questions', self.questions)[: setting.limit]
    prompts, num_shown = self._prompts(scorer, questions, setting)
    each = self.num_samples
    texts = scorer.answers(
      [prompt for prompt in prompts for _ in range(each)],
      self.max_tokens,
      journal,
      report,
      stop=self.stop,
      sampler=self.sampler,
      seeds=sampler_lib.seeds_of(setting.seed, each) * len(prompts),
    )
    answers = [texts[i : i + each] for i in range(0, len(texts), each)]
    if setting.outputs:
      figures.write_outputs(
        setting.outputs,
        (
          {'where': q.where, 'texts': own, 'answers': q.answers}
          for q, own in zip(questions, answers, strict=True)
        ),
      )
    judged = [self.judge(question, own) for question, own in zip(questions, answers, strict=True)]

    def measured(numbers: Sequence[int]) -> Figures:
      found: Figures = {}
      for name in judged[0]:
        found |= figures.mean(name, [judged[n][name] for n in numbers])
      return found

    everything = range(len(questions))
    return {
      **measured(everything),
      **({'shots_shown': float(np.mean(num_shown))} if setting.shots else {}),
      'examples': len(questions),
      **figures.clean(everything, setting.seen, measured),
    }

  def _drawn(self, questions: Sequence[Question], setting: Setting) -> list[list[Question]]:
    """The few-shot questions drawn for each question; see `likelihood.draw`."""
    assert self.pool is not None
    pool = read_all('questions', self.pool)
    drawn = draw([q.question for q in pool], [(q.where, q.question) for q in questions], setting)
    return [[pool[i] for i in indices] for indices in drawn]

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
        more = f'Q: {other.question}\nA: {other.shown}{self.separator}'
        if len(scorer.tokenizer.encode(more + prompt + own)) > room:
          break
        prompt, count = more + prompt, count + 1
      prompts.append(prompt + own)
      num_shown.append(count)
    return prompts, num_shown


def qa(path: str, shown: str = '', max_tokens: Count = 32) -> Make:
  """Closed-book questions: JSON lines with `question` and `answers`.

  For TriviaQA, Natural Questions and WebQuestions, converted to this form. The
  few-shot examples are those of the file `shown`; 'rest': the other questions.
  Answers are greedy and end with the line. Case, punctuation, articles and
  white space are ignored, as for SQuAD.
  """

  def question(record: Record) -> Question:
    answers = record['answers']
    answers = [answers] if isinstance(answers, str) else answers
    accepted = files_lib.texts(record.where, 'answers', answers)
    text = files_lib.text(record, 'question')
    return Question(record.where, text, accepted, accepted[0])

  def judge(question: Question, answers: Sequence[str]) -> dict[str, float]:
    return {'exact_match': exact_match(answers[0], question.answers)}

  def make(folder: str) -> MeasuredTask:
    return Questions(*_of_files(folder, path, shown, question, question), max_tokens, judge)

  return make


def gsm8k(
  path: str,
  shown: str = '',
  reasoning: str = 'answer',
  max_tokens: Count = 256,
  num_samples: Count = 1,
  temperature: Positive = 0.7,
  top_k: Whole = 0,
) -> Make:
  """Problems with a number as answer, solved step by step.

  Few-shot examples are 'Q: ...' and 'A: REASONING The answer is 11.', a line
  each, and the generated text ends at the next 'Q:'. The answer is found by
  `tasks.reasoning.number_in`; a text without one is wrong. `exact_match` counts
  equal numbers, and `no_answer` questions without an answer. With several
  samples the answer is that of the majority (Wang et al., 2022:
  Self-Consistency), and `sample_match` is the mean over the samples.

  Args:
    path: JSON lines with `question` and `answer`, as published.
    shown: file of the few-shot examples; 'rest': the other problems.
    reasoning: their column with the reasoning, which ends at '####'; '': the
      examples show the answer alone.
    max_tokens: the most tokens of a solution.
    num_samples: solutions for each problem; 1: greedy.
    temperature: of several samples.
    top_k: of several samples; 0: from all tokens.
  """

  def question(record: Record) -> Question:
    return Question(
      record.where,
      files_lib.text(record, 'question'),
      (f'{reasoning_lib.answer_of(record, "answer"):f}',),
      '',
    )

  def solved(record: Record) -> Question:
    shown = reasoning_lib.solution(record, 'answer', reasoning)
    return question(record)._replace(shown=shown)

  def judge(question: Question, texts: Sequence[str]) -> dict[str, float]:
    (right,) = map(reasoning_lib.number_in, question.answers)
    answers = [*map(reasoning_lib.number_in, texts)]
    chosen = reasoning_lib.majority(answers)
    found: dict[str, float] = {'exact_match': chosen == right, 'no_answer': chosen is None}
    if num_samples > 1:
      found['sample_match'] = answers.count(right) / num_samples
    return found

  def make(folder: str) -> MeasuredTask:
    return Questions(
      *_of_files(folder, path, shown, question, solved),
      max_tokens,
      judge,
      separator='\n',
      stop='Q:',
      sampler=GREEDY if num_samples == 1 else Sampler(temperature, top_k),
      num_samples=num_samples,
    )

  return make


def _of_files(
  folder: str,
  path: str,
  shown: str,
  question: Callable[[Record], Question],
  solved: Callable[[Record], Question],
) -> tuple[Callable[[], Iterator[Question]], Callable[[], Iterator[Question]] | None]:
  """Readers of the questions, and of the few-shot pool, if there is one."""
  files = OWN._replace(folder=folder)
  others = path if shown == 'rest' else shown
  return (
    lambda: map(question, files.records(path)),
    (lambda: map(solved, files.records(others))) if shown else None,
  )
