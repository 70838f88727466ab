# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to a token store: clean, split, make the tokenizer, encode, write.

A store is complete or absent: its manifest is written last, in one step. After
each shard the folder holds all that is needed to go on from there: the process
after one that was killed reads the documents again, compares them with those
that were written, and encodes the rest.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from gpt_jax.core import spec
from gpt_jax.core.files import files, progress, workers
from gpt_jax.core.files.document import Document, Source, of_source
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.text import holdout, inputs, sources
from gpt_jax.core.text.clean.choices import FOLDER as CLEANING
from gpt_jax.core.tokenizers import changes, tokenizer
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens import corpus as corpus_lib
from gpt_jax.core.tokens import document_names, encode, eval_sets, manifest
from gpt_jax.core.tokens import store as token_store
from gpt_jax.core.tokens.corpus import Corpus, Settings
from gpt_jax.core.tokens.duplicates import Duplicates
from gpt_jax.core.tokens.encode import StoreContents, StoreWriter
from gpt_jax.core.tokens.manifest import Manifest
from gpt_jax.core.tokens.store import StartOver, TokenStore

# In the folder while it is being written.
_UNFINISHED = 'unfinished'

# Imported where `data.clean` names a step.
_OF_CLEANING = Table({name: f'gpt_jax.core.tokens.cleaning:{name}' for name in ('clean', 'remove')})

# Tokens of a document, on average, above which a warning is logged. Whole books
# have more: a model of GPT-1's shape that read 16M tokens of them chose the
# right one of two sentences (BLiMP) in 52% of the cases after the end of a
# document, and in 60% after a line end.
_LONG = 20_000

log = logging.getLogger('gpt_jax')


class Executor(Protocol):
  """Where the work is done: here, or by the machines of a wing."""

  def check(self, corpus: Corpus) -> None:
    """Refuses what it cannot do."""
    ...

  def clean(self, corpus: Corpus, folder: str) -> tuple[Source, dict[str, Any]]:
    """Cleans the corpus, or resumes where a process died.

    Returns:
      What is left, and the manifest's entry about the rest.
    """
    ...

  def write(self, corpus: Corpus, folder: str, looked_at: dict[str, str]) -> StoreContents:
    """Writes the arrays of the store, or resumes where a process died."""
    ...


def prepare(
  config: Any,
  folder: str,
  report: progress.Report | None = None,
  *,
  executor: Callable[[progress.Report], Executor] | None = None,
) -> Manifest:
  """Makes the token store that `config` describes, unless it exists.

  If two processes prepare the same local folder, one writes and one waits.

  Args:
    config: its sections `data` and `tokenizer` are read.
    report: by default a bar, or log lines.
    executor: does the work; None: the processes of this machine.

  Returns:
    The manifest of the train split.
  """
  settings, corpus = corpus_lib.settings_of(config), None
  _refuse_foreign(folder)
  if not manifest.exists(folder):  # errors here leave no folder behind
    corpus = Corpus.of(settings, folder)
    _refuse_corpus(folder, corpus)
    corpus.check()
  with files.exclusive(folder, _UNFINISHED):
    if manifest.exists(folder):
      return _finished(settings, folder)
    corpus = corpus or Corpus.of(settings, folder)
    corpus.record(folder)
    with contextlib.ExitStack() as stack:
      if report is None:
        report = stack.enter_context(progress.bar())
      if executor:
        doing = executor(report)
      else:
        doing = LocalWorkers(workers.count(config.data.workers), report)
      doing.check(corpus)
      cleaning = {}
      if corpus.steps:
        source, cleaning = doing.clean(corpus, folder)
        corpus = corpus.cleaned(source)
      looked_at = inputs.look(corpus.files)
      contents = doing.write(corpus, folder, looked_at)
      inputs.write(folder, looked_at | _left_out(corpus, contents, looked_at))
      written = _write_manifests(corpus, folder, contents, cleaning)
    if corpus.steps:
      _OF_CLEANING['remove'](folder)
    return written


def _finished(settings: Settings, folder: str) -> Manifest:
  """The manifest of a store that is there, if it is of the same corpus."""
  contents = manifest.read(folder)
  _check_same(folder, contents, settings)
  if settings.clean != 'none':
    _OF_CLEANING['remove'](folder)
  if changed := _changes(settings, folder):
    raise UsageError(
      f'{folder}: the files that this token store was made from have changed '
      f'({changed}); name another folder, or remove this one'
    )
  return contents


def ensure(config: Any, folder: str) -> TokenStore:
  """Opens the token store of `config`, preparing it where it is missing."""
  eval_sets.check(config)
  settings = corpus_lib.settings_of(config)
  _check_rows(config, settings.source)
  if manifest.exists(folder):
    _check_same(folder, manifest.read(folder), settings)
    # A run goes on with the store it began with, also without the corpus.
    if changed := _changes(settings, folder):
      log.warning(
        '%s: the files that this token store was made from have changed (%s); it is used as it is',
        folder,
        changed,
      )
  else:
    # A set that is missing is refused before the hours that encoding may take.
    for name, call in config.eval.sets.items():
      holdout.split(call, 'none', field=f'eval.sets.{name}').check()
    prepare(config, folder)
  data = config.data
  store = TokenStore.open(folder).ordered(data.source, data.rows)
  eval_sets.ensure(config, store)
  return store


def _check_rows(config: Any, corpus: str):
  """Checks that sources have the texts, or pairs, that `data.rows` needs."""
  calls = {'data.source': corpus}
  calls |= {f'eval.sets.{n}': call for n, call in config.eval.sets.items()}
  for field, call in calls.items():
    pairs = sources.of_pairs(field, call)
    token_store.check_pairs(config.data.rows, pairs, f'{field}={call!r}')


def _check_same(folder: str, contents: Manifest, expected: Settings):
  """Raises if the store was prepared with other settings."""
  differing = []
  for field, name, value in zip(corpus_lib.FIELDS, Settings._fields, expected, strict=True):
    before = getattr(contents, name)
    if spec.parse(field, before) != spec.parse(field, value):
      differing.append(f'{field}={before!r} where the config has {value!r}')
  if differing:
    raise UsageError(
      f'{folder}: the token store was prepared with '
      + ', and with '.join(differing)
      + '; name another data.store, or remove the folder'
    )


def _refuse_foreign(folder: str):
  """Raises if the folder has files with our names that we did not write.

  The order of the checks matters where another process is writing: its mark is
  there from before its first file until after the manifest.
  """
  present = {name.split('/')[0] for name in files.names(folder)} & {*token_store.PARTS, CLEANING}
  if not present or files.read(folder, _UNFINISHED) is not None:
    return
  if not manifest.exists(folder):
    raise UsageError(
      f'{folder}: holds {", ".join(sorted(present))} but no token store, nor the mark of an '
      f'unfinished one, {files.join(folder, _UNFINISHED)}; name an empty folder, or remove this one'
    )


def _refuse_corpus(folder: str, corpus: Corpus):
  """Raises if the folder is that of the corpus, which would then hold both."""
  if not files.is_local(folder):
    return
  inside = os.path.join(os.path.realpath(folder), '')
  paths = corpus.split.files.values()
  real = {path: os.path.realpath(path) for path in map(os.path.dirname, paths)}
  for path in paths:
    if os.path.join(real[os.path.dirname(path)], '').startswith(inside):
      raise UsageError(
        f'{folder}: holds {path}, from which the token store is made, and '
        'would hold the store too; name a folder of its own'
      )


def _changes(settings: Settings, folder: str) -> str:
  """Names what differs from the files of a finished store; '' if nothing."""
  try:
    corpus = Corpus.of(settings, folder)
  except UsageError:  # the corpus is not here
    return ''
  return inputs.changes(folder, corpus.files)


class LocalWorkers:
  """An `Executor`: the processes of this machine."""

  def __init__(self, num_workers: int, report: progress.Report):
    self._num_workers, self._report = num_workers, report

  def check(self, corpus: Corpus) -> None:
    del corpus  # all can be done here

  def clean(self, corpus: Corpus, folder: str) -> tuple[Source, dict[str, Any]]:
    return _OF_CLEANING['clean'](corpus, folder, self._num_workers, self._report)

  def write(self, corpus: Corpus, folder: str, looked_at: dict[str, str]) -> StoreContents:
    split = corpus.split
    # What a store that is gone on with must be of.
    same_as = {'settings': [*corpus.settings], 'inputs': looked_at}
    copies = Duplicates(pairs=split.pairs)
    try:
      writer = self._resume(corpus, folder, same_as, copies)
    except StartOver as e:
      if str(e):
        log.info('%s: starting over: %s', folder, e)
      copies = Duplicates(pairs=split.pairs)
      made = encode.start(corpus, folder, self._report)
      writer = StoreWriter(corpus, folder, made)
    started, first = time.monotonic(), True
    on_disk = _save(folder, same_as, writer)
    for parts in writer.write(self._num_workers):
      for part in parts:
        if first:
          _warn_of_losses(corpus.settings, writer.tokenizer, part.document)
          first = False
        if split.holds_out:
          copies.add(part.document.text, part.held_out)
      self._report('tokenizing', writer.num_bytes, split.num_bytes)
      if writer.at_end and writer.on_disk != on_disk:
        on_disk = _save(folder, same_as, writer)
    return StoreContents(
      tokenizer=writer.tokenizer,
      splits=writer.close(),
      sha256=writer.digest.hexdigest(),
      skipped=writer.skipped,
      seconds=time.monotonic() - started,
      copies=copies.copies(),
    )

  def _resume(
    self, corpus: Corpus, folder: str, same_as: dict[str, Any], copies: Duplicates
  ) -> StoreWriter:
    """Resumes where a process died (`StartOver`: something has changed)."""
    state = token_store.read_state(folder, same_as)
    entries = json.loads(bytes(state['json']))
    try:
      made = tokenizer.load(files.join(folder, token_store.TOKENIZER))
      writer = StoreWriter(corpus, folder, made, state=state)
    except (UsageError, ValueError, KeyError) as e:
      raise StartOver(str(e).partition('\n')[0]) from e
    for part in writer.skip(entries['num_documents']):
      if corpus.split.holds_out:
        copies.add(part.document.text, part.held_out)
      self._report('reading what was done', writer.num_bytes, None)
    if writer.digest.hexdigest() != entries['sha256']:
      raise StartOver('the corpus has changed')
    log.info('%s: going on after %d documents', folder, writer.num_documents)
    return writer


def _left_out(corpus: Corpus, contents: StoreContents, looked_at: dict[str, str]) -> dict[str, str]:
  """The entries of files that are one document each, and that became none.

  `document_names` numbers the documents by them. The corpus is read once more,
  but only where some of it was left out.
  """
  texts = document_names.files_of_texts(corpus.settings.source, looked_at)
  if not texts or not contents.skipped or corpus.settings.clean != 'none':
    return {}
  for part in corpus.split.parts():
    texts.discard(part.document.name)
  return {name: looked_at[name] + inputs.LEFT_OUT for name in texts}


def _save(folder: str, same_as: dict[str, Any], writer: StoreWriter) -> list[int]:
  """Writes the state from which to resume; returns `StoreWriter.on_disk`."""
  state = {'num_documents': writer.num_documents, 'sha256': writer.digest.hexdigest()}
  arrays = {'json': token_store.as_bytes(same_as | state)} | writer.state()
  token_store.write_state(folder, arrays)
  return writer.on_disk


def _warn_of_losses(settings: Settings, made: Tokenizer, document: Document):
  if of_source(document.name):
    made = made.sources
  if change := changes.change(made, document.text):
    log.warning('%s %s', settings.tokenizer, change)


def _write_manifests(
  corpus: Corpus, folder: str, contents: StoreContents, cleaning: dict[str, Any]
) -> Manifest:
  """Writes the manifests, the train split's last, and logs counts."""
  settings, pairs = corpus.settings, corpus.split.pairs
  done: dict[bool, Manifest] = {}
  for held_out, part in contents.splits.items():
    if not part.num_bytes:
      side = 'evaluation' if held_out else 'training'
      raise UsageError(
        f'data.holdout={settings.holdout!r} leaves no document of '
        f'data.source={settings.source!r} for {side}; for a few documents use '
        "'tail(fraction=0.1)', which splits by characters"
      )
    done[held_out] = encode.manifest_of(
      settings,
      contents.tokenizer,
      part,
      source_sha256=contents.sha256,
      cleaning=cleaning,
      skipped=dict(sorted(contents.skipped.items())),
      pairs=pairs,
    )
  if True in done:
    below = files.join(folder, token_store.VALIDATION)
    manifest.write(below, done[True])
  files.delete(folder, token_store.STATE)
  # Last: it is what makes the folder a token store.
  manifest.write(folder, done[False])
  number, kind = 1, 'documents'
  if pairs:
    number, kind = 2, 'pairs'
  for held_out, written in done.items():
    log.info(
      '%s: %d %s, %d bytes, %d tokens',
      'validation' if held_out else 'train',
      written.num_documents // number,
      kind,
      written.num_bytes,
      written.num_tokens,
    )
    if written.num_tokens > _LONG * written.num_documents and not held_out:
      log.warning(
        'a document has %d tokens on average: too few end for a model to learn '
        'how a text begins, as `evaluate` and prompts need it; '
        "data.source='passages(...)' cuts them at blank lines",
        written.num_tokens // written.num_documents,
      )
  num_bytes = sum(written.num_bytes for written in done.values())
  rate = num_bytes / 1e6 / max(contents.seconds, 1e-9)
  log.info('tokenized and written at %.1f MB/s', rate)
  count, exact = contents.copies
  if count:
    log.warning(
      '%s%d of %d held-out %s are in the training split too, word for word '
      'under other names: remove them%s',
      '' if exact else 'about ',
      count,
      done[True].num_documents // number,
      kind,
      '' if pairs else ", for instance by data.clean='minhash'",
    )
  return done[False]
