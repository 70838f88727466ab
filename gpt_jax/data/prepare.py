# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to a token store: sources, tokenizer, splits, files.

A store is whole or none: the manifest of the folder is written last, in one
step. What a killed process leaves is removed by the next.
"""

import hashlib
import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpt_jax import spec
from gpt_jax.data import files, holdout, manifest, progress, tokenizer
from gpt_jax.data import store as token_store
from gpt_jax.data.holdout import Part, Split
from gpt_jax.data.manifest import Manifest
from gpt_jax.data.sources import Document
from gpt_jax.data.store import ArrayWriter, TokenStore
from gpt_jax.data.tokenizer import Tokenizer
from gpt_jax.spec import UsageError

# In the folder while it is being written.
_UNFINISHED = 'unfinished'

_PARTS = (
  *(token_store.TOKENS, token_store.DOCUMENT_ENDS),
  *(token_store.TOKENIZER, token_store.VALIDATION),
)

# Characters that are encoded together.
_BATCH = 1 << 22


log = logging.getLogger('gpt_jax')


class Settings(NamedTuple):
  """The config fields that a token store depends on."""

  source: str
  holdout: str
  tokenizer: str


_FIELDS = Settings('data.source', 'data.holdout', 'tokenizer.name')


def prepare(
  config: Any, folder: str, report: progress.Report | None = None
) -> Manifest:
  """Makes the token store that `config` describes, unless it is there.

  Two processes may ask for the same local folder: one writes, one waits.

  Args:
    config: `data.source`, `data.holdout` and `tokenizer.name` are read.
    folder: a path or a URL.
    report: called with stage, bytes done and bytes in all; by default a bar
      is drawn where someone watches.

  Returns:
    The manifest of the train split.

  Raises:
    UsageError: a setting or the corpus does not do, or the folder holds a
      store of other settings or foreign files.
  """
  settings = _settings(config)
  _refuse_foreign(folder)
  with files.exclusive(folder, _UNFINISHED):
    if manifest.exists(folder):
      found = manifest.read(folder)
      _check_same(folder, found, settings)
      return found
    for name in _PARTS:  # what an unfinished preparation left
      files.delete(folder, name)
    if report is not None:
      return _write(settings, folder, report)
    with progress.bar() as drawn:
      return _write(settings, folder, drawn)


def ensure(config: Any, folder: str) -> TokenStore:
  """Opens the token store of `config`, preparing it where it is missing.

  Raises:
    UsageError: as `prepare` and `TokenStore.open`.
  """
  if manifest.exists(folder):
    _check_same(folder, manifest.read(folder), _settings(config))
  else:
    prepare(config, folder)
  return TokenStore.open(folder)


def _settings(config: Any) -> Settings:
  data: Any = config.data
  chosen: Any = config.tokenizer
  return Settings(data.source, data.holdout, chosen.name)


def _check_same(folder: str, found: Manifest, wanted: Settings):
  """Raises if the store was prepared with other settings."""
  differing = []
  for field, name, value in zip(_FIELDS, Settings._fields, wanted, strict=True):
    before = getattr(found, name)
    if spec.parse(field, before) != spec.parse(field, value):
      differing.append(f'{field}={before!r} where the config has {value!r}')
  if differing:
    raise UsageError(
      f'{folder}: the token store was prepared with '
      + ', and with '.join(differing)
      + '; name another data.store, or remove the folder'
    )


def _refuse_foreign(folder: str):
  """Raises if the folder holds names of ours that we did not write.

  The order of the questions matters where another process is writing: its
  mark stands from before its first file until after the manifest.
  """
  present = {name.split('/')[0] for name in files.names(folder)} & {*_PARTS}
  if not present or files.read(folder, _UNFINISHED) is not None:
    return
  if not manifest.exists(folder):
    raise UsageError(
      f'{folder}: holds {", ".join(sorted(present))} but no token store; name '
      'an empty folder'
    )


def _write(
  settings: Settings, folder: str, report: progress.Report
) -> Manifest:
  """Builds the tokenizer, then encodes and writes both splits in one pass."""
  split = holdout.split(settings.source, settings.holdout)
  started = time.monotonic()
  made = _build_tokenizer(settings, split, report)
  made.save(files.join(folder, token_store.TOKENIZER))
  log.info(
    '%s: %d tokens in %.1f s',
    *(settings.tokenizer, made.vocab_size, time.monotonic() - started),
  )
  started = time.monotonic()
  writers = {False: _SplitWriter(folder, made)}
  if split.holds_out:
    below = files.join(folder, token_store.VALIDATION)
    writers[True] = _SplitWriter(below, made)
  digest = hashlib.sha256()
  num_bytes = 0
  for batch in _batches(split.parts()):
    ids = made.encode_batch([part.document.text for part in batch])
    for held_out, writer in writers.items():
      chosen = [i for i, part in enumerate(batch) if part.held_out == held_out]
      writer.add([ids[i] for i in chosen])
    for part in batch:
      text = part.document.text.encode()
      head = f'{part.document.name}\0{part.held_out}\0{len(text)}\0'
      digest.update(head.encode() + text)
      writers[part.held_out].num_bytes += len(text)
      num_bytes += len(text)
    report('tokenizing', num_bytes, split.num_bytes)
  for held_out, writer in writers.items():
    if not writer.num_bytes:
      raise _empty(settings, held_out)
  # Held out first: the manifest of the folder itself is what makes it whole.
  done = {
    held_out: writers[held_out].close(settings, digest.hexdigest())
    for held_out in sorted(writers, reverse=True)
  }
  _log_counts(done, num_bytes, time.monotonic() - started)
  return done[False]


class _SplitWriter:
  """Writes one split and counts what is in it."""

  def __init__(self, folder: str, made: Tokenizer):
    self.num_bytes = 0
    self._folder = folder
    self._made = made
    self._dtype = token_store.token_dtype(made.vocab_size)
    self._tokens = ArrayWriter(folder, token_store.TOKENS, self._dtype)
    self._ends = ArrayWriter(folder, token_store.DOCUMENT_ENDS, 'int64')
    self._num_tokens = 0

  def add(self, documents: list[np.ndarray]):
    """Appends the ids of each document, and eos after each."""
    if not documents:
      return
    eos = np.array([self._made.eos_id], np.int32)
    self._tokens.add(
      np.concatenate([part for ids in documents for part in (ids, eos)])
    )
    ends = np.cumsum([len(ids) + 1 for ids in documents]) + self._num_tokens
    self._num_tokens = int(ends[-1])
    self._ends.add(ends)

  def close(self, settings: Settings, source_sha256: str) -> Manifest:
    """Writes what is left, and the manifest after all else."""
    tokens, ends = self._tokens.close(), self._ends.close()
    written = Manifest(
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
    )
    manifest.write(self._folder, written)
    return written


def _build_tokenizer(
  settings: Settings, split: Split, report: progress.Report
) -> Tokenizer:
  def documents(parts: Iterator[Part]) -> Iterator[Document]:
    num_bytes = 0
    for part in parts:
      yield part.document
      num_bytes += len(part.document.text)
      report('reading for the tokenizer', num_bytes, split.num_bytes)

  return tokenizer.build(
    settings.tokenizer,
    documents(part for part in split.parts() if not part.held_out),
    documents(split.parts()),
  )


def _batches(parts: Iterator[Part]) -> Iterator[list[Part]]:
  """Groups parts to about `_BATCH` characters."""
  batch, size = [], 0
  for part in parts:
    batch.append(part)
    size += len(part.document.text)
    if size >= _BATCH:
      yield batch
      batch, size = [], 0
  if batch:
    yield batch


def _empty(settings: Settings, held_out: bool) -> UsageError:
  side = 'evaluation' if held_out else 'training'
  return UsageError(
    f'data.holdout={settings.holdout!r} leaves no document of '
    f'data.source={settings.source!r} for {side}; for a few documents use '
    "'tail(fraction=0.1)', which splits by characters"
  )


def _log_counts(done: dict[bool, Manifest], num_bytes: int, seconds: float):
  for held_out, written in done.items():
    log.info(
      '%s: %d documents, %d bytes, %d tokens',
      'validation' if held_out else 'train',
      *(written.num_documents, written.num_bytes, written.num_tokens),
    )
  rate = num_bytes / 1e6 / max(seconds, 1e-9)
  log.info('tokenized and written at %.1f MB/s', rate)
