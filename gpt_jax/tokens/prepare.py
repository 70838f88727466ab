# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to a token store: clean, split, make the tokenizer, encode, write.

A store is whole or none: the manifest of the folder is written last, in one
step. After each shard the folder holds all that is needed to go on from there:
the process after one that was killed reads the documents again, compares them
with what was prepared, and encodes those that follow.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpt_jax import spec
from gpt_jax.files import files, progress, workers
from gpt_jax.files.document import Document
from gpt_jax.spec import UsageError
from gpt_jax.text import holdout, inputs, sentences, sources
from gpt_jax.text.clean import choices, shared
from gpt_jax.text.clean import report as clean_report
from gpt_jax.text.clean import run as clean_run
from gpt_jax.text.clean.run import Cleaned
from gpt_jax.text.holdout import Part, Split
from gpt_jax.tokenizers import report as tokenizer_report
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import beam as beam_modules
from gpt_jax.tokens import duplicates, encode, eval_sets, manifest, mixture
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.encode import Settings, SplitWriter, as_bytes
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import StartOver, TokenStore, codec

# In the folder while it is being written.
_UNFINISHED = 'unfinished'
_CLEANING = shared.FOLDER

_FIELDS = Settings(
  *('data.source', 'data.holdout', 'tokenizer.name', 'data.clean'),
  *('data.compression', 'data.sentences'),
)

# Tokens of a document, on average, above which a warning is logged. Whole books
# have more; a model of GPT-1's shape that read 16M tokens of them chose the
# right one of two sentences (BLiMP) in 52% when the end of a document stood
# before them, and in 60% when a line end did.
_LONG = 20_000

log = logging.getLogger('gpt_jax')


def prepare(
  config: Any,
  folder: str,
  report: progress.Report | None = None,
  *,
  runner: str | None = None,
  beam_options: str = '',
) -> Manifest:
  """Makes the token store that `config` describes, unless it is there.

  Two processes may ask for the same local folder: one writes, one waits.

  Args:
    config: its sections `data` and `tokenizer` are read.
    report: by default a bar, or log lines.
    runner: of Apache Beam, which then does the work; None: this machine does.
    beam_options: of Apache Beam, as a command line has them.

  Returns:
    The manifest of the train split.
  """
  settings = _settings(config)
  beam = beam_modules.load() if runner else None
  _refuse_foreign(folder)
  if not manifest.exists(folder):  # what is refused here leaves no folder
    choices.check(choices.load(settings.clean))
    spec.build('tokenizer.name', settings.tokenizer, tokenizer.TOKENIZERS)
    _split(settings)
  with files.exclusive(folder, _UNFINISHED):
    if manifest.exists(folder):
      found = manifest.read(folder)
      _check_same(folder, found, settings)
      _remove_cleaning(folder)
      if changed := _changes(settings, folder):
        raise UsageError(
          f'{folder}: the files that this token store was made from have '
          f'changed ({changed}); name another folder, or remove this one'
        )
      return found
    split, cleaning = _split(settings), {}
    num_workers = workers.count(config.data.workers)
    with contextlib.ExitStack() as stack:
      if report is None:
        report = stack.enter_context(progress.bar())
      job = beam and beam.job.Job(runner, beam_options)
      if beam:
        beam.job.check(job, split, settings.holdout)
      if choices.load(settings.clean):
        if beam:
          cleaned = beam.clean.clean(settings, split, folder, job)
        else:
          cleaned = _clean(settings, split, folder, num_workers, report)
        split, cleaning = _split_again(settings, split, folder, cleaned)
      write = functools.partial(
        beam.build.write if beam else _write,
        *(settings, split, folder),
        report=report,
        cleaning=cleaning,
      )
      done = write(job=job) if beam else write(num_workers=num_workers)
    _remove_cleaning(folder)
    return done


def ensure(config: Any, folder: str) -> TokenStore:
  """Opens the token store of `config`, preparing it where it is missing."""
  eval_sets.check(config)
  settings = _settings(config)
  _check_rows(config, settings.source)
  if manifest.exists(folder):
    _check_same(folder, manifest.read(folder), settings)
    # A run goes on with what it began with, and where the corpus is not.
    if changed := _changes(settings, folder):
      log.warning(
        '%s: the files that this token store was made from have changed (%s); '
        'it is used as it is',
        *(folder, changed),
      )
  else:
    prepare(config, folder)
  data = config.data
  store = TokenStore.open(folder).ordered(data.source, data.rows)
  eval_sets.ensure(config, store)
  return store


def _check_rows(config: Any, corpus: str):
  """Checks that sources hold what rows are made of, before they are read."""
  calls = {'data.source': corpus}
  calls |= {f'eval.sets.{n}': call for n, call in config.eval.sets.items()}
  for field, call in calls.items():
    pairs = sources.of_pairs(field, call)
    token_store.check_pairs(config.data.rows, pairs, f'{field}={call!r}')


def _settings(config: Any) -> Settings:
  data: Any = config.data
  chosen: Any = config.tokenizer
  source = data.source
  if mixture.is_mixture(source):
    source = mixture.corpus(source, data.sources)
    if spec.parse('data.holdout', data.holdout)[0].name == 'tail':
      raise UsageError(
        f'data.holdout={data.holdout!r}: would hold out the last source of a '
        "mixture alone; take 'documents(fraction=0.02)'"
      )
  codec(data.compression)
  sentences.splitter(data.sentences)
  return Settings(
    *(source, data.holdout, chosen.name, data.clean),
    *(data.compression, data.sentences),
  )


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
  present = {name.split('/')[0] for name in files.names(folder)} & {
    *token_store.PARTS,
    _CLEANING,
  }
  if not present or files.read(folder, _UNFINISHED) is not None:
    return
  if not manifest.exists(folder):
    raise UsageError(
      f'{folder}: holds {", ".join(sorted(present))} but no token store; name '
      'an empty folder'
    )


def _split(settings: Settings) -> Split:
  """The documents, and all files that the store depends on."""
  split = holdout.split(settings.source, settings.holdout)
  if split.pairs and choices.load(settings.clean):
    raise UsageError(
      f'data.clean={settings.clean!r}: takes out texts one by one, and those '
      f"of data.source={settings.source!r} are pairs; set data.clean='none'"
    )
  calls = tokenizer.single(settings.tokenizer)
  if len(calls) > 1 and not split.pairs:
    raise UsageError(
      f'tokenizer.name={settings.tokenizer!r}: is for pairs of texts, and '
      f'data.source={settings.source!r} has none; give one tokenizer'
    )
  named = {
    f'tokenizer: {os.path.basename(value)}': value
    for text in calls
    for call in spec.parse('tokenizer.name', text)[:1]
    for value in (*call.args, *call.kwargs.values())
    if isinstance(value, str) and os.path.isfile(value)
  }
  for step in choices.load(settings.clean):
    named |= {f'clean: {name}': path for name, path in step.files.items()}
  return split._replace(files=split.files | named)


def _clean(
  settings: Settings,
  split: Split,
  folder: str,
  num_workers: int,
  report: progress.Report,
) -> Cleaned:
  """Cleans the corpus on this machine."""
  return clean_run.clean(
    sources.load('data.source', settings.source),
    settings.clean,
    _cleaning_folder(folder),
    [settings.source, inputs.look(split.files)],
    in_mixture=mixture.is_mixture(settings.source),
    num_workers=num_workers,
    show=report,
  )


def _split_again(
  settings: Settings, split: Split, folder: str, cleaned: Cleaned
) -> tuple[Split, dict[str, Any]]:
  """Splits what is left; the held-out documents of a source of its own stay.

  Returns:
    The split, and what the manifest says of the cleaning.
  """
  left = cleaned.source
  skipped = dict(sorted(left.skipped().items()))
  found = choices.load(settings.clean)
  for entry, step in zip(cleaned.entries, found, strict=True):
    if notes := step.notes():
      entry['notes'] = notes
  entries = {'steps': cleaned.entries, 'skipped': skipped}
  data = json.dumps(entries, indent=1, ensure_ascii=False).encode() + b'\n'
  files.write(folder, clean_report.NAME, data)
  summary = clean_report.summary(cleaned.entries)
  log.info(
    'cleaned: %d of %d documents and %d of %d bytes are left',
    *(summary['documents_out'], summary['documents_in']),
    *(summary['bytes_out'], summary['bytes_in']),
  )
  if not left.num_bytes:
    raise UsageError(
      f'data.clean={settings.clean!r}: leaves no document of the corpus; '
      f'{files.join(folder, clean_report.NAME)} tells which rule took them'
    )
  again = holdout.split(settings.source, settings.holdout, left)
  return again._replace(files=split.files), summary


def _cleaning_folder(folder: str) -> str:
  """Where documents wait while they are cleaned: on a disk of this machine."""
  if files.is_local(folder):
    return os.path.join(folder, _CLEANING)
  digest = hashlib.sha256(folder.encode()).hexdigest()[:16]
  name = f'gpt_jax-cleaning-{os.geteuid()}-{digest}'
  return os.path.join(tempfile.gettempdir(), name)


def _remove_cleaning(folder: str):
  """Removes the documents that waited, here or where workers see them."""
  shutil.rmtree(_cleaning_folder(folder), ignore_errors=True)
  files.delete(folder, _CLEANING)


def _changes(settings: Settings, folder: str) -> str:
  """Names what differs from the files of a finished store; '' if nothing."""
  try:
    split = _split(settings)
  except UsageError:  # the corpus is not here
    return ''
  return inputs.changes(folder, split.files)


def _write(
  settings: Settings,
  split: Split,
  folder: str,
  *,
  num_workers: int,
  report: progress.Report,
  cleaning: dict[str, Any],
) -> Manifest:
  """Writes the store on this machine, or goes on where a process died."""
  found = inputs.look(split.files)
  wanted = {'settings': [*settings], 'inputs': found}
  try:
    state = token_store.read_state(folder, wanted)
    writing = _Writing(settings, split, folder, report, state)
    writing.skip_written()
  except StartOver as e:
    if str(e):
      log.info('%s: starting over: %s', folder, e)
    for name in token_store.PARTS:  # what an unfinished preparation left
      files.delete(folder, name)
    writing = _Writing(settings, split, folder, report, None)
  writing.write(num_workers, wanted)
  inputs.write(folder, found)
  return writing.close(cleaning)


class _Writing:
  """Both splits while they are written."""

  def __init__(
    self,
    settings: Settings,
    split: Split,
    folder: str,
    report: progress.Report,
    state: dict[str, np.ndarray] | None,
  ):
    """Begins, or goes on from `state` (`StartOver`: the folder has changed)."""
    self._settings, self._split, self._folder = settings, split, folder
    self._report = report
    # The source within a mixture begins the name of each document.
    self._is_mixture = mixture.is_mixture(settings.source)
    self._digest = duplicates.Digest()
    self._duplicates = duplicates.Duplicates(pairs=split.pairs)
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
    """Reads the documents that were written (`StartOver`: they changed)."""
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

  def write(self, num_workers: int, wanted: dict[str, Any]):
    """Encodes and writes what is left, and notes down what is done."""
    on_disk = self._save(wanted)
    batches = encode.batches(self._parts, self._made)
    for number, (batch, tokens) in enumerate(
      encode.encoded(batches, self._made, num_workers, self._settings.sentences)
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
        on_disk = self._save(wanted)

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
    files.delete(self._folder, token_store.STATE)
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

  def _save(self, wanted: dict[str, Any]) -> list[int]:
    """Writes all that going on from here needs; returns `_on_disk`."""
    state = {
      'num_documents': self._num_documents,
      'sha256': self._digest.hexdigest(),
    }
    arrays = {'json': as_bytes(wanted | state)}
    for held_out, writer in self._writers.items():
      arrays |= writer.state(f'{held_out}')
    token_store.write_state(self._folder, arrays)
    return self._on_disk()


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
