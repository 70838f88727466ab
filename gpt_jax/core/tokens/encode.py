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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.files import files, progress
from gpt_jax.core.files import workers as workers_lib
from gpt_jax.core.files.document import SIDES, Bad, Document, Skippable, of_source
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.holdout import Part
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens import duplicates, store
from gpt_jax.core.tokens.corpus import Corpus, Settings
from gpt_jax.core.tokens.duplicates import Copies
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.store import ArrayWriter, Splitter, Written

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

DROPPED = 'cannot be tokenized'


class Piece(NamedTuple):
  """A document, or one of the pieces of a long one."""

  part: Part
  text: str
  last: bool  # of its document


class Encoded(NamedTuple):
  """The tokens of a piece."""

  ids: np.ndarray  # int32 [N]
  eos_id: int  # ends the document
  sentence_ends: np.ndarray  # int64 [S], see `store.Splitter`
  error: str = ''  # why there are no tokens


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
  pieces: Iterator[list[Piece]], made: Tokenizer, workers: int, sentences: str = 'none'
) -> Iterator[tuple[list[Piece], list[Encoded]]]:
  """Yields each batch of `pieces` with their tokens, in order."""
  here = functools.partial(encode_texts, made, sentences)
  if made.in_threads and made.sources.in_threads:
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
      ((b, pool.submit(encode, [*map(text_of, b)])) for b in batches), 2 * workers
    )
  finally:
    pool.shutdown(cancel_futures=True)


def encode_texts(made: Tokenizer, sentences: str, texts: _Texts) -> list[Encoded]:
  """The tokens of pieces."""
  split = store.splitter(sentences)
  found: list[Encoded | None] = [None] * len(texts)
  for own, sources in ((made, False), (made.sources, True)):
    numbers = [i for i, one in enumerate(texts) if one.of_source == sources]
    if not numbers:
      continue
    try:
      all_ids = own.encode_batch([texts[i].text for i in numbers])
    except UsageError:  # of one of them
      all_ids = [None] * len(numbers)
    for i, ids in zip(numbers, all_ids, strict=True):
      found[i] = _encoded(own, split, texts[i], ids)
  return [one for one in found if one is not None]


def _encoded(
  made: Tokenizer, split: Splitter | None, text: Text, ids: np.ndarray | None
) -> Encoded:
  """The tokens of a piece, whose `ids` may be known; or why it has none."""
  ends = np.empty(0, np.int64)
  try:
    if ids is None:
      ids = made.encode(text.text)
    if split:
      offsets = made.offsets(text.text)
      ends = split(text.text, offsets, text.last)
  except UsageError as e:
    return Encoded(np.empty(0, np.int32), made.eos_id, ends[:0], str(e))
  return Encoded(ids, made.eos_id, ends)


def pieces(part: Part, made: Tokenizer) -> Iterator[Piece]:
  """Cuts a long document into pieces that the tokenizer can encode."""
  text, start = part.document.text, 0
  while len(text) - start > _LONGEST:
    if made.parts_at_spaces and made.sources.parts_at_spaces:
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


class SplitArrays:
  """Joins the tokens of documents to the arrays of one split.

  Attributes:
    lengths: elements of each array that were taken.
    num_bytes: of the documents, in UTF-8.
    parts: source within a mixture -> after its last token.
    num_dropped: documents that have no tokens, and were left out.
  """

  def __init__(self, sentences: str, in_mixture: bool, counts: dict[str, Any] | None = None):
    """Begins, or resumes from `counts`.

    Args:
      sentences: `data.sentences`.
      in_mixture: whether names of documents begin with their source.
    """
    names = [store.TOKENS, store.DOCUMENT_ENDS]
    if store.splitter(sentences):
      names.append(store.SENTENCE_ENDS)
    self._in_mixture = in_mixture
    self.lengths, self.num_bytes = dict.fromkeys(names, 0), 0
    self.parts: dict[str, int] = {}
    self.num_dropped = 0
    if counts is not None:
      self.lengths, self.num_bytes = counts['lengths'], counts['num_bytes']
      self.parts, self.num_dropped = counts['parts'], counts['num_dropped']
    # The document whose pieces were added last, and one that is left out.
    self._begun: Part | None = None
    self._dropped: Part | None = None
    self._num_tokens = self.lengths[store.TOKENS]  # with those not taken yet
    self._ids: list[np.ndarray] = []
    self._ends: list[int] = []
    self._sentence_ends: list[np.ndarray] = []

  @property
  def counts(self) -> dict[str, Any]:
    """The counts from which `__init__` resumes, as JSON."""
    names = ('lengths', 'num_bytes', 'parts', 'num_dropped')
    return {name: getattr(self, name) for name in names}

  def add(self, piece: Piece, tokens: Encoded) -> bool:
    """Appends a piece of a document, and eos after the last one.

    Returns:
      Whether its document is taken, not left out as a bad one.
    """
    if tokens.error and self._dropped is not piece.part:
      self._drop(piece, tokens)
    if self._dropped is piece.part:
      return False
    self._begun = piece.part
    self._append(piece, tokens)
    return True

  def _drop(self, piece: Piece, tokens: Encoded):
    """Raises, or leaves out the document where `on_error='skip'`."""
    document = piece.part.document
    bad = Bad(document.name, DROPPED, f': {tokens.error}')
    # One side of a pair cannot be left out.
    if not isinstance(document, Skippable) or document.name.endswith(SIDES):
      raise bad
    if not self.num_dropped:
      log.warning('skipping documents that %s; the first: %s', DROPPED, bad)
    self.num_dropped += 1
    self._dropped = piece.part
    if self._begun is piece.part:  # pieces before this one are written
      nothing = Encoded(np.empty(0, np.int32), tokens.eos_id, tokens.sentence_ends)
      self._append(Piece(piece.part, '', True), nothing)

  def _append(self, piece: Piece, tokens: Encoded):
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


def start(corpus: Corpus, folder: str, report: progress.Report) -> Tokenizer:
  """Removes an unfinished preparation, and makes the tokenizer."""
  split = corpus.split
  for name in (*store.PARTS, store.STATE):
    files.delete(folder, name)

  def documents(*, held_out: bool) -> Iterator[Document]:
    num_bytes = 0
    for part in split.parts():
      if held_out or not part.held_out:
        yield part.document
      num_bytes += len(part.document.text.encode())
      report('reading for the tokenizer', num_bytes, split.num_bytes)

  started = time.monotonic()
  made = corpus.maker(documents(held_out=False), documents(held_out=True))
  made.save(files.join(folder, store.TOKENIZER))
  log.info(
    '%s: %d tokens in %.1f s',
    corpus.settings.tokenizer,
    made.vocab_size,
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
    corpus: Corpus,
    folder: str,
    tokenizer: Tokenizer,
    *,
    state: dict[str, np.ndarray] | None = None,
  ):
    """Begins, or resumes from `state` (`ValueError`, `KeyError`: it cannot).

    Args:
      folder: of the store, a path or a URL.
      tokenizer: that is in the folder already.
    """
    settings, split = corpus.settings, corpus.split
    self.digest = duplicates.Digest()
    self.num_bytes = self.num_documents = 0
    self.at_end = True
    self.tokenizer, self._sentences = tokenizer, settings.sentences
    self._skipped: Counter[str] = Counter()
    self._documents = split.parts(self._skipped)
    self._splits: dict[bool, SplitArrays] = {}
    self._arrays: dict[bool, dict[str, ArrayWriter]] = {}
    sides = {False: folder}
    if split.holds_out:
      sides[True] = files.join(folder, store.VALIDATION)
    for held_out, path in sides.items():
      counts = state and json.loads(bytes(state[f'{held_out}']))
      self._splits[held_out] = SplitArrays(settings.sentences, corpus.in_mixture, counts)
      self._arrays[held_out] = {}
      for name in self._splits[held_out].lengths:
        dtype = store.array_dtype(name, dtype_of(tokenizer))
        self._arrays[held_out][name] = ArrayWriter(
          path, name, dtype, settings.compression, state=state, key=f'{held_out}/{name}'
        )

  def skip(self, num_documents: int) -> Iterator[Part]:
    """Reads and yields documents that were written before."""
    for part in itertools.islice(self._documents, num_documents):
      self._count(part)
      yield part

  def write(self, num_workers: int) -> Iterator[list[Part]]:
    """Encodes and writes the documents; yields them, a batch at a time."""
    for batch, tokens in encoded(
      batches(self._documents, self.tokenizer), self.tokenizer, num_workers, self._sentences
    ):
      done = []
      for piece, found in zip(batch, tokens, strict=True):
        split = self._splits[piece.part.held_out]
        taken = split.add(piece, found)
        if piece.last:
          size = self._count(piece.part)
          if taken:
            split.num_bytes += size
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
  def skipped(self) -> dict[str, int]:
    """Once all is written, what was left out: kind -> count."""
    count = sum(split.num_dropped for split in self._splits.values())
    return dict(self._skipped) | ({DROPPED: count} if count else {})

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
        split.num_bytes,
        split.parts,
      )
      for held_out, split in self._splits.items()
    }


def dtype_of(made: Tokenizer) -> str:
  """The type of the ids of a tokenizer, of sources too."""
  return store.token_dtype(max(made.vocab_size, made.sources.vocab_size))


def manifest_of(settings: Settings, made: Tokenizer, split: SplitContents, **more) -> Manifest:
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
