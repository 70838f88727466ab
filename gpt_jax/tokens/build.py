# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a token store: tokenizer, both splits, manifests.

After each shard the folder holds all that is needed to go on from there, so
that a process that was killed repeats no finished shard: it reads the documents
again, to compare them with what was prepared, and encodes those after.
"""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt_jax.files import files, progress
from gpt_jax.files.document import Document
from gpt_jax.spec import UsageError
from gpt_jax.text import inputs
from gpt_jax.text.holdout import Part, Split
from gpt_jax.tokenizers import report as tokenizer_report
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import duplicates, encode, manifest, mixture, unfinished
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.duplicates import Duplicates
from gpt_jax.tokens.encode import Settings, SplitWriter, as_bytes
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.unfinished import StartOver

# Tokens of a document, on average, above which something is said. Whole books
# have more; a model of GPT-1's shape that read 16M tokens of them chose the
# right one of two sentences (BLiMP) in 52% when the end of a document stood
# before them, and in 60% when a line end did.
_LONG = 20_000

log = logging.getLogger('gpt_jax')


def build(
  settings: Settings,
  split: Split,
  folder: str,
  *,
  workers: int,
  report: progress.Report,
  cleaning: dict[str, Any],
) -> Manifest:
  """Writes the store, or goes on where an earlier process was.

  Args:
    settings: for the manifest; the tokenizer is made as they say.
    split: the documents.
    folder: a path or a URL.
    workers: processes that encode.
    report: see `progress`.
    cleaning: for the manifest: what was done to the corpus.

  Returns:
    The manifest of the train split, which was written last.
  """
  found = inputs.look(split.files)
  wanted = {'settings': [*settings], 'inputs': found}
  try:
    build = _Build(
      settings, split, folder, report, unfinished.read(folder, wanted)
    )
    build.skip_written()
  except StartOver as e:
    if str(e):
      log.info('%s: starting over: %s', folder, e)
    for name in token_store.PARTS:  # what an unfinished preparation left
      files.delete(folder, name)
    build = _Build(settings, split, folder, report, None)
  build.write(workers, wanted)
  inputs.write(folder, found)
  return build.close(cleaning)


class _Build:
  """Both splits while they are written."""

  def __init__(
    self,
    settings: Settings,
    split: Split,
    folder: str,
    report: progress.Report,
    state: dict[str, np.ndarray] | None,
  ):
    """Begins, or goes on from `state`.

    Raises:
      StartOver: the folder is not as the state says.
    """
    self._settings, self._split, self._folder = settings, split, folder
    self._report = report
    self._is_mixture = mixture.is_mixture(settings.source)
    self._digest = duplicates.Digest()
    self._duplicates = Duplicates(pairs=split.pairs)
    self._num_bytes = self._num_documents = 0
    self._parts = split.parts()
    self._state = None if state is None else json.loads(bytes(state['json']))
    if state is None:
      self._made = build_tokenizer(settings, split, folder, report)
    else:
      try:
        self._made = tokenizer.load(files.join(folder, token_store.TOKENIZER))
      except UsageError as e:
        raise StartOver(str(e)) from e
    sides = {False: folder}
    if split.holds_out:
      sides[True] = files.join(folder, token_store.VALIDATION)
    try:
      self._writers = {
        held_out: SplitWriter(path, self._made, f'{held_out}', state, settings)
        for held_out, path in sides.items()
      }
    except ValueError as e:
      raise StartOver(str(e).partition('\n')[0]) from e
    self._started = time.monotonic()

  def skip_written(self):
    """Reads the documents that were written, without encoding them.

    Raises:
      StartOver: they are others.
    """
    assert self._state is not None
    for _ in range(self._state['num_documents']):
      part = next(self._parts, None)
      if part is None:
        break
      self._add_to_digest(part)
      self._report('reading what was done', self._num_bytes, None)
    if self._digest.hexdigest() != self._state['sha256']:
      raise StartOver('the corpus has changed')
    log.info(
      '%s: going on after %d documents', self._folder, self._num_documents
    )

  def write(self, workers: int, wanted: dict[str, Any]):
    """Encodes and writes what is left, and notes down what is done."""
    self._save(wanted)
    on_disk = self._on_disk()
    batches = encode.batches(self._parts, self._made)
    for number, (batch, tokens) in enumerate(
      encode.encoded(batches, self._made, workers, self._settings.sentences)
    ):
      if not number:
        self._warn_of_losses(encode.text_of(batch[0]))
      for held_out, writer in self._writers.items():
        writer.add(
          [
            (found, piece.last, self._source_of(piece.part))
            for piece, found in zip(batch, tokens, strict=True)
            if piece.part.held_out == held_out
          ]
        )
      for piece in batch:
        if piece.last:
          size = self._add_to_digest(piece.part)
          self._writers[piece.part.held_out].num_bytes += size
      self._report('tokenizing', self._num_bytes, self._split.num_bytes)
      if batch[-1].last and self._on_disk() != on_disk:
        self._save(wanted)
        on_disk = self._on_disk()

  def close(self, cleaning: dict[str, Any]) -> Manifest:
    """Writes what is left, and the manifests."""
    for held_out, writer in self._writers.items():
      if not writer.num_bytes:
        raise empty(self._settings, held_out)
    notes = {
      'cleaning': cleaning,
      'skipped': dict(sorted(self._split.skipped().items())),
      'pairs': self._split.pairs,
    }
    done = {
      held_out: writer.finish(self._settings, self._digest.hexdigest(), notes)
      for held_out, writer in self._writers.items()
    }
    if True in done:
      below = files.join(self._folder, token_store.VALIDATION)
      manifest.write(below, done[True])
    files.delete(self._folder, unfinished.STATE)
    # Last: it is what makes the folder a token store.
    manifest.write(self._folder, done[False])
    seconds = time.monotonic() - self._started
    log_counts(done, self._num_bytes, seconds)
    self._warn_of_duplicates(done)
    return done[False]

  def _warn_of_duplicates(self, done: dict[bool, Manifest]):
    if count := self._duplicates.count():
      log.warning(
        '%s%d of %d held-out %s are in the training split too, word for word '
        'under other names: remove them%s',
        '' if self._duplicates.exact else 'about ',
        *(count, *_number(done[True])),
        '' if done[True].pairs else ", for instance by data.clean='minhash'",
      )

  def _warn_of_losses(self, first: encode.Text):
    made = self._made
    if first.of_source:
      made = tokenizer.of_sources(made)
    if change := tokenizer_report.change(made, first.text):
      log.warning('%s %s', self._settings.tokenizer, change)

  def _add_to_digest(self, part: Part) -> int:
    found, size = duplicates.of_part(part)
    self._digest.add(found)
    if self._split.holds_out:
      self._duplicates.add(part.document.text, part.held_out)
    self._num_bytes += size
    self._num_documents += 1
    return size

  def _source_of(self, part: Part) -> str:
    """The source within a mixture, which begins each name; else ''."""
    name, _, _ = part.document.name.partition('/')
    return name if self._is_mixture else ''

  def _on_disk(self) -> list[int]:
    return [writer.on_disk for writer in self._writers.values()]

  def _save(self, wanted: dict[str, Any]):
    """Writes all that going on from here needs."""
    state = {
      'num_documents': self._num_documents,
      'sha256': self._digest.hexdigest(),
    }
    arrays = {'json': as_bytes(wanted | state)}
    for held_out, writer in self._writers.items():
      arrays |= writer.state(f'{held_out}')
    unfinished.write(self._folder, arrays)


def build_tokenizer(
  settings: Settings, split: Split, folder: str, report: progress.Report
) -> Tokenizer:
  """Makes the tokenizer, and saves it in the folder of the store."""

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
  made.save(files.join(folder, token_store.TOKENIZER))
  log.info(
    '%s: %d tokens in %.1f s',
    *(settings.tokenizer, made.vocab_size),
    time.monotonic() - started,
  )
  return made


def empty(settings: Settings, held_out: bool) -> UsageError:
  """The error of a split without any document."""
  side = 'evaluation' if held_out else 'training'
  return UsageError(
    f'data.holdout={settings.holdout!r} leaves no document of '
    f'data.source={settings.source!r} for {side}; for a few documents use '
    "'tail(fraction=0.1)', which splits by characters"
  )


def log_counts(done: dict[bool, Manifest], num_bytes: int, seconds: float):
  """Says what was written, and how fast."""
  for held_out, written in done.items():
    log.info(
      '%s: %d %s, %d bytes, %d tokens',
      'validation' if held_out else 'train',
      *(*_number(written), written.num_bytes, written.num_tokens),
    )
    if written.num_tokens > _LONG * written.num_documents and not held_out:
      log.warning(
        'a document has %d tokens on average: too few end for a model to learn '
        'how a text begins, as `evaluate` and prompts need it; '
        "data.source='passages(...)' cuts them at blank lines",
        written.num_tokens // written.num_documents,
      )
  rate = num_bytes / 1e6 / max(seconds, 1e-9)
  log.info('tokenized and written at %.1f MB/s', rate)


def _number(written: Manifest) -> tuple[int, str]:
  """How many texts there are, and of which kind."""
  if written.pairs:
    return written.num_documents // 2, 'pairs'
  return written.num_documents, 'documents'
