# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Documents to ids, and ids to the arrays of a split.

One thread reads, and writes in the same order; workers encode batches in
between. Memory does not grow with the corpus, and ids do not depend on the
number of workers. Workers are threads if the tokenizer releases Python's lock,
which saves starting processes and sending them the text; else processes.
"""

import concurrent.futures
import functools
import itertools
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.files import files, progress
from gpt_jax.files import workers as workers_lib
from gpt_jax.files.document import Document, of_source
from gpt_jax.text import sentences as sentences_lib
from gpt_jax.text.holdout import Part, Split
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import duplicates, store
from gpt_jax.tokens.duplicates import Copies
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import ArrayWriter, Written

# Characters that are encoded together: few, so that at the end no single worker
# is busy for long.
_BATCH = 1 << 20

# A longer document is encoded in pieces: as a whole it would take 40 times its
# size in memory. If the tokenizer parts texts at spaces, the tokens are those
# of the whole. Else the document is cut after a newline if there is one, and
# tokens may differ from those of the whole, but only at the cut.
_LONGEST = 1 << 22

_WORDS = re.compile(r'[^\W_] (?=[^\W_])')

# Batches encoded here before processes are started, which takes a second.
_ALONE = 32

log = logging.getLogger('gpt_jax')


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
  """The part of a piece that is sent to a worker."""

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
  """The tokens of pieces."""
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
  """Cuts a long document into pieces that the tokenizer can encode."""
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

  Between letters or digits: tokenizers treat several spaces, or a space with an
  accent on it, in other ways.
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


class SplitArrays:
  """Joins the tokens of documents to the arrays of one split.

  Attributes:
    lengths: elements of each array that were taken.
    num_bytes: of the documents, in UTF-8.
    parts: source within a mixture -> after its last token.
  """

  def __init__(
    self,
    sentences: str,
    in_mixture: bool,
    counts: dict[str, Any] | None = None,
  ):
    """Begins, or resumes from `counts`.

    Args:
      sentences: `data.sentences`.
      in_mixture: whether names of documents begin with their source.
    """
    names = [store.TOKENS, store.DOCUMENT_ENDS]
    if sentences_lib.splitter(sentences):
      names.append(store.SENTENCE_ENDS)
    self._in_mixture = in_mixture
    self.lengths, self.num_bytes = dict.fromkeys(names, 0), 0
    self.parts: dict[str, int] = {}
    if counts is not None:
      self.lengths, self.num_bytes = counts['lengths'], counts['num_bytes']
      self.parts = counts['parts']
    self._num_tokens = self.lengths[store.TOKENS]  # with those not taken yet
    self._ids: list[np.ndarray] = []
    self._ends: list[int] = []
    self._sentence_ends: list[np.ndarray] = []

  @property
  def counts(self) -> dict[str, Any]:
    """The counts from which `__init__` resumes, as JSON."""
    names = ('lengths', 'num_bytes', 'parts')
    return {name: getattr(self, name) for name in names}

  def add(self, piece: Piece, tokens: Encoded):
    """Appends a piece of a document, and eos after the last one."""
    self._ids.append(tokens.ids)
    if len(tokens.sentence_ends):
      self._sentence_ends.append(self._num_tokens + tokens.sentence_ends)
    self._num_tokens += len(tokens.ids) + piece.last
    if piece.last:
      self._ids.append(np.array([tokens.eos_id], np.int32))
      self._ends.append(self._num_tokens)
      if store.SENTENCE_ENDS in self.lengths:
        self._sentence_ends.append(np.array(self._ends[-1:]))
      if self._in_mixture:
        source = piece.part.document.name.partition('/')[0]
        self.parts[source] = self._num_tokens

  def take(self) -> dict[str, np.ndarray]:
    """The values added since the last call, of arrays that have any."""
    taken = {}
    if self._ids:
      taken[store.TOKENS] = np.concatenate(self._ids)
    if self._ends:
      taken[store.DOCUMENT_ENDS] = np.array(self._ends, np.int64)
    if self._sentence_ends:
      taken[store.SENTENCE_ENDS] = np.concatenate(self._sentence_ends)
    for name, values in taken.items():
      self.lengths[name] += len(values)
    self._ids, self._ends, self._sentence_ends = [], [], []
    return taken


class SplitContents(NamedTuple):
  """The contents of a split, for its manifest."""

  arrays: Mapping[str, Written]
  num_bytes: int
  parts: dict[str, int]  # as `SplitArrays.parts`


class StoreContents(NamedTuple):
  """The contents of a store, for its manifests."""

  tokenizer: Tokenizer
  splits: dict[bool, SplitContents]  # by whether it is held out
  sha256: str  # of all documents
  skipped: dict[str, int]  # what could not be read: kind -> count
  seconds: float
  copies: Copies  # of train texts in the held-out split


def start(
  settings: Settings, split: Split, folder: str, report: progress.Report
) -> Tokenizer:
  """Removes an unfinished preparation, and makes the tokenizer."""
  for name in (*store.PARTS, store.STATE):
    files.delete(folder, name)

  def documents(parts: Iterator[Part]) -> Iterator[Document]:
    num_bytes = 0
    for part in parts:
      yield part.document
      num_bytes += len(part.document.text)
      report('reading for the tokenizer', num_bytes, split.num_bytes)

  started = time.monotonic()
  made = tokenizer.build(
    settings.tokenizer,
    documents(part for part in split.parts() if not part.held_out),
    documents(split.parts()),
  )
  made.save(files.join(folder, store.TOKENIZER))
  log.info(
    '%s: %d tokens in %.1f s',
    *(settings.tokenizer, made.vocab_size),
    time.monotonic() - started,
  )
  return made


class StoreWriter:
  """Writes the splits of a corpus in the order of its documents.

  Attributes:
    digest: of the documents so far.
    num_bytes: of the documents so far.
    num_documents: so far, over both splits.
    at_end: whether the last batch ended with a document, not within one.
  """

  def __init__(
    self,
    settings: Settings,
    split: Split,
    folder: str,
    made: Tokenizer,
    *,
    in_mixture: bool,
    state: dict[str, np.ndarray] | None = None,
  ):
    """Begins, or resumes from `state` (`ValueError`, `KeyError`: it cannot).

    Args:
      folder: of the store, a path or a URL.
      made: the tokenizer, which is in the folder already.
      in_mixture: whether names of documents begin with their source.
    """
    self.digest = duplicates.Digest()
    self.num_bytes = self.num_documents = 0
    self.at_end = True
    self._made, self._sentences = made, settings.sentences
    self._documents = split.parts()
    self._splits: dict[bool, SplitArrays] = {}
    self._arrays: dict[bool, dict[str, ArrayWriter]] = {}
    sides = {False: folder}
    if split.holds_out:
      sides[True] = files.join(folder, store.VALIDATION)
    for held_out, path in sides.items():
      counts = state and json.loads(bytes(state[f'{held_out}']))
      self._splits[held_out] = SplitArrays(
        *(settings.sentences, in_mixture, counts)
      )
      self._arrays[held_out] = {}
      for name in self._splits[held_out].lengths:
        dtype = store.array_dtype(name, dtype_of(made))
        self._arrays[held_out][name] = ArrayWriter(
          *(path, name, dtype, settings.compression),
          state=state,
          key=f'{held_out}/{name}',
        )

  def skip(self, num_documents: int) -> Iterator[Part]:
    """Reads and yields documents that were written before."""
    for part in itertools.islice(self._documents, num_documents):
      self._count(part)
      yield part

  def write(self, num_workers: int) -> Iterator[list[Part]]:
    """Encodes and writes the documents; yields them, a batch at a time."""
    for batch, tokens in encoded(
      batches(self._documents, self._made),
      *(self._made, num_workers, self._sentences),
    ):
      done = []
      for piece, found in zip(batch, tokens, strict=True):
        split = self._splits[piece.part.held_out]
        split.add(piece, found)
        if piece.last:
          split.num_bytes += self._count(piece.part)
          done.append(piece.part)
      for held_out, split in self._splits.items():
        for name, values in split.take().items():
          self._arrays[held_out][name].add(values)
      self.at_end = batch[-1].last
      yield done

  def _count(self, part: Part) -> int:
    found, size = duplicates.of_part(part)
    self.digest.add(found)
    self.num_bytes += size
    self.num_documents += 1
    return size

  @property
  def on_disk(self) -> list[int]:
    """Tokens of each split that are on the disk."""
    return [arrays[store.TOKENS].length for arrays in self._arrays.values()]

  def state(self) -> dict[str, np.ndarray]:
    """The state from which `__init__` resumes; valid only where `at_end`."""
    entries = {}
    for held_out, arrays in self._arrays.items():
      counts = self._splits[held_out].counts
      entries[f'{held_out}'] = store.as_bytes(counts)
      for name, array in arrays.items():
        entries |= array.state(f'{held_out}/{name}')
    return entries

  def close(self) -> dict[bool, SplitContents]:
    """Writes the rest."""
    return {
      held_out: SplitContents(
        {name: array.close() for name, array in self._arrays[held_out].items()},
        *(split.num_bytes, split.parts),
      )
      for held_out, split in self._splits.items()
    }


def dtype_of(made: Tokenizer) -> str:
  """The type of the ids of a tokenizer, of sources too."""
  return store.token_dtype(tokenizer.num_ids(made))


def manifest_of(
  settings: Settings, made: Tokenizer, split: SplitContents, **more
) -> Manifest:
  """The manifest of a split that `made` encoded; `more` are other entries."""
  found = {
    name: split.arrays.get(name, Written(0, []))
    for name in (store.TOKENS, store.DOCUMENT_ENDS, store.SENTENCE_ENDS)
  }
  return Manifest(
    **settings._asdict(),
    tokenizer_fingerprint=made.fingerprint,
    vocab_size=made.vocab_size,
    eos_id=made.eos_id,
    dtype=dtype_of(made),
    num_tokens=found[store.TOKENS].length,
    num_documents=found[store.DOCUMENT_ENDS].length,
    num_sentences=found[store.SENTENCE_ENDS].length,
    **{f'{name}_crc32': array.crc32 for name, array in found.items()},
    num_bytes=split.num_bytes,
    parts=split.parts,
    **more,
  )
