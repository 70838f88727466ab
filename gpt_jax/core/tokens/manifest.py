# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a token store: its contents, with checksums."""

import dataclasses
import hashlib
import json
import zlib
from typing import Any

import numpy as np

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError

NAME = 'manifest.json'
FORMAT_VERSION = 1

# A checksum covers this many elements of an array.
BLOCK = 1 << 20

_SEAL = 'manifest_sha256'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """What a token store holds; the call-strings are the config's."""

  source: str
  source_sha256: str  # of the names, texts and sides of all documents
  holdout: str
  tokenizer: str
  tokenizer_fingerprint: str  # sha256 of what defines the tokenizer
  vocab_size: int  # ids are below it
  eos_id: int  # the id that ends each document
  dtype: str
  num_tokens: int  # including the end of each document
  num_documents: int  # in this split
  num_bytes: int  # of the text in UTF-8, for bits per byte
  tokens_crc32: list[int]  # of each `BLOCK` of tokens, little-endian
  # Of each `BLOCK` of document ends, little-endian.
  document_ends_crc32: list[int]
  format_version: int = FORMAT_VERSION  # of the folder
  # Of a mixture: source -> after its last token; each begins where the one
  # before ends.
  parts: dict[str, int] = dataclasses.field(default_factory=dict)
  num_words: int = 0  # of an evaluation set: separated by white space
  num_lines: int = 0  # of an evaluation set: ends of lines
  clean: str = 'none'
  compression: str = 'none'
  # The summary of `clean.report`, of both splits.
  cleaning: dict[str, Any] = dataclasses.field(default_factory=dict)
  # What could not be read, or held no text: kind -> count; of both splits.
  skipped: dict[str, int] = dataclasses.field(default_factory=dict)
  sentences: str = 'none'
  num_sentences: int = 0  # in this split; 0 without `sentences`
  # Of each `BLOCK` of sentence ends, little-endian.
  sentence_ends_crc32: list[int] = dataclasses.field(default_factory=list)
  pairs: bool = False  # whether each two documents are a source and its target

  @property
  def fingerprint(self) -> str:
    """The sha256 of tokens, documents, sentences and sources that a run reads.

    The same wherever the store lies, and however it is compressed.
    """
    names = (
      'tokenizer_fingerprint',
      'vocab_size',
      'eos_id',
      'dtype',
      'num_tokens',
      'num_documents',
      'tokens_crc32',
      'document_ends_crc32',
    )
    read: dict[str, Any] = {name: getattr(self, name) for name in names}
    if self.sentence_ends_crc32:
      read['sentence_ends_crc32'] = self.sentence_ends_crc32
    if self.pairs:  # the hashes of other stores stay as in older versions
      read['pairs'] = True
    # As a list, in order: each part begins where the one before ends.
    return _digest(read | {'parts': list(self.parts.items())})


def write(folder: str, manifest: Manifest):
  """Writes the file that makes the folder a token store."""
  entries = dataclasses.asdict(manifest)
  entries[_SEAL] = _digest(entries)
  data = json.dumps(entries, indent=2).encode() + b'\n'
  files.write(folder, NAME, data)


def exists(folder: str) -> bool:
  """Tells whether the folder holds a finished token store."""
  return files.read(folder, NAME) is not None


def read(folder: str) -> Manifest:
  """Reads the manifest of a token store."""
  path = files.join(folder, NAME)
  data = files.read(folder, NAME)
  if data is None:
    raise UsageError(
      f'{path}: is missing, so {folder} holds no finished token store; run gpt-jax prepare'
    )
  remedy = 'remove the folder and prepare the data again'
  entries = files.parse(data, path, remedy=remedy, needs=('format_version',))
  version, seal = entries['format_version'], entries.pop(_SEAL, None)
  if version != FORMAT_VERSION:
    raise UsageError(
      f'{path}: format version {version!r}, this version of gpt_jax reads '
      f'{FORMAT_VERSION}; prepare the data again'
    )
  if seal != _digest(entries):
    raise UsageError(f'{path}: is damaged; {remedy}')
  try:
    return Manifest(**entries)
  except TypeError as e:
    raise UsageError(
      f'{path}: was written by another version of gpt_jax; take that one, or prepare the data again'
    ) from e


def checksums(array: np.ndarray) -> list[int]:
  """Returns the crc32 of each `BLOCK` elements of a flat array."""
  array = array.astype(array.dtype.newbyteorder('<'), copy=False)
  starts = range(0, len(array), BLOCK)
  return [zlib.crc32(array[i : i + BLOCK].data) for i in starts]


def _digest(entries: dict) -> str:
  return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
