# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to a token store: clean, split, make the tokenizer, encode, write.

A store is complete or absent: its manifest is written last, in one step. After
each shard the folder holds all that is needed to go on from there: the process
after one that was killed reads the documents again, compares them with those
that were written, and encodes the rest.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import shutil
import tempfile
import time
from typing import Any

from gpt_jax import spec
from gpt_jax.files import files, progress, workers
from gpt_jax.files.document import Document, Source, of_source
from gpt_jax.spec import UsageError
from gpt_jax.text import holdout, inputs, sentences, sources
from gpt_jax.text.clean import choices, stages
from gpt_jax.text.clean import report as clean_report
from gpt_jax.text.clean import run as clean_run
from gpt_jax.text.holdout import Split
from gpt_jax.tokenizers import report as tokenizer_report
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokens import encode, eval_sets, manifest, mixture
from gpt_jax.tokens import store as token_store
from gpt_jax.tokens.duplicates import Duplicates
from gpt_jax.tokens.encode import Settings, StoreContents, StoreWriter
from gpt_jax.tokens.manifest import Manifest
from gpt_jax.tokens.store import StartOver, TokenStore, codec

# In the folder while it is being written.
_UNFINISHED = 'unfinished'
_CLEANING = stages.FOLDER

_FIELDS = Settings(
  *('data.source', 'data.holdout', 'tokenizer.name', 'data.clean'),
  *('data.compression', 'data.sentences'),
)

# Tokens of a document, on average, above which a warning is logged. Whole books
# have more: a model of GPT-1's shape that read 16M tokens of them chose the
# right one of two sentences (BLiMP) in 52% of the cases after the end of a
# document, and in 60% after a line end.
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
  """Makes the token store that `config` describes, unless it exists.

  If two processes prepare the same local folder, one writes and one waits.

  Args:
    config: its sections `data` and `tokenizer` are read.
    report: by default a bar, or log lines.
    runner: of Apache Beam, which then does the work; None: this machine does.
    beam_options: of Apache Beam, as a command line has them.

  Returns:
    The manifest of the train split.
  """
  settings = _settings(config)
  beam = _beam() if runner else None
  _refuse_foreign(folder)
  if not manifest.exists(folder):  # errors here leave no folder behind
    for step in choices.load(settings.clean):
      step.check()
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
    with contextlib.ExitStack() as stack:
      if report is None:
        report = stack.enter_context(progress.bar())
      if beam:
        executor = beam.Beam(runner, beam_options, report)
        executor.check(settings, split)
      else:
        executor = _Pool(workers.count(config.data.workers), report)
      if choices.load(settings.clean):
        source, entries = executor.clean(settings, split, folder)
        split, cleaning = _split_again(settings, split, folder, source, entries)
      looked_at = inputs.look(split.files)
      contents = executor.write(settings, split, folder, looked_at)
      inputs.write(folder, looked_at)
      done = _write_manifests(settings, split, folder, contents, cleaning)
    _remove_cleaning(folder)
    return done


def _beam() -> Any:
  """The module that runs the same stages on Apache Beam."""
  try:
    importlib.import_module('apache_beam')
  except ImportError as e:
    raise UsageError(
      '--runner: needs Apache Beam; in an environment of its own run pip '
      "install -c constraints-beam.txt -e '.[beam,clean]'"
    ) from e
  return importlib.import_module('gpt_jax.tokens.prepare_on_beam')


def ensure(config: Any, folder: str) -> TokenStore:
  """Opens the token store of `config`, preparing it where it is missing."""
  eval_sets.check(config)
  settings = _settings(config)
  _check_rows(config, settings.source)
  if manifest.exists(folder):
    _check_same(folder, manifest.read(folder), settings)
    # A run goes on with the store it began with, also without the corpus.
    if changed := _changes(settings, folder):
      log.warning(
        '%s: the files that this token store was made from have changed (%s); '
        'it is used as it is',
        *(folder, changed),
      )
  else:
    # A set that is missing is refused before the hours that encoding may take.
    for name, call in config.eval.sets.items():
      holdout.split(call, 'none', field=f'eval.sets.{name}')
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
  """Raises if the folder has files with our names that we did not write.

  The order of the checks matters where another process is writing: its mark is
  there from before its first file until after the manifest.
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
  """The split of the corpus, with all files that the store depends on."""
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


def _split_again(
  settings: Settings,
  split: Split,
  folder: str,
  left: Source,
  entries: list[dict[str, Any]],
) -> tuple[Split, dict[str, Any]]:
  """Splits the cleaned corpus; a separate held-out source stays as it is.

  Args:
    left: the cleaned corpus.
    entries: of each step, for the report.

  Returns:
    The split, and the manifest's entry about the cleaning.
  """
  for entry, step in zip(entries, choices.load(settings.clean), strict=True):
    if notes := step.notes():
      entry['notes'] = notes
  found = {'steps': entries, 'skipped': dict(sorted(left.skipped().items()))}
  data = json.dumps(found, indent=1, ensure_ascii=False).encode() + b'\n'
  files.write(folder, clean_report.NAME, data)
  summary = clean_report.summary(entries)
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
  """The local folder of the documents while they are being cleaned."""
  if files.is_local(folder):
    return os.path.join(folder, _CLEANING)
  digest = hashlib.sha256(folder.encode()).hexdigest()[:16]
  name = f'gpt_jax-cleaning-{os.geteuid()}-{digest}'
  return os.path.join(tempfile.gettempdir(), name)


def _remove_cleaning(folder: str):
  """Removes the documents of cleaning, here and where workers see them."""
  shutil.rmtree(_cleaning_folder(folder), ignore_errors=True)
  files.delete(folder, _CLEANING)


def _changes(settings: Settings, folder: str) -> str:
  """Names what differs from the files of a finished store; '' if nothing."""
  try:
    split = _split(settings)
  except UsageError:  # the corpus is not here
    return ''
  return inputs.changes(folder, split.files)


class _Pool:
  """Runs the stages of cleaning and of encoding on this machine."""

  def __init__(self, num_workers: int, report: progress.Report):
    self._num_workers, self._report = num_workers, report

  def clean(
    self, settings: Settings, split: Split, folder: str
  ) -> tuple[Source, list[dict[str, Any]]]:
    """Cleans the corpus, or resumes where a process died."""
    corpus = sources.load('data.source', settings.source)
    below = _cleaning_folder(folder)
    result = clean_run.clean(
      *(corpus, settings.clean, below),
      [settings.source, inputs.look(split.files)],
      in_mixture=mixture.is_mixture(settings.source),
      num_workers=self._num_workers,
      show=self._report,
    )
    return stages.cleaned(corpus, below, result), result.entries

  def write(
    self, settings: Settings, split: Split, folder: str, looked_at: Any
  ) -> StoreContents:
    """Writes the arrays of the store, or resumes where a process died."""
    wanted = {'settings': [*settings], 'inputs': looked_at}
    same = Duplicates(pairs=split.pairs)
    try:
      made, writer = self._resume(settings, split, folder, wanted, same)
    except StartOver as e:
      if str(e):
        log.info('%s: starting over: %s', folder, e)
      same = Duplicates(pairs=split.pairs)
      made = encode.start(settings, split, folder, self._report)
      in_mixture = mixture.is_mixture(settings.source)
      writer = StoreWriter(
        *(settings, split, folder, made), in_mixture=in_mixture
      )
    started, first = time.monotonic(), True
    on_disk = _save(folder, wanted, writer)
    for parts in writer.write(self._num_workers):
      for part in parts:
        if first:
          _warn_of_losses(settings, made, part.document)
          first = False
        if split.holds_out:
          same.add(part.document.text, part.held_out)
      self._report('tokenizing', writer.num_bytes, split.num_bytes)
      if writer.at_end and writer.on_disk != on_disk:
        on_disk = _save(folder, wanted, writer)
    return StoreContents(
      *(made, writer.close(), writer.digest.hexdigest(), split.skipped()),
      seconds=time.monotonic() - started,
      copies=same.copies(),
    )

  def _resume(
    self,
    settings: Settings,
    split: Split,
    folder: str,
    wanted: dict[str, Any],
    same: Duplicates,
  ) -> tuple[Tokenizer, StoreWriter]:
    """Resumes where a process died (`StartOver`: something has changed)."""
    state = token_store.read_state(folder, wanted)
    entries = json.loads(bytes(state['json']))
    try:
      made = tokenizer.load(files.join(folder, token_store.TOKENIZER))
      in_mixture = mixture.is_mixture(settings.source)
      writer = StoreWriter(
        *(settings, split, folder, made), in_mixture=in_mixture, state=state
      )
    except (UsageError, ValueError, KeyError) as e:
      raise StartOver(str(e).partition('\n')[0]) from e
    for part in writer.skip(entries['num_documents']):
      if split.holds_out:
        same.add(part.document.text, part.held_out)
      self._report('reading what was done', writer.num_bytes, None)
    if writer.digest.hexdigest() != entries['sha256']:
      raise StartOver('the corpus has changed')
    log.info('%s: going on after %d documents', folder, writer.num_documents)
    return made, writer


def _save(
  folder: str, wanted: dict[str, Any], writer: StoreWriter
) -> list[int]:
  """Writes the state from which to resume; returns `StoreWriter.on_disk`."""
  state = {
    'num_documents': writer.num_documents,
    'sha256': writer.digest.hexdigest(),
  }
  arrays = {'json': token_store.as_bytes(wanted | state)} | writer.state()
  token_store.write_state(folder, arrays)
  return writer.on_disk


def _warn_of_losses(settings: Settings, made: Tokenizer, document: Document):
  if of_source(document.name):
    made = tokenizer.of_sources(made)
  if change := tokenizer_report.change(made, document.text):
    log.warning('%s %s', settings.tokenizer, change)


def _write_manifests(
  settings: Settings,
  split: Split,
  folder: str,
  contents: StoreContents,
  cleaning: dict[str, Any],
) -> Manifest:
  """Writes the manifests, the train split's last, and logs counts."""
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
      *(settings, contents.tokenizer, part),
      source_sha256=contents.sha256,
      cleaning=cleaning,
      skipped=dict(sorted(contents.skipped.items())),
      pairs=split.pairs,
    )
  if True in done:
    below = files.join(folder, token_store.VALIDATION)
    manifest.write(below, done[True])
  files.delete(folder, token_store.STATE)
  # Last: it is what makes the folder a token store.
  manifest.write(folder, done[False])
  number, kind = 1, 'documents'
  if split.pairs:
    number, kind = 2, 'pairs'
  for held_out, written in done.items():
    log.info(
      '%s: %d %s, %d bytes, %d tokens',
      'validation' if held_out else 'train',
      *(written.num_documents // number, kind),
      *(written.num_bytes, written.num_tokens),
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
      *(count, done[True].num_documents // number, kind),
      '' if split.pairs else ", for instance by data.clean='minhash'",
    )
  return done[False]
