# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks that choose one of several continuations.

Each continuation is scored after its context. The answer is the one with the
highest log-probability: in total, per token or per byte (GPT-3, section 2.4:
"the per-token likelihood for each example (to normalize for length)"), or
relative to a general context, P(completion | context) /
P(completion | answer context), as GPT-3 does for ARC, OpenBookQA and RACE.

`cut` counts examples whose context was too long and lost its first tokens,
`left_out` those with a choice that exceeds the context by itself.
"""

import collections
import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.evaluation import results
from gpt_jax.evaluation.files import Files, read_all
from gpt_jax.evaluation.journal import Journal
from gpt_jax.evaluation.results import Figures
from gpt_jax.evaluation.score import Score, Scorer, ScoreRequest
from gpt_jax.evaluation.shots import draw, of_text
from gpt_jax.evaluation.task import Setting, Task
from gpt_jax.files.progress import Report
from gpt_jax.files.records import Record
from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')


class Example(NamedTuple):
  """One question with its choices.

  Attributes:
    where: 'file:line'.
    context: text before the continuation.
    choices: the continuations, including leading white space.
    label: index of the right one.
    group: of examples whose mean counts as one, such as a BLiMP paradigm.
    general: a context without the question, such as 'Answer:'; None if the
      task has none.
    lead: text before the examples shown, such as the article that they are
      about too.
    about: which text it is about; '' if the task has none.
    plain: the text that training must not contain; '' if it is the lead, the
      context and the right choice.
  """

  where: str
  context: str
  choices: tuple[str, ...]
  label: int
  group: str = ''
  general: str | None = None
  lead: str = ''
  about: str = ''
  plain: str = ''


# Computes results from examples and their scores.
Measure = Callable[[Sequence[Example], list[list[Score]]], Figures]


class Choices(NamedTuple):
  """A task of examples with choices.

  Attributes:
    examples: streams the examples to measure.
    figures: computes results from the examples and their scores.
    shown: streams the pool of few-shot examples; None: there is none.
    separator: between two examples.
    same_text: whether only those about the same text are shown.
  """

  examples: Callable[[], Iterator[Example]]
  figures: Measure
  shown: Callable[[], Iterator[Example]] | None = None
  separator: str = '\n\n'
  same_text: bool = False
  takes_sources = False

  @property
  def takes_shots(self) -> bool:
    """Whether there is a pool of few-shot examples."""
    return self.shown is not None

  def texts(self) -> list[tuple[str, str]]:
    """Each example with its right continuation, for overlap checks."""
    return [
      (e.where, e.plain or e.lead + _solved(e))
      for e in read_all('examples', self.examples)
    ]

  def check(self, shots: int) -> None:
    """See `task.Task`."""
    examples = read_all('examples', self.examples)
    if shots:
      self._drawn(examples, Setting(shots))

  def measure(
    self, scorer: Scorer, setting: Setting, journal: Journal, report: Report
  ) -> Figures:
    """See `task.Task`."""
    examples = read_all('examples', self.examples)
    seen = setting.seen
    if setting.limit is not None:
      kept = _first(examples, setting.limit)
      examples = [examples[i] for i in kept]
      if seen is not None:
        seen = frozenset(n for n, i in enumerate(kept) if i in seen)
    prompts, num_shown = self._prompts(scorer, examples, setting)
    requests = []
    for example, prompt in zip(examples, prompts, strict=True):
      for choice in example.choices:
        requests.append(
          ScoreRequest(prompt + example.context, choice, example.where)
        )
        if example.general is not None:
          requests.append(ScoreRequest(example.general, choice, example.where))
    scores = iter(scorer.requests(requests, journal, report))
    scored: dict[int, list[Score]] = {}  # by the example's number
    for number, example in enumerate(examples):
      found = [next(scores) for _ in range(_num_requests(example))]
      whole = [score for score in found if score is not None]
      if len(whole) == len(found):
        scored[number] = whole
    _tell_left_out(examples, scored, scorer.context_length)

    def measured(numbers: Sequence[int]) -> Figures:
      return self.figures(
        [examples[n] for n in numbers], [scored[n] for n in numbers]
      )

    shown = [num_shown[n] for n in scored]
    return {
      **measured([*scored]),
      **({'shots_shown': float(np.mean(shown))} if setting.shots else {}),
      'examples': len(scored),
      'left_out': len(examples) - len(scored),
      'cut': sum(any(s.cut for s in found) for found in scored.values()),
      **results.clean([*scored], seen, measured),
    }

  def _drawn(
    self, examples: Sequence[Example], setting: Setting
  ) -> tuple[list[str], list[list[int]]]:
    """The pool, and the indices drawn for each example; see `shots`."""
    assert self.shown is not None
    shown = read_all('examples', self.shown)
    solved = [_solved(e) for e in shown]
    if self.same_text:
      pool = [(e.about, text) for e, text in zip(shown, solved, strict=True)]
      own = [(e.about, _solved(e)) for e in examples]
      return solved, of_text(pool, own, setting)
    asked = [(e.where, _solved(e)) for e in examples]
    return solved, draw(solved, asked, setting)

  def _prompts(
    self, scorer: Scorer, examples: Sequence[Example], setting: Setting
  ) -> tuple[list[str], list[int]]:
    """What stands before each context, and the number of shots in it.

    Keeps as many of the last shots as fit into the context.
    """
    if not setting.shots:
      return [e.lead for e in examples], [0] * len(examples)
    solved, drawn = self._drawn(examples, setting)
    texts = [text + self.separator for text in solved]
    lengths = [len(ids) for ids in scorer.tokenizer.encode_batch(texts)]
    prompts, num_shown = [], []
    for example, indices in zip(examples, drawn, strict=True):
      own = max(
        len(scorer.tokenizer.encode(example.lead + example.context + choice))
        for choice in example.choices
      )
      room = scorer.context_length - own - 1
      prompt, count = '', 0
      for i in indices:
        room -= lengths[i]
        if room < 0:
          break
        prompt = texts[i] + prompt
        count += 1
      prompts.append(example.lead + prompt)
      num_shown.append(count)
    return prompts, num_shown


def _tell_left_out(
  examples: Sequence[Example], scored: Collection[int], context_length: int
) -> None:
  """Tells of examples without a score."""
  too_long = [e.where for n, e in enumerate(examples) if n not in scored]
  if not scored:
    raise UsageError(
      f'{too_long[0]}: no example fits the context of {context_length} tokens; '
      'take a model with a longer one'
    )
  if too_long:
    log.warning(
      '%s: a choice exceeds the context of %d tokens; %d such examples are '
      'left out',
      *(too_long[0], context_length, len(too_long)),
    )


def _first(examples: Sequence[Example], limit: int) -> list[int]:
  """The positions of the first `limit` examples of each group."""
  met: collections.Counter[str] = collections.Counter()
  out = []
  for position, example in enumerate(examples):
    met[example.group] += 1
    if met[example.group] <= limit:
      out.append(position)
  return out


def _num_requests(example: Example) -> int:
  return len(example.choices) * (1 if example.general is None else 2)


def _solved(example: Example) -> str:
  return example.context + example.choices[example.label]


# Makes tasks of records: which are measured, and which are shown before.


# Makes a task from the folder of the task files.
Make = Callable[[str], Task]


class Pool(NamedTuple):
  """The examples of a task.

  Attributes:
    path: of those measured: a file or a split; see `Files`.
    shown: of those shown before them: another, 'rest' for the others of
      `path`, or '' for none. An example equal to the measured one is never
      shown.
  """

  path: str
  shown: str


def choices(
  files: Files,
  pool: Pool,
  read: Callable[[Record], Iterable[Example]],
  measure: Measure,
  *,
  same_text: bool = False,
) -> Make:
  """A task of choices.

  Args:
    files: of the task; its folder is replaced.
    pool: where its examples are.
    read: makes examples of a record.
    measure: see `Choices.figures`.
    same_text: see `Choices`.
  """

  def examples(files: Files, path: str) -> Iterator[Example]:
    for record in files.records(path):
      yield from read(record)

  def make(folder: str) -> Task:
    here = files._replace(folder=folder)
    shown = pool.path if pool.shown == 'rest' else pool.shown
    return Choices(
      functools.partial(examples, here, pool.path),
      measure,
      functools.partial(examples, here, shown) if shown else None,
      same_text=same_text,
    )

  return make
