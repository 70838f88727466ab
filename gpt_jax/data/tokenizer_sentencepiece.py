# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece (Kudo and Richardson, 2018): training and use.

Our own models keep every character: the text is not normalised, white space is
not merged, nothing is put in front, and what has no piece is spelled in bytes.
"""

import hashlib
import heapq
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import sentencepiece as spm

from gpt_jax.data import tokenizer_files
from gpt_jax.data.sources import Document
from gpt_jax.spec import UsageError

_MODEL = 'sentencepiece.model'
_TYPES = ('unigram', 'bpe')

# SentencePiece writes a space as U+2581 inside pieces, and so reads a real
# U+2581 as a space. Spelled in bytes it survives.
_SPACE_MARK = '\u2581'

# Our training sample is taken in chunks of about this many characters.
_CHUNK = 1 << 14
_LONGEST = 4 * _CHUNK  # a line without end is cut here


class SentencePiece:
  """A SentencePiece model.

  Lossless where we trained it (kind `sentencepiece`). A model made elsewhere
  (`sentencepiece_file`) does what its own settings say, for instance merges
  spaces.
  """

  def __init__(self, kind: str, contents: dict[str, bytes]):
    """Reads the model from its file in `contents`.

    Raises:
      UsageError: it is not a model, or does not mark the end of a document.
    """
    self.kind = kind
    self._contents = contents
    self._model = spm.SentencePieceProcessor()
    try:
      # An empty file would load as an empty model.
      self._model.LoadFromSerializedProto(contents[_MODEL] or b'empty')
    except RuntimeError as e:
      raise UsageError('is not a SentencePiece model') from e
    self.vocab_size: int = self._model.vocab_size()
    self.eos_id: int = self._model.eos_id()
    if self.eos_id < 0:
      raise UsageError('has no piece for the end of a document (eos)')
    self._mark_ids: list[int] = []
    if kind == 'sentencepiece':
      spelled = [f'<0x{byte:02X}>' for byte in _SPACE_MARK.encode()]
      self._mark_ids = [self._model.piece_to_id(piece) for piece in spelled]

  @property
  def fingerprint(self) -> str:
    return tokenizer_files.fingerprint(self.kind, self._contents)

  def encode(self, text: str) -> np.ndarray:
    if not self._mark_ids or _SPACE_MARK not in text:
      return np.asarray(self._model.encode(text), np.int32)
    parts = [self._model.encode(part) for part in text.split(_SPACE_MARK)]
    ids = list(parts[0])
    for part in parts[1:]:
      ids += self._mark_ids + part
    return np.asarray(ids, np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    if self._mark_ids and any(_SPACE_MARK in text for text in texts):
      return [self.encode(text) for text in texts]
    encoded = self._model.encode(list(texts))
    return [np.asarray(ids, np.int32) for ids in encoded]

  def decode(self, ids: Iterable[int]) -> str:
    kept = [int(i) for i in ids if i != self.eos_id]
    return self._model.decode(kept) if kept else ''

  def save(self, folder: str) -> None:
    tokenizer_files.write(folder, self.kind, self._contents)


def sentencepiece(
  vocab_size: int, model: str = 'unigram', sample_per_piece: int = 1000
) -> Callable[[Iterable[Document]], SentencePiece]:
  """A model trained on the training split.

  Args:
    vocab_size: number of pieces, including 256 bytes, unknown, eos, newline
      and tab.
    model: 'unigram' (Kudo, 2018) or 'bpe' (Sennrich et al., 2016).
    sample_per_piece: the training sample holds this many characters for each
      piece. 1000 give 4 MB for 4096 pieces, on which unigram trains in about
      10 s; on three times the text it took 3 times as long and its code rows
      were no shorter.
  """
  if model not in _TYPES:
    raise UsageError(
      f'tokenizer.name: model={model!r} is none of {", ".join(_TYPES)}'
    )
  for name, value in {
    'vocab_size': vocab_size,
    'sample_per_piece': sample_per_piece,
  }.items():
    if value < 1:
      raise UsageError(f'tokenizer.name: {name}={value} must be positive')

  def train(documents: Iterable[Document]) -> SentencePiece:
    chunks = _sample(documents, vocab_size * sample_per_piece)
    data = _train(_sentences(chunks), vocab_size, model)
    return SentencePiece('sentencepiece', {_MODEL: data})

  return train


def sentencepiece_file(
  path: str,
) -> Callable[[Iterable[Document]], SentencePiece]:
  """A model that exists, such as LLaMA's `tokenizer.model`."""

  def read(documents: Iterable[Document]) -> SentencePiece:
    del documents
    try:
      with open(path, 'rb') as file:
        return SentencePiece('sentencepiece_file', {_MODEL: file.read()})
    except OSError as e:
      raise UsageError(
        f'tokenizer.name: cannot read {path!r} ({e.strerror}); name a '
        'SentencePiece model'
      ) from e
    except UsageError as e:
      raise UsageError(
        f'tokenizer.name: {path!r} {e}; name another model'
      ) from e

  return read


def _train(sentences: Iterator[str], vocab_size: int, model: str) -> bytes:
  """Returns the trained model, the same bytes for the same sentences."""
  written = io.BytesIO()
  try:
    spm.SentencePieceTrainer.Train(
      sentence_iterator=sentences,
      model_writer=written,
      model_type=model,
      vocab_size=vocab_size,
      # Candidates to choose pieces from: ample, and fewer train faster.
      seed_sentencepiece_size=min(32 * vocab_size, 1_000_000),
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      add_dummy_prefix=False,
      allow_whitespace_only_pieces=True,
      byte_fallback=True,
      split_digits=True,
      character_coverage=0.9999,
      user_defined_symbols=['\n', '\t'],
      unk_id=0,
      eos_id=1,
      bos_id=-1,
      pad_id=-1,
      max_sentence_length=4 * _LONGEST,  # in bytes
      # The sums of the threads' parts depend on the number of threads.
      num_threads=8,
      minloglevel=2,
    )
  except RuntimeError as e:
    raise UsageError(_explain(str(e), vocab_size, model)) from e
  return written.getvalue()


def _explain(error: str, vocab_size: int, model: str) -> str:
  start = f'tokenizer.name: sentencepiece(vocab_size={vocab_size})'
  if found := re.search(r'value <= (\d+)', error):
    return (
      f'{start}: this corpus supports at most {found[1]} pieces with '
      f'model={model!r}; ask for no more, or add text'
    )
  if found := re.search(r'required_chars. \d+ vs (\d+)', error):
    return (
      f'{start}: this corpus needs at least {found[1]} pieces (256 bytes, 4 '
      'symbols and its characters); ask for more'
    )
  return f'{start}: training failed on this corpus: {error}'


def _sentences(chunks: Iterable[str]) -> Iterator[str]:
  """Parts chunks where newline and tab, symbols of their own, part pieces.

  The trainer would skip a sentence with a tab, its own separator.
  """
  for chunk in chunks:
    yield from filter(None, re.split('[\n\t]', chunk))


def _sample(documents: Iterable[Document], num_characters: int) -> list[str]:
  """Chooses chunks of the documents by the least hash of their place.

  One pass in bounded memory. What is chosen does not depend on the order of
  the documents, and is everything where there is less than asked for.
  """
  heap, held = [], 0  # the greatest hash on top
  for order, (place, chunk) in enumerate(_chunks(documents)):
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    heapq.heappush(heap, (-int.from_bytes(digest, 'big'), order, chunk))
    held += len(chunk)
    while held - len(heap[0][2]) >= num_characters:
      held -= len(heapq.heappop(heap)[2])
  return [chunk for _, _, chunk in sorted(heap, key=lambda entry: entry[1])]


def _chunks(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
  """Cuts documents at newlines into pairs of a place and a text."""
  for name, text in documents:
    start = 0
    while start < len(text):
      stop = text.find('\n', start + _CHUNK, start + _LONGEST)
      stop = start + _LONGEST if stop < 0 else stop
      yield f'{name}@{start}', text[start:stop]
      start = stop
