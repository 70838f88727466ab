# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A tag for each word: CoNLL's named entities as BERT does them (section 5.3).

The first token of a word is asked; the others are not scored. Words that were
cut off, or that the tokenizer leaves out, have no token: they count as `O`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt_jax.files.records import Record
from gpt_jax.finetuning.sequences import Special, Tokens, joined
from gpt_jax.finetuning.task_rows import Rows, check_cut, filled
from gpt_jax.spec import UsageError
from gpt_jax.tasks import tasks
from gpt_jax.tasks.tasks import Example, Task
from gpt_jax.tokenizers.tokenizer import Tokenizer

# The tag of what is no entity, and the label of a token that is not asked.
OUTSIDE, IGNORED = 'O', -100


def words_of(task: Task, record: Record) -> list[str]:
  """The words of a sentence."""
  column = task.texts[0]
  found = record[column]
  if not isinstance(found, list) or not found:
    raise UsageError(f'{record.where}: {column!r} is no list of words')
  words = [str(word) for word in found]
  for word in words:
    if len(word.split()) != 1:
      raise UsageError(
        f'{record.where}: the word {word!r:.60} is empty or holds white space; '
        'mend or remove it'
      )
  return words


def example(task: Task, record: Record, needed: bool) -> Example:
  """Reads a sentence: a list of words, and one of as many tags."""
  words = words_of(task, record)
  texts = (' '.join(words),)
  if not needed and tasks.is_missing(record, record.fields.get(task.label)):
    return Example(record.where, texts, None)
  tags = record[task.label]
  if not isinstance(tags, list) or len(tags) != len(words):
    count = len(tags) if isinstance(tags, list) else 'no'
    raise UsageError(
      f'{record.where}: has {len(words)} words and {count} tags; give as many'
    )
  numbers = []
  for tag in tags:
    tasks.check_label(record, task.label, tag)
    if str(tag) in task.labels:
      numbers.append(task.labels.index(str(tag)))
    elif type(tag) is int and 0 <= tag < len(task.labels):  # TFDS
      numbers.append(tag)
    else:
      raise UsageError(
        f'{record.where}: the tag {tag!r} is none of ' + ', '.join(task.labels)
      )
  return Example(record.where, texts, tuple(numbers))


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


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
  """The entities of a sentence: type, first word, one after the last.

  As CoNLL's evaluation reads tags: one begins with B-, and with I- after
  another type or none.
  """
  kind, start = '', 0
  for i, tag in enumerate([*tags, OUTSIDE]):
    prefix, _, name = tag.partition('-')
    ends = prefix != 'I' or name != kind
    if kind and ends:
      yield kind, start, i
    if ends:
      kind, start = name, i


def f1(labels: Sequence[list[str]], predictions: Sequence[list[str]]) -> float:
  """Of entities: those whose type and words are all right."""
  right = said = there = 0
  for known, found in zip(labels, predictions, strict=True):
    a, b = {*entities(known)}, {*entities(found)}
    right, there, said = right + len(a & b), there + len(a), said + len(b)
  return 2 * right / (there + said) if there + said else 0.0


def iob2(tags: Sequence[str]) -> list[str]:
  """Tags of CoNLL 2003's files, where B- parts entities, with B- at each."""
  out = [*tags]
  for _, start, _ in entities(tags):
    out[start] = 'B-' + out[start].partition('-')[2]
  return out
