# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents to ids, and ids to the arrays of a split.

One thread reads, and writes in the order that it read; workers encode batches
in between. Memory does not grow with the corpus, and ids do not depend on the
number of workers. Workers are threads where the tokenizer releases Python's
lock, which saves starting processes and sending them the text; else processes.
"""

import concurrent.futures
import functools
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.files import workers as workers_lib
from gpt_jax.files.document import of_source
from gpt_jax.text import sentences as sentences_lib
from gpt_jax.text.holdout import Part
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import store
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import ArrayWriter, Waiting, Written

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
  """The tokens of a piece."""

  ids: np.ndarray  # int32 [N]
  eos_id: int  # ends the document
  sentence_ends: np.ndarray  # int64 [S], see `sentences.in_tokens`


class Text(NamedTuple):
  """What a worker is sent of a piece."""

  text: str
  last: bool
  of_source: bool  # its document is the source of a pair


def text_of(piece: Piece) -> Text:
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
  """Yields each batch of `pieces` with their tokens, in order."""
  here = functools.partial(encode_texts, made, sentences)
  if made.in_threads:
    threads = concurrent.futures.ThreadPoolExecutor(workers)
    yield from _in_pool(threads, here, pieces, workers)
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
    yield from _in_pool(processes, there, pieces, workers)


def _in_pool(
  pool: concurrent.futures.Executor,
  encode: Callable[[_Texts], list[Encoded]],
  batches: Iterator[list[Piece]],
  workers: int,
) -> Iterator[tuple[list[Piece], list[Encoded]]]:
  """Encodes in `pool`, and shuts it down."""
  try:
    yield from workers_lib.in_order(
      ((b, pool.submit(encode, [*map(text_of, b)])) for b in batches),
      2 * workers,
    )
  finally:
    pool.shutdown(cancel_futures=True)


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


class Settings(NamedTuple):
  """The config fields that a token store depends on."""

  source: str
  holdout: str
  tokenizer: str
  clean: str
  compression: str
  sentences: str


class SplitWriter:
  """Writes one split and counts what is in it."""

  def __init__(
    self,
    folder: str,
    made: Tokenizer,
    name: str,
    state: dict[str, np.ndarray] | None,
    settings: Settings,
  ):
    """Begins, or goes on from the entries `name` of `state`.

    Args:
      folder: a path or a URL.
      made: the tokenizer that encodes the documents.
      name: prefix of the split's entries in `state`.
      state: left by an earlier process; `ValueError` if its arrays are gone.
      settings: its `compression` and `sentences` are read.
    """
    self.num_bytes = self._num_tokens = 0
    self._parts: dict[str, int] = {}
    self._made = made
    self._dtype = store.token_dtype(tokenizer.num_ids(made))
    dtypes = {
      store.TOKENS: self._dtype,
      store.DOCUMENT_ENDS: 'int64',
    }
    if sentences_lib.splitter(settings.sentences):
      dtypes[store.SENTENCE_ENDS] = 'int64'
    waiting: dict[str, Waiting | None] = dict.fromkeys(dtypes)
    if state is not None:
      counts = json.loads(bytes(state[name]))
      self.num_bytes = counts['num_bytes']
      self._num_tokens = counts['num_tokens']
      self._parts = counts['parts']
      for array in dtypes:
        length, crc32 = counts[array]
        values = state[f'{name}/{array}']
        waiting[array] = Waiting(length, crc32, values)
    self._arrays = {
      array: ArrayWriter(
        folder, array, dtype, waiting[array], settings.compression
      )
      for array, dtype in dtypes.items()
    }

  @property
  def on_disk(self) -> int:
    """Tokens that are written."""
    return self._arrays[store.TOKENS].length

  def add(self, pieces: list[tuple[Encoded, bool, str]]):
    """Appends pieces of documents, and eos after the last of one.

    Args:
      pieces: their tokens, `Piece.last`, and the source within a mixture.
    """
    parts, ends, sentence_ends = [], [], []
    for (ids, eos_id, inner), last, source in pieces:
      parts += [ids, np.array([eos_id], np.int32)] if last else [ids]
      sentence_ends.append(self._num_tokens + inner)
      self._num_tokens += len(ids) + last
      if last:
        ends.append(self._num_tokens)
        sentence_ends.append(ends[-1:])
        if source:
          self._parts[source] = self._num_tokens
    if parts:
      self._arrays[store.TOKENS].add(np.concatenate(parts))
      self._arrays[store.DOCUMENT_ENDS].add(np.array(ends, np.int64))
      if store.SENTENCE_ENDS in self._arrays:
        self._arrays[store.SENTENCE_ENDS].add(np.concatenate(sentence_ends))

  def state(self, name: str) -> dict[str, np.ndarray]:
    """What `__init__` goes on from."""
    counts: dict[str, Any] = {
      'num_bytes': self.num_bytes,
      'num_tokens': self._num_tokens,
      'parts': self._parts,
    }
    entries = {}
    for array, writer in self._arrays.items():
      waiting = writer.waiting()
      counts[array] = [waiting.length, waiting.crc32]
      entries[f'{name}/{array}'] = waiting.values
    return entries | {name: as_bytes(counts)}

  def finish(
    self, settings: Settings, source_sha256: str, notes: dict[str, Any]
  ) -> Manifest:
    """Writes what is left; `notes` are further entries of the manifest."""
    return manifest_of(
      settings,
      self._made,
      {name: array.close() for name, array in self._arrays.items()},
      source_sha256=source_sha256,
      num_bytes=self.num_bytes,
      parts=self._parts,
      **notes,
    )


def manifest_of(
  settings: Settings, made: Tokenizer, arrays: Mapping[str, Written], **more
) -> Manifest:
  """The manifest of a split that `made` encoded; `more` are other entries."""
  found = {
    name: arrays.get(name, Written(0, []))
    for name in (store.TOKENS, store.DOCUMENT_ENDS, store.SENTENCE_ENDS)
  }
  return Manifest(
    **settings._asdict(),
    tokenizer_fingerprint=made.fingerprint,
    vocab_size=made.vocab_size,
    eos_id=made.eos_id,
    dtype=store.token_dtype(tokenizer.num_ids(made)),
    num_tokens=found[store.TOKENS].length,
    num_documents=found[store.DOCUMENT_ENDS].length,
    num_sentences=found[store.SENTENCE_ENDS].length,
    **{f'{name}_crc32': array.crc32 for name, array in found.items()},
    **more,
  )


def as_bytes(entries: Any) -> np.ndarray:
  """JSON, as an entry of an npz file."""
  return np.frombuffer(json.dumps(entries).encode(), np.uint8)
