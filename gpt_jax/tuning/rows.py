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

ELMo has </s> in place of [CLS] and [SEP], since its texts all ended so.

The encoder of an encoder-decoder reads one text or two, each by itself and with
the end of document after it, as it reads sources (CoVe).

RoBERTa has <s> first, and </s> twice between two texts. XLNet (section A.3) has
[CLS] at the end: A [SEP] B [SEP] [CLS]. The released code pads on the left, so
that [CLS] is in the last position; here padding is on the right, as elsewhere,
and [CLS] is found by the length. With relative positions these are equivalent.

In a row that is too long only texts are cut, never the tokens around them.
GPT-1 does not describe this; its released code gives each of two texts the
first n/2 - 2 tokens of a row of n. Here each text keeps at least an equal
share, and what shorter texts leave goes to the others: of two texts the longer
one is cut, as in BERT's released code.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special as tokenizer_special
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.tasks.metrics import OUTSIDE
from gpt_jax.tasks.reading import SpanOptions
from gpt_jax.tasks.task import Example, Task

Tokens = np.ndarray
# A sequence: groups of texts, with a delimiter between groups.
Groups = list[list[Tokens]]
# Number of GPT-1's new tokens.
NUM_SPECIAL = 3


class Frame(NamedTuple):
  """The special tokens around texts.

  Attributes:
    start: ids before the first text.
    delimiter: ids between two groups.
    end: ids after the last text.
    forms: how texts form sequences: a key of `FORMS`.
    pad: id that pads rows.
  """

  start: tuple[int, ...]
  delimiter: tuple[int, ...]
  end: tuple[int, ...]
  forms: str = 'extract'
  pad: int = 0

  @classmethod
  def after(cls, vocab_size: int, before: tuple[int, ...] = ()) -> 'Frame':
    """GPT-1's frame: the rows appended to a table of `vocab_size` tokens.

    `before` are ids that precede every text in pre-training.
    """
    start, delimiter, extract = range(vocab_size, vocab_size + NUM_SPECIAL)
    return cls((*before, start), (delimiter,), (extract,))

  @classmethod
  def of_encoder(
    cls, found: tokenizer_special.Special, forms: str = 'first', *, optional: bool = False
  ) -> 'Frame':
    """The frame of BERT or RoBERTa; with `forms='last'` of XLNet.

    With `optional` there are no tokens around a text if the tokenizer has none.
    """
    first, end = found.cls_id, found.sep_id
    if first is None or end is None:
      if optional:
        return cls((), (), (), forms, found.pad_id)
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

  @classmethod
  def of_words(cls, found: tokenizer_special.Special) -> 'Frame':
    """The frame of ELMo: the end of a text before and after each."""
    end = (found.eos_id,)
    return cls(end, end, end, 'concat', found.pad_id)

  def around(self, groups: int) -> int:
    """Number of special tokens around this many groups of texts."""
    between = (groups - 1) * len(self.delimiter)
    return len(self.start) + between + len(self.end)


class Joined(NamedTuple):
  """A sequence of texts and special tokens.

  Attributes:
    ids: all tokens.
    second: where the second group begins; the sequence's length if there is
      none.
    excess: number of tokens that were cut off.
  """

  ids: Tokens
  second: int
  excess: int


def sequences(task: Task, texts: list[Tokens], special: Frame) -> list[Groups]:
  """The sequences of an example with these texts."""
  return FORMS[special.forms][task.form](texts, len(task.texts))


def fit(texts: Sequence[Tokens], room: int) -> list[Tokens]:
  """The first tokens of each text, at most `room` in total.

  A text no longer than an equal share is kept whole; the others share the rest
  equally, and the first of them get the remainder.
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


def joined(groups: Groups, special: Frame, length: int) -> Joined:
  """Joins groups of texts to a sequence of at most `length` tokens."""
  texts = [text for group in groups for text in group]
  room = length - special.around(len(groups))
  excess = max(sum(map(len, texts)) - room, 0)
  if excess:
    texts = fit(texts, room)
  left = iter(texts)
  parts = [np.concatenate([next(left) for _ in group]).astype(np.int32) for group in groups]
  out = [np.array(special.start, np.int32), parts[0]]
  for part in parts[1:]:
    out += [np.array(special.delimiter, np.int32), part]
  out.append(np.array(special.end, np.int32))
  ids = np.concatenate(out)
  second = len(ids) if len(parts) == 1 else sum(map(len, out[:3]))
  return Joined(ids, second, excess)


def longest(task: Task, tokens: list[list[Tokens]], special: Frame) -> int:
  """The length of the longest uncut sequence."""
  return max(
    sum(len(text) for group in groups for text in group) + special.around(len(groups))
    for texts in tokens
    for groups in sequences(task, texts, special)
  )


def num_sequences(task: Task, examples: list[Example], forms: str) -> int:
  """Number of sequences per example; `forms` is a key of `FORMS`."""
  if task.form != 'choice':
    if forms == 'apart':
      return len(task.texts)
    return 2 if (task.form, forms) == ('similarity', 'extract') else 1
  counts = [len(example.texts) - len(task.texts) for example in examples]
  for example, count in zip(examples, counts, strict=True):
    if count != counts[0]:
      raise UsageError(
        f'{example.where}: has {count} answers, others {counts[0]}; give all the same number'
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
# Form of a task -> (texts, number of texts before the answers) -> sequences.
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
    'choice': lambda texts, count: [[texts[:count], [answer]] for answer in texts[count:]],
  },
  'concat': _ENCODERS,
  'apart': dict.fromkeys(
    ('classification', 'entailment', 'similarity'),
    lambda texts, count: [[[text]] for text in texts],
  ),
  'first': _ENCODERS,
  'last': _ENCODERS,
}


# Rows of a split: arrays of tokens and labels.


class TaskRows(NamedTuple):
  """The examples of a split as arrays: N examples of C sequences each.

  Attributes:
    inputs: int32 [N, C, L], padded with `Frame.pad`.
    lengths: int32 [N, C], tokens of each sequence, a final extract token
      included. For prompts with targets [N, 2]: begin and end of the target.
    labels: float32 or int32 [N]; zeros if unknown. For spans [N, 2], positions
      of first and last token. For tags [N, L].
    cut: number of examples that were too long.
    second: int32 [N, C], where the second text begins; None if the head does
      not use it.
    origins: for spans and tags, what maps each row's outputs to its text: a
      `Window`, or the positions of its words.
  """

  inputs: np.ndarray
  lengths: np.ndarray
  labels: np.ndarray
  cut: int
  second: np.ndarray | None = None
  origins: Sequence[Any] = ()

  def __len__(self) -> int:
    """Number of rows, N."""
    return len(self.inputs)


def encode(
  examples: list[Example], tokenizer: Tokenizer, *, backward: bool = False
) -> list[list[Tokens]]:
  """The tokens of each text of each example, in the order of reading.

  A tokenizer of two sides encodes as sources; `backward`: from right to left.
  """
  texts = [text for example in examples for text in example.texts]
  tokenizer = tokenizer.sources
  try:
    ids = tokenizer.encode_batch(texts)
  except UsageError:
    for example in examples:
      for text in example.texts:
        try:
          tokenizer.encode(text)
        except UsageError as e:
          raise UsageError(f'{example.where}: {e}') from e
    raise
  step = -1 if backward else 1
  left = iter(ids)
  return [[next(left)[::step] for _ in one.texts] for one in examples]


class EncodedExamples(NamedTuple):
  """The examples of a split as tokens, and how they become rows.

  Attributes:
    examples: for their labels, and their origin in error messages.
    tokens: of their texts, from `encode`.
    tokenizer: made the tokens.
    special: the tokens around texts.
    length: tokens of a row.
    too_long: 'cut' or 'refuse'.
  """

  task: Task
  examples: list[Example]
  tokens: list[list[Tokens]]
  tokenizer: Tokenizer
  special: Frame
  length: int
  too_long: str = 'cut'

  def joined(self, groups: Groups) -> Joined:
    """Groups of texts as a sequence that fits a row."""
    return joined(groups, self.special, self.length)

  def is_cut(self, example: Example, excess: int) -> bool:
    """Whether an example has too many tokens; refused if `too_long` says so."""
    if excess and self.too_long == 'refuse':
      raise UsageError(
        f'{example.where}: is {excess} tokens longer than finetune.length='
        f'{self.length}; raise it, shorten the text, or give '
        "finetune.too_long='cut'"
      )
    return excess > 0

  def filled(self, found: list[Tokens]) -> np.ndarray:
    """Sequences as padded rows, int32 [N, 1, length]."""
    rows = np.full((len(found), 1, self.length), self.special.pad, np.int32)
    for row, ids in zip(rows, found, strict=True):
      row[0, : len(ids)] = ids
    return rows


def head_rows(split: EncodedExamples) -> TaskRows:
  """The rows of a split, for a head."""
  examples, cut = [], 0
  for example, texts in zip(split.examples, split.tokens, strict=True):
    groups = sequences(split.task, texts, split.special)
    parts = [split.joined(group) for group in groups]
    cut += split.is_cut(example, max(part.excess for part in parts))
    examples.append(parts)
  inputs = split.filled([p.ids for parts in examples for p in parts])
  shape = (len(examples), len(examples[0]))
  lengths = np.array([[len(p.ids) for p in parts] for parts in examples], np.int32)
  second = None
  if split.special.forms not in ('extract', 'apart'):
    second = np.array([[p.second for p in parts] for parts in examples], np.int32)
  dtype = np.float32 if split.task.regression else np.int32
  labels = np.array([example.label or 0 for example in split.examples], dtype)
  return TaskRows(inputs.reshape(*shape, -1), lengths, labels, cut, second)


def target_rows(split: EncodedExamples) -> TaskRows:
  """The rows of prompts and targets: prompt, target, end of document.

  A prompt follows the token that begins every text of the model, such as
  LLaMA's `<s>`. A prompt that is too long loses its first tokens; a target is
  never cut. A row has `length` targets, and one token more.
  """
  length, tokenizer = split.length, split.tokenizer
  eos_id, special = tokenizer.eos_id, tokenizer.special
  token_rows, bounds, cut = [], [], 0
  each = zip(split.examples, split.tokens, strict=True)
  for example, (prompt, target) in each:
    if not len(target):
      raise UsageError(f'{example.where}: the target is empty; fix the line')
    # One of the length + 1 tokens is the end of document.
    room = length - len(target) - len(special.prompt_start)
    excess = max(len(prompt) - room, 0)
    if room < 1 or (excess and split.too_long == 'refuse'):
      raise UsageError(
        f'{example.where}: prompt and target are {len(prompt)} and '
        f'{len(target)} tokens, which do not fit finetune.length={length}; '
        'raise it or shorten them (a target is never cut)'
      )
    cut += excess > 0
    start = special.prompt(prompt[excess:])
    token_rows.append(np.concatenate([start, target, [eos_id]]))
    bounds.append((len(start), len(token_rows[-1])))
  inputs = np.full((len(token_rows), 1, length + 1), special.pad_id, np.int32)
  for n, row in enumerate(token_rows):
    inputs[n, 0, : len(row)] = row
  labels = np.zeros(len(token_rows), np.int32)
  return TaskRows(inputs, np.array(bounds, np.int32), labels, cut)


# Answers that are spans of a text: SQuAD as BERT does it (section 4.2).
#
# A text longer than a row is read in overlapping windows. In each window every
# token gets scores as the first and as the last of the answer; for a token in
# several windows, the one with the most context around it counts, as in the
# released code. The answer is the best span of all windows. If questions can
# have no answer, the first token of a row represents that (section 4.3): it
# wins if it scores more than the best span by over `null_threshold`.


class Window(NamedTuple):
  """A row's window of n tokens of a context.

  Attributes:
    example: number of the example.
    place: position of the window's first token in the row.
    bounds: [n, 2], character range of each token.
    most: [n], whether no other window has more context around the token.
  """

  example: int
  place: int
  bounds: np.ndarray
  most: np.ndarray


def span_rows(split: EncodedExamples) -> TaskRows:
  """The windows of all examples, in order."""
  options: SpanOptions = split.task.options
  length, tokenizer = split.length, split.tokenizer
  joined_rows, labels, origins, cut = [], [], [], 0
  for number, one in enumerate(split.examples):
    question, context = (tokenizer.encode(text) for text in one.texts)
    bounds = tokenizer.offsets(one.texts[1])
    cut += split.is_cut(one, max(len(question) - options.question, 0))
    question = question[: options.question]
    room = length - split.special.around(2) - len(question)
    if room < 1:
      raise UsageError(
        f'{one.where}: a question of {len(question)} tokens leaves no room for '
        f'the text in finetune.length={length}; raise it'
      )
    windows = _windows(len(context), room, options.stride)
    for window, most in zip(windows, _most(windows, len(context)), strict=True):
      part = context[window.start : window.stop]
      row = split.joined([[question], [part]])
      joined_rows.append(row)
      inside = slice(window.start, window.stop)
      origin = Window(number, row.second, bounds[inside], most[inside])
      labels.append(_label(one, origin))
      origins.append(origin)
  second = np.array([[row.second] for row in joined_rows], np.int32)
  return TaskRows(
    split.filled([row.ids for row in joined_rows]),
    np.array([[len(row.ids)] for row in joined_rows], np.int32),
    np.array(labels, np.int32),
    cut,
    second if split.special.forms != 'extract' else None,
    origins,
  )


def _windows(count: int, room: int, stride: int) -> list[range]:
  """Windows of `count` tokens: at most `room` each, `stride` apart."""
  windows = [range(min(room, count))]
  while windows[-1].stop < count:
    start = windows[-1].start + min(room, stride)
    windows.append(range(start, min(start + room, count)))
  return windows


def _most(windows: list[range], count: int) -> np.ndarray:
  """In which window each token has most context, bool [windows, tokens].

  Context is the smaller of the numbers of tokens before and after it, plus a
  hundredth of the window's length; ties go to the first window.
  """
  scores = np.full((len(windows), count), -np.inf)
  for score, window in zip(scores, windows, strict=True):
    inside = np.arange(len(window))
    least = np.minimum(inside, inside[::-1])
    score[window.start : window.stop] = least + 0.01 * len(window)
  return np.arange(len(windows))[:, None] == np.argmax(scores, axis=0)[None]


def _label(one: Example, window: Window) -> tuple[int, int]:
  """Positions of the answer's first and last token; 0 if it is not there."""
  answer: Any = one.label
  if answer is None or answer.start < 0:
    return 0, 0
  stop = answer.start + len(answer.texts[0])
  starts, stops = window.bounds.T
  inside = np.flatnonzero((stops > answer.start) & (starts < stop))
  # A window with only a part of the answer counts as having none.
  if not len(inside) or starts[inside[0]] > answer.start:
    return 0, 0
  if stops[inside[-1]] < stop:
    return 0, 0
  return window.place + int(inside[0]), window.place + int(inside[-1])


def found_spans(
  options: SpanOptions, examples: Sequence[Example], windows: Sequence[Window], raw: np.ndarray
) -> list[str]:
  """The answer to each question; '' if there is none.

  Args:
    windows: all windows of all examples, in order.
    raw: [windows, 2 L], each token's scores as first, then as last token.
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


def _best(window: Window, start: np.ndarray, end: np.ndarray, most: int) -> tuple[float, int, int]:
  """Best score of a span of up to `most` tokens, and its first and last."""
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


# A tag for each word: CoNLL's named entities as BERT does them (section 5.3).
#
# The first token of each word predicts its tag; the others are not scored.
# Words that were cut off, or that the tokenizer drops, have no token, and count
# as `O`.


# The label of tokens that predict no tag.
IGNORED = -100


def tag_rows(split: EncodedExamples) -> TaskRows:
  """A row for each sentence.

  `origins` are int [words], the position of each word's first token, or -1.
  """
  each_ids, origins, cut = [], [], 0
  special, size = split.special, (len(split.examples), split.length)
  labels = np.full(size, IGNORED, np.int32)
  each = zip(labels, split.examples, split.tokens, strict=True)
  for row, one, (ids,) in each:
    sequence = split.joined([[ids]])
    cut += split.is_cut(one, sequence.excess)
    each_ids.append(sequence.ids)
    first = _first_tokens(one.texts[0], split.tokenizer)
    places = np.where(first < len(ids) - sequence.excess, first, -1)
    places = np.where(places >= 0, places + len(special.start), -1)
    origins.append(places)
    if one.label is not None:
      tags = np.array(one.label, np.int32)
      row[places[places >= 0]] = tags[places >= 0]
  lengths = np.array([[len(ids)] for ids in each_ids], np.int32)
  second = lengths if special.forms != 'extract' else None
  return TaskRows(split.filled(each_ids), lengths, labels, cut, second, origins)


def _first_tokens(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """Each word's first token, int [words]; -1 if it has none."""
  words = text.split(' ')
  stops = np.cumsum([len(word) + 1 for word in words]) - 1
  starts, ends = tokenizer.offsets(text).T
  # A token that begins with a space belongs to the word where it ends. A token
  # of no characters belongs to no word.
  word = np.searchsorted(stops, np.maximum(ends - 1, 0))
  word = np.where((ends > starts) & (word < len(words)), word, -1)
  # A token of white space alone precedes a word; it is not part of it.
  alone = [not text[a:b].strip() for a, b in zip(starts, ends, strict=True)]
  word = np.where(alone, -1, word)
  first = np.full(len(words), -1)
  for token in range(len(word) - 1, -1, -1):
    if word[token] >= 0:
      first[word[token]] = token
  return first


def found_tags(task: Task, places: Sequence[np.ndarray], raw: np.ndarray) -> list[np.ndarray]:
  """The predicted tags of all words, by number.

  Args:
    task: has the `labels`.
    places: `origins` of the rows.
    raw: [N, L K], the scores of each token for each tag.
  """
  classes = len(task.labels)
  best = np.argmax(raw.reshape(len(raw), -1, classes), axis=2)
  outside = task.labels.index(OUTSIDE) if OUTSIDE in task.labels else 0
  return [
    np.where(where >= 0, tags[np.maximum(where, 0)], outside)
    for where, tags in zip(places, best, strict=True)
  ]


def tag_names(task: Task, numbers: Any) -> list[str]:
  """The names of a sentence's tags."""
  return [task.labels[i] for i in numbers]
