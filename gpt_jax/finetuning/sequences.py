# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From texts to sequences of tokens: the papers' input forms.

GPT-1, section 3.3 and figure 1, with start s, delimiter $ and extract e, whose
vectors are new, for decoders:

  classification   s text e
  entailment       s premise $ hypothesis e
  similarity       s first $ second e  and  s second $ first e
  choice           s context $ answer e  for each answer

BERT, section 3 and figure 4, with the tokens that it was pre-trained with, for
encoders:

  classification   [CLS] text [SEP]
  two texts        [CLS] A [SEP] B [SEP], in one order, as each token sees all
  choice           [CLS] A [SEP] B answer [SEP]  for each answer; with one text
                   before the answers B is the answer

RoBERTa's are <s>, and </s> twice between two texts. XLNet's (section A.3) have
[CLS] at the end: A [SEP] B [SEP] [CLS]. The released code pads them on the
left, so that the last place is [CLS]; here, as elsewhere, on the right, and
[CLS] is found by the length: where tokens know distances alone, that is the
same.

What is too long keeps its ends: the tokens around texts are never cut. GPT-1
does not say how its texts are; its released code gives each of two texts the
first n/2 - 2 tokens of a row of n. Here each text keeps at least its equal
share, and of what a shorter one leaves the others take what they need: of two
texts the longer one is cut, as in BERT's released code.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.spec import UsageError
from gpt_jax.tasks.task import Example, Task
from gpt_jax.tokenizers import special as tokenizer_special

Tokens = np.ndarray
# A sequence: groups of texts, with a delimiter between two groups.
Groups = list[list[Tokens]]
# GPT-1's new tokens.
NUM_SPECIAL = 3


class Special(NamedTuple):
  """What stands around texts.

  Attributes:
    start: before the first.
    delimiter: between two groups.
    end: after the last.
    forms: the sequences of each form of task: a key of `FORMS`.
    pad: fills up rows.
  """

  start: tuple[int, ...]
  delimiter: tuple[int, ...]
  end: tuple[int, ...]
  forms: str = 'extract'
  pad: int = 0

  @classmethod
  def after(cls, vocab_size: int, before: tuple[int, ...] = ()) -> 'Special':
    """GPT-1's: rows appended to a table of `vocab_size` tokens.

    `before` them all stands what the model was trained to see first.
    """
    start, delimiter, extract = range(vocab_size, vocab_size + NUM_SPECIAL)
    return cls((*before, start), (delimiter,), (extract,))

  @classmethod
  def of_encoder(
    cls, found: tokenizer_special.Special, forms: str = 'first'
  ) -> 'Special':
    """BERT's, of a tokenizer, or RoBERTa's; with `forms='last'` XLNet's."""
    first, end = found.cls_id, found.sep_id
    if first is None or end is None:
      missing = '[CLS]' if first is None else '[SEP]'
      raise UsageError(
        f'--init: the tokenizer has no {missing}, which an encoder reads texts '
        "with; take a model whose tokenizer has, such as 'wordpiece(...)'"
      )
    if forms == 'last':
      return cls((), (end,), (end, first), forms, found.pad_id)
    twice = found.names.get('<s>') == first
    between = (end,) * (2 if twice else 1)
    return cls((first,), between, (end,), forms, found.pad_id)

  def around(self, groups: int) -> int:
    """How many tokens stand around so many groups of texts."""
    between = (groups - 1) * len(self.delimiter)
    return len(self.start) + between + len(self.end)


class Joined(NamedTuple):
  """A sequence.

  Attributes:
    ids: its tokens.
    second: where the second group begins; its length if there is none.
    excess: how many tokens were cut off.
  """

  ids: Tokens
  second: int
  excess: int


def sequences(
  task: Task, texts: list[Tokens], special: Special
) -> list[Groups]:
  """The sequences of an example of these texts."""
  return FORMS[special.forms][task.form](texts, len(task.texts))


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


def joined(groups: Groups, special: Special, length: int) -> Joined:
  """A sequence of at most `length` tokens."""
  texts = [text for group in groups for text in group]
  room = length - special.around(len(groups))
  excess = max(sum(map(len, texts)) - room, 0)
  if excess:
    texts = fit(texts, room)
  left = iter(texts)
  parts = [
    np.concatenate([next(left) for _ in group]).astype(np.int32)
    for group in groups
  ]
  out = [np.array(special.start, np.int32), parts[0]]
  for part in parts[1:]:
    out += [np.array(special.delimiter, np.int32), part]
  out.append(np.array(special.end, np.int32))
  ids = np.concatenate(out)
  second = len(ids) if len(parts) == 1 else sum(map(len, out[:3]))
  return Joined(ids, second, excess)


def longest(task: Task, tokens: list[list[Tokens]], special: Special) -> int:
  """The length of the longest sequence, nothing cut."""
  return max(
    sum(len(text) for group in groups for text in group)
    + special.around(len(groups))
    for texts in tokens
    for groups in sequences(task, texts, special)
  )


def num_sequences(task: Task, examples: list[Example], forms: str) -> int:
  """How many sequences each example is, by a key of `FORMS`."""
  if task.form != 'choice':
    return 2 if (task.form, forms) == ('similarity', 'extract') else 1
  counts = [len(example.texts) - len(task.texts) for example in examples]
  for example, count in zip(examples, counts, strict=True):
    if count != counts[0]:
      raise UsageError(
        f'{example.where}: has {count} answers, others {counts[0]}; give all '
        'the same number'
      )
  return counts[0]


def _pair(texts: list[Tokens], count: int) -> list[Groups]:
  return [[[text] for text in texts]]


_BOTH = {
  'classification': lambda texts, count: [[texts]],
  'entailment': _pair,
  'spans': _pair,
  'tags': lambda texts, count: [[texts]],
}
# By what reads them, the forms: texts, and how many of them are no answers, to
# sequences.
_ENCODERS = {
  **_BOTH,
  'similarity': _pair,
  'choice': lambda texts, count: [
    [texts[:1], [*texts[1:count], answer]] for answer in texts[count:]
  ],
}
FORMS = {
  'extract': {
    **_BOTH,
    'similarity': lambda texts, count: [
      [[text] for text in texts],
      [[text] for text in reversed(texts)],
    ],
    'choice': lambda texts, count: [
      [texts[:count], [answer]] for answer in texts[count:]
    ],
  },
  'first': _ENCODERS,
  'last': _ENCODERS,
}
