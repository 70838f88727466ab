# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tag for each word: CoNLL's named entities as BERT does them (section 5.3).

The first token of a word is asked; the others are not scored. Words that were
cut off, or that the tokenizer leaves out, have no token: they count as `O`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.finetuning.sequences import Special, Tokens, joined
from gpt_jax.finetuning.task_rows import Rows, check_cut, filled
from gpt_jax.tasks.metrics import OUTSIDE
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tokenizers.tokenizer import Tokenizer

# The label of a token that is not asked.
IGNORED = -100


def rows(
  examples: list[Example],
  tokens: list[list[Tokens]],
  tokenizer: Tokenizer,
  *,
  special: Special,
  length: int,
  too_long: str = 'cut',
) -> Rows:
  """A row for each sentence; see `task_rows.rows`.

  `origins` are int [words], where in the row the token of each word is; -1:
  nowhere.
  """
  made, origins, cut = [], [], 0
  labels = np.full((len(examples), length), IGNORED, np.int32)
  for row, one, (ids,) in zip(labels, examples, tokens, strict=True):
    found = joined([[ids]], special, length)
    if found.excess:
      check_cut(one, found.excess, length, too_long)
    cut += found.excess > 0
    made.append(found.ids)
    first = _first_tokens(one.texts[0], tokenizer)
    places = np.where(first < len(ids) - found.excess, first, -1)
    places = np.where(places >= 0, places + len(special.start), -1)
    origins.append(places)
    if one.label is not None:
      known = np.array(one.label, np.int32)
      row[places[places >= 0]] = known[places >= 0]
  inputs = filled(made, special, length)[:, None]
  lengths = np.array([[len(ids)] for ids in made], np.int32)
  second = lengths if special.forms != 'extract' else None
  return Rows(inputs, lengths, labels, cut, second, origins)


def _first_tokens(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """Which token each word begins with, int [words]; -1: none."""
  words = text.split(' ')
  stops = np.cumsum([len(word) + 1 for word in words]) - 1
  starts, ends = tokenizer.offsets(text).T
  # Of a token with the space before a word, the word is where it ends. What
  # stands for no character is of no word.
  word = np.searchsorted(stops, np.maximum(ends - 1, 0))
  word = np.where((ends > starts) & (word < len(words)), word, -1)
  # A space by itself ends where a word begins, and stands before the word.
  alone = [not text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
  word = np.where(alone, -1, word)
  first = np.full(len(words), -1)
  for token in range(len(word) - 1, -1, -1):
    if word[token] >= 0:
      first[word[token]] = token
  return first


def found(
  task: Task, places: Sequence[np.ndarray], raw: np.ndarray
) -> list[np.ndarray]:
  """The tags of all words, by number.

  Args:
    task: whose `labels` they are.
    places: of `rows`, its origins.
    raw: [N, L K], the scores of each token for each tag.
  """
  classes = len(task.labels)
  best = np.argmax(raw.reshape(len(raw), -1, classes), axis=2)
  outside = task.labels.index(OUTSIDE) if OUTSIDE in task.labels else 0
  return [
    np.where(where >= 0, tags[np.maximum(where, 0)], outside)
    for where, tags in zip(places, best, strict=True)
  ]


def named(task: Task, numbers: Any) -> list[str]:
  """The tags of a sentence by their names."""
  return [task.labels[i] for i in numbers]
