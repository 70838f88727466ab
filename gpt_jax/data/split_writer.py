# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes one split of a token store, and tells how to go on from any moment."""

import json
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data import array_writer
from gpt_jax.data import sentences as sentences_lib
from gpt_jax.data import store as token_store
from gpt_jax.data.array_writer import ArrayWriter, Waiting, Written
from gpt_jax.data.encode import Encoded
from gpt_jax.data.manifest import Manifest
from gpt_jax.data.tokenizers import tokenizer
from gpt_jax.data.tokenizers.tokenizer import Tokenizer


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
      made: has encoded the documents.
      name: of the split.
      state: that an earlier process left.
      settings: its `compression` and `sentences` are read.

    Raises:
      ValueError: what it should go on with is not there.
    """
    self.num_bytes = self._num_tokens = 0
    self._parts: dict[str, int] = {}
    self._made = made
    self._dtype = array_writer.token_dtype(tokenizer.num_ids(made))
    dtypes = {
      token_store.TOKENS: self._dtype,
      token_store.DOCUMENT_ENDS: 'int64',
    }
    if sentences_lib.splitter(settings.sentences):
      dtypes[token_store.SENTENCE_ENDS] = 'int64'
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
    return self._arrays[token_store.TOKENS].length

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
      self._arrays[token_store.TOKENS].add(np.concatenate(parts))
      self._arrays[token_store.DOCUMENT_ENDS].add(np.array(ends, np.int64))
      if token_store.SENTENCE_ENDS in self._arrays:
        self._arrays[token_store.SENTENCE_ENDS].add(
          np.concatenate(sentence_ends)
        )

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
    """Writes what is left; tells what is there.

    Args:
      settings: that it was made with.
      source_sha256: of the corpus.
      notes: further entries of the manifest.
    """
    written = {name: array.close() for name, array in self._arrays.items()}
    tokens = written[token_store.TOKENS]
    ends = written[token_store.DOCUMENT_ENDS]
    sentences = written.get(token_store.SENTENCE_ENDS, Written(0, []))
    return Manifest(
      **settings._asdict(),
      source_sha256=source_sha256,
      tokenizer_fingerprint=self._made.fingerprint,
      vocab_size=self._made.vocab_size,
      eos_id=self._made.eos_id,
      dtype=self._dtype,
      num_tokens=tokens.length,
      num_documents=ends.length,
      num_bytes=self.num_bytes,
      tokens_crc32=tokens.crc32,
      document_ends_crc32=ends.crc32,
      num_sentences=sentences.length,
      sentence_ends_crc32=sentences.crc32,
      parts=self._parts,
      **notes,
    )


def as_bytes(entries: Any) -> np.ndarray:
  """JSON, as an entry of an npz file."""
  return np.frombuffer(json.dumps(entries).encode(), np.uint8)
