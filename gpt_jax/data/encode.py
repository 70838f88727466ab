# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents to ids, by one worker or several: the ids are the same.

One thread reads, and writes in the order that it read; workers encode batches
in between. What is held at a time does not grow with the corpus. Workers are
threads where the tokenizer works outside of Python's lock, which saves starting
processes and sending them the text, and else processes.
"""

import collections
import concurrent.futures
import functools
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpt_jax.data import sentences as sentences_lib
from gpt_jax.data import workers as workers_lib
from gpt_jax.data.holdout import Part
from gpt_jax.data.sources.source import of_source
from gpt_jax.data.tokenizers import tokenizer
from gpt_jax.data.tokenizers.tokenizer import Tokenizer

# Characters that are encoded together: few, so that at the end no worker is
# alone for long.
_BATCH = 1 << 20

# A longer document is encoded in pieces: the whole would take 40 times its size
# in memory. Its tokens are those of the whole where the tokenizer parts texts
# at spaces. Else it is cut after a newline if there is one, and at the cut, but
# nowhere else, tokens may differ from those of the whole.
_LONGEST = 1 << 22

_WORDS = re.compile(r'[^\W_] (?=[^\W_])')

# Batches before processes are started, which takes a second.
_ALONE = 32


class Piece(NamedTuple):
  """A document, or one of the pieces of a long one."""

  part: Part
  text: str
  last: bool  # of its document


class Encoded(NamedTuple):
  """The tokens of a piece.

  Attributes:
    ids: int32 [N].
    eos_id: what ends the document.
    sentence_ends: int64 [S], after which of them sentences end, before the
      document does: see `sentences.in_tokens`.
  """

  ids: np.ndarray
  eos_id: int
  sentence_ends: np.ndarray


class Text(NamedTuple):
  """What is known of a piece where it is encoded.

  Attributes:
    text: of the piece.
    last: see `Piece`.
    of_source: whether its document is the source of a pair.
  """

  text: str
  last: bool
  of_source: bool


def text_of(piece: Piece) -> Text:
  """A piece, without what the workers need not know."""
  return Text(piece.text, piece.last, of_source(piece.part.document.name))


_Texts = Sequence[Text]


def batches(parts: Iterator[Part], made: Tokenizer) -> Iterator[list[Piece]]:
  """Groups documents to about `_BATCH` characters."""
  batch, size = [], 0
  for part in parts:
    for piece in pieces(part, made):
      batch.append(piece)
      size += len(piece.text)
      if size >= _BATCH:
        yield batch
        batch, size = [], 0
  if batch:
    yield batch


def encoded(
  pieces: Iterator[list[Piece]],
  made: Tokenizer,
  workers: int,
  sentences: str = 'none',
) -> Iterator[tuple[list[Piece], list[Encoded]]]:
  """Yields each batch with the tokens of its pieces, in order.

  Args:
    pieces: of `batches`.
    made: encodes them.
    workers: threads or processes.
    sentences: `data.sentences`.
  """
  here = functools.partial(encode_texts, made, sentences)
  if made.in_threads:
    threads = concurrent.futures.ThreadPoolExecutor(workers)
    yield from _in_order(threads, here, pieces, workers)
    return
  alone = None if workers == 1 else _ALONE
  for batch in itertools.islice(pieces, alone):
    yield batch, here([*map(text_of, batch)])
  first = next(pieces, None)
  if first is None:
    return
  with tempfile.TemporaryDirectory() as folder:
    made.save(folder)
    processes = workers_lib.pool(workers, _start_worker, folder)
    pieces = itertools.chain([first], pieces)
    there = functools.partial(_encode, sentences)
    yield from _in_order(processes, there, pieces, workers)


def encode_texts(
  made: Tokenizer, sentences: str, texts: _Texts
) -> list[Encoded]:
  """The tokens of some pieces."""
  split = sentences_lib.splitter(sentences)
  found: list[Encoded | None] = [None] * len(texts)
  for own, sources in ((made, False), (tokenizer.of_sources(made), True)):
    numbers = [i for i, one in enumerate(texts) if one.of_source == sources]
    if not numbers:
      continue
    all_ids = own.encode_batch([texts[i].text for i in numbers])
    for i, ids in zip(numbers, all_ids, strict=True):
      text, last, _ = texts[i]
      ends = np.empty(0, np.int64)
      if split:
        ends = sentences_lib.in_tokens(split, text, own.offsets(text), last)
      found[i] = Encoded(ids, own.eos_id, ends)
  return [one for one in found if one is not None]


def _in_order(
  pool: concurrent.futures.Executor,
  encode: Callable[[_Texts], list[Encoded]],
  pieces: Iterator[list[Piece]],
  workers: int,
) -> Iterator[tuple[list[Piece], list[Encoded]]]:
  """Lets the workers of `pool` be a few batches ahead, and ends them."""
  waiting = collections.deque()
  try:
    for batch in pieces:
      waiting.append((batch, pool.submit(encode, [*map(text_of, batch)])))
      if len(waiting) > 2 * workers:
        batch, found = waiting.popleft()
        yield batch, found.result()
    while waiting:
      batch, found = waiting.popleft()
      yield batch, found.result()
  finally:
    pool.shutdown(cancel_futures=True)


def pieces(part: Part, made: Tokenizer) -> Iterator[Piece]:
  """Cuts a long document for `made`."""
  text, start = part.document.text, 0
  while len(text) - start > _LONGEST:
    if made.parts_at_spaces:
      stop = _space(text, start, start + _LONGEST)
      if stop is None:
        break
      following = stop + 1  # the space, which the tokenizer puts there again
    else:
      cut = text.rfind('\n', start, start + _LONGEST) + 1
      stop = following = cut or start + _LONGEST
    yield Piece(part, text[start:stop], False)
    start = following
  yield Piece(part, text[start:], True)


def _space(text: str, start: int, stop: int) -> int | None:
  """The last space between two words of [start, stop), or the next after it.

  Next to letters and digits: of several spaces, and of what belongs to a space
  such as an accent without a letter, tokenizers make other tokens.
  """
  found = stop
  while (found := text.rfind(' ', start + 1, found)) > 0:
    if text[found - 1].isalnum() and text[found + 1].isalnum():
      return found
  following = _WORDS.search(text, stop - 1)
  return following.start() + 1 if following else None


_tokenizer: Tokenizer  # of a worker


def _start_worker(folder: str):
  global _tokenizer
  # Each worker has one core; `tokenizers` would start a thread for each.
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  _tokenizer = tokenizer.load(folder)


def _encode(sentences: str, texts: _Texts) -> list[Encoded]:
  return encode_texts(_tokenizer, sentences, texts)
