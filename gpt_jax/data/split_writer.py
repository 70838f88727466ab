# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes one split of a token store, and tells how to go on from any moment."""

import json
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.data import array_writer
from gpt_jax.data import store as token_store
from gpt_jax.data.array_writer import ArrayWriter, Waiting
from gpt_jax.data.manifest import Manifest
from gpt_jax.data.tokenizers.tokenizer import Tokenizer

_ARRAYS = (token_store.TOKENS, token_store.DOCUMENT_ENDS)


class Settings(NamedTuple):
  """The config fields that a token store depends on."""

  source: str
  holdout: str
  tokenizer: str
  clean: str
  compression: str


class SplitWriter:
  """Writes one split and counts what is in it."""

  def __init__(
    self,
    folder: str,
    made: Tokenizer,
    name: str,
    state: dict[str, np.ndarray] | None,
    compression: str,
  ):
    """Begins, or goes on from the entries `name` of `state`.

    Raises:
      ValueError: what it should go on with is not there.
    """
    self.num_bytes = self._num_tokens = 0
    self._parts: dict[str, int] = {}
    self._made = made
    self._dtype = array_writer.token_dtype(made.vocab_size)
    waiting: dict[str, Waiting | None] = dict.fromkeys(_ARRAYS)
    if state is not None:
      counts = json.loads(bytes(state[name]))
      self.num_bytes = counts['num_bytes']
      self._num_tokens = counts['num_tokens']
      self._parts = counts['parts']
      for array in _ARRAYS:
        length, crc32 = counts[array]
        values = state[f'{name}/{array}']
        waiting[array] = Waiting(length, crc32, values)
    self._tokens, self._ends = (
      ArrayWriter(folder, array, dtype, waiting[array], compression)
      for array, dtype in zip(_ARRAYS, (self._dtype, 'int64'), strict=True)
    )

  @property
  def on_disk(self) -> int:
    """Tokens that are written."""
    return self._tokens.length

  def add(self, pieces: list[tuple[np.ndarray, bool, str]]):
    """Appends the ids of pieces of documents, and eos after the last of one."""
    eos = np.array([self._made.eos_id], np.int32)
    parts, ends = [], []
    for ids, last, source in pieces:
      parts += [ids, eos] if last else [ids]
      self._num_tokens += len(ids) + last
      if last:
        ends.append(self._num_tokens)
        if source:
          self._parts[source] = self._num_tokens
    if parts:
      self._tokens.add(np.concatenate(parts))
      self._ends.add(np.array(ends, np.int64))

  def state(self, name: str) -> dict[str, np.ndarray]:
    """What `__init__` goes on from."""
    counts: dict[str, Any] = {
      'num_bytes': self.num_bytes,
      'num_tokens': self._num_tokens,
      'parts': self._parts,
    }
    entries = {}
    for array, writer in zip(_ARRAYS, (self._tokens, self._ends), strict=True):
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
    tokens, ends = self._tokens.close(), self._ends.close()
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
      parts=self._parts,
      **notes,
    )


def as_bytes(entries: Any) -> np.ndarray:
  """JSON, as an entry of an npz file."""
  return np.frombuffer(json.dumps(entries).encode(), np.uint8)
