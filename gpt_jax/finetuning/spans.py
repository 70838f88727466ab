# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers that are spans of a text: SQuAD as BERT does it (section 4.2).

A text longer than a row is read in windows that overlap. Each gives scores of
its tokens to be the first and the last of the answer; of a token that several
windows have, that with the most context around it counts, as in the released
code. The answer is the best span of all windows. Where there may be none, the
first token of a row stands for it (section 4.3): it is taken if it scores more
than the best span by over `null_threshold`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.finetuning.sequences import Special, joined
from gpt_jax.finetuning.task_rows import Rows, check_cut, filled
from gpt_jax.spec import UsageError
from gpt_jax.tasks.reading import SpanOptions
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tokenizers.tokenizer import Tokenizer


class Window(NamedTuple):
  """A part of a context, as a row holds it.

  Attributes:
    example: its number.
    place: in the row, of the first of its tokens.
    bounds: [n, 2], the characters of each.
    most: [n], whether no other window has more context around the token.
  """

  example: int
  place: int
  bounds: np.ndarray
  most: np.ndarray


def rows(
  task: Task,
  examples: list[Example],
  tokenizer: Tokenizer,
  *,
  special: Special,
  length: int,
  too_long: str = 'cut',
) -> Rows:
  """The windows of all examples, in order; see `task_rows.rows`."""
  options: SpanOptions = task.options
  made, labels, origins, cut = [], [], [], 0
  for number, one in enumerate(examples):
    question, context = (tokenizer.encode(text) for text in one.texts)
    bounds = tokenizer.offsets(one.texts[1])
    excess = max(len(question) - options.question, 0)
    if excess:
      check_cut(one, excess, length, too_long)
    cut += excess > 0
    question = question[: options.question]
    room = length - special.around(2) - len(question)
    if room < 1:
      raise UsageError(
        f'{one.where}: a question of {len(question)} tokens leaves no room for '
        f'the text in finetune.length={length}; raise it'
      )
    windows = _windows(len(context), room, options.stride)
    for window, most in zip(windows, _most(windows, len(context)), strict=True):
      part = context[window.start : window.stop]
      row = joined([[question], [part]], special, length)
      made.append(row)
      inside = slice(window.start, window.stop)
      origin = Window(number, row.second, bounds[inside], most[inside])
      labels.append(_label(one, origin))
      origins.append(origin)
  second = np.array([[row.second] for row in made], np.int32)
  return Rows(
    filled([row.ids for row in made], special, length)[:, None],
    np.array([[len(row.ids)] for row in made], np.int32),
    np.array(labels, np.int32),
    cut,
    second if special.forms != 'extract' else None,
    origins,
  )


def _windows(count: int, room: int, stride: int) -> list[range]:
  """Of `count` tokens at most `room` each, `stride` apart."""
  found = [range(min(room, count))]
  while found[-1].stop < count:
    start = found[-1].start + min(room, stride)
    found.append(range(start, min(start + room, count)))
  return found


def _most(windows: list[range], count: int) -> np.ndarray:
  """Which window has each token's most context, bool [windows, tokens].

  That is the smaller of the numbers of tokens before and after it, plus a
  hundredth of the window's length; the first of several.
  """
  scores = np.full((len(windows), count), -np.inf)
  for score, window in zip(scores, windows, strict=True):
    inside = np.arange(len(window))
    least = np.minimum(inside, inside[::-1])
    score[window.start : window.stop] = least + 0.01 * len(window)
  return np.arange(len(windows))[:, None] == np.argmax(scores, axis=0)[None]


def _label(one: Example, window: Window) -> tuple[int, int]:
  """Where in the row the answer begins and ends; 0: it is not there."""
  answer: Any = one.label
  if answer is None or answer.start < 0:
    return 0, 0
  stop = answer.start + len(answer.texts[0])
  starts, stops = window.bounds.T
  found = np.flatnonzero((stops > answer.start) & (starts < stop))
  # A part of an answer is none.
  if not len(found) or starts[found[0]] > answer.start:
    return 0, 0
  if stops[found[-1]] < stop:
    return 0, 0
  return window.place + int(found[0]), window.place + int(found[-1])


def found(
  options: SpanOptions,
  examples: Sequence[Example],
  windows: Sequence[Window],
  raw: np.ndarray,
) -> list[str]:
  """The answer to each question; '': there is none.

  Args:
    options: of the task.
    examples: the questions.
    windows: in order, all of each example.
    raw: [windows, 2 L], the scores of each token to be first, and to be last.
  """
  starts, ends = np.split(np.asarray(raw, np.float64), 2, axis=1)
  best = [(-np.inf, '')] * len(examples)
  null = np.full(len(examples), np.inf)
  for window, start, end in zip(windows, starts, ends, strict=True):
    n = window.example
    null[n] = min(null[n], start[0] + end[0])
    score, first, last = _best(window, start, end, options.answer)
    if score > best[n][0]:
      (begin, _), (_, stop) = window.bounds[first], window.bounds[last]
      best[n] = score, examples[n].texts[1][begin:stop].strip()
  if not options.empty:
    return [text for _, text in best]
  return [
    '' if none - score > options.null_threshold else text
    for (score, text), none in zip(best, null, strict=True)
  ]


def _best(
  window: Window, start: np.ndarray, end: np.ndarray, most: int
) -> tuple[float, int, int]:
  """The best score of a span of at most `most` tokens, its first and last."""
  count = len(window.bounds)
  if not count:
    return -np.inf, 0, 0
  here = slice(window.place, window.place + count)
  first = np.where(window.most, start[here], -np.inf)
  scores = first[:, None] + end[here][None]
  length = np.arange(count)[None] - np.arange(count)[:, None]
  scores = np.where((length >= 0) & (length < most), scores, -np.inf)
  i, j = divmod(int(np.argmax(scores)), count)
  return float(scores[i, j]), i, j
