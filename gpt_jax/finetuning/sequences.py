# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From texts to sequences of tokens: the input transformations of GPT-1.

Section 3.3 and figure 1, with start s, delimiter $ and extract e, whose
vectors are new:

  classification   s text e
  entailment       s premise $ hypothesis e
  similarity       s first $ second e  and  s second $ first e
  choice           s context $ answer e  for each answer

What is too long keeps its ends: the three tokens are never cut. The paper does
not say how its texts are; its released code gives each of two texts the first
n/2 - 2 tokens of a row of n. Here each text keeps at least its equal share,
and of what a shorter one leaves the others take what they need.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.finetuning.tasks import Example, Task
from gpt_jax.spec import UsageError

NUM_SPECIAL = 3  # start, delimiter, extract

Tokens = np.ndarray  # int32 [num_tokens]
# A sequence: groups of texts, with a delimiter between two groups.
Groups = list[list[Tokens]]


class Special(NamedTuple):
  """Ids of the tokens that no text has.

  `before` them all stands what the model was trained to see first.
  """

  start: int
  delimiter: int
  extract: int
  before: tuple[int, ...] = ()

  @classmethod
  def after(cls, vocab_size: int, before: tuple[int, ...] = ()) -> 'Special':
    """The rows appended to a table of `vocab_size` tokens."""
    return cls(vocab_size, vocab_size + 1, vocab_size + 2, before)


def sequences(form: str, texts: list[Tokens], num_texts: int) -> list[Groups]:
  """The sequences of an example.

  Args:
    form: a key of `FORMS`.
    texts: of the example.
    num_texts: how many of them are no answers.
  """
  return FORMS[form](texts, num_texts)


def fit(texts: Sequence[Tokens], room: int) -> list[Tokens]:
  """The first tokens of each text, `room` in all.

  A text that is no longer than an equal share stays whole; the others share
  what is left, the first of them the remainder.
  """
  sizes = [len(text) for text in texts]
  order = sorted(range(len(texts)), key=lambda i: sizes[i])
  while order:
    share, more = divmod(room, len(order))
    if sizes[order[0]] > share:
      for place, i in enumerate(sorted(order)):
        sizes[i] = share + (place < more)
      break
    room -= sizes[order.pop(0)]
  return [text[:size] for text, size in zip(texts, sizes, strict=True)]


def joined(groups: Groups, special: Special, length: int) -> tuple[Tokens, int]:
  """A sequence of at most `length` tokens; and how many were cut off."""
  texts = [text for group in groups for text in group]
  room = length - len(groups) - 1 - len(special.before)
  excess = max(sum(map(len, texts)) - room, 0)
  if excess:
    texts = fit(texts, room)
  left = iter(texts)
  out = [[*special.before, special.start]]
  for i, group in enumerate(groups):
    out += [[special.delimiter]] * (i > 0)
    out += [next(left) for _ in group]
  out.append([special.extract])
  return np.concatenate(out).astype(np.int32), excess


def longest(task: Task, tokens: list[list[Tokens]]) -> int:
  """The length of the longest sequence, nothing cut or put before it."""
  if task.form == 'target':
    return max(sum(map(len, texts)) for texts in tokens)
  return max(
    sum(len(text) for group in groups for text in group) + len(groups) + 1
    for texts in tokens
    for groups in sequences(task.form, texts, len(task.texts))
  )


def num_sequences(task: Task, examples: list[Example]) -> int:
  """How many sequences each example is.

  Raises:
    UsageError: the examples differ in their number of answers.
  """
  if task.form != 'choice':
    return 2 if task.form == 'similarity' else 1
  counts = [len(example.texts) - len(task.texts) for example in examples]
  for example, count in zip(examples, counts, strict=True):
    if count != counts[0]:
      raise UsageError(
        f'{example.where}: has {count} answers, others {counts[0]}; give all '
        'the same number'
      )
  return counts[0]


# The forms: texts, and how many of them are no answers, to sequences.
FORMS = {
  'classification': lambda texts, count: [[texts]],
  'entailment': lambda texts, count: [[[text] for text in texts]],
  'similarity': lambda texts, count: [
    [[text] for text in texts],
    [[text] for text in reversed(texts)],
  ],
  'choice': lambda texts, count: [
    [texts[:count], [answer]] for answer in texts[count:]
  ],
}
