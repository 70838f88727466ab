# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Named held-out sets, in addition to the split of the corpus.

  config.eval.sets = dict(wikitext="text('wiki.test.tokens')")
  config.eval.words = dict(wikitext='words_and_lines')

Each is a token store of its own, D/eval/NAME, with the tokenizer of the store
D. Sets may be added and removed while D stays as it is.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt_jax.core import spec
from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text import inputs
from gpt_jax.core.tokens import encode, manifest
from gpt_jax.core.tokens import store as token_store
from gpt_jax.core.tokens.corpus import Corpus, Settings
from gpt_jax.core.tokens.encode import StoreWriter
from gpt_jax.core.tokens.store import TokenStore

# The name of the held-out split of the corpus.
VALIDATION = token_store.VALIDATION

_FOLDER = 'eval'
_WORDS = ('words', 'words_and_lines')

log = logging.getLogger('gpt_jax')


class EvalSet(NamedTuple):
  """A set to evaluate on."""

  store: TokenStore
  num_words: float | None = None  # of the original text, see `eval.words`


def check(config: Any):
  """Checks `eval.sets` and `eval.words`, before anything is read."""
  sets, words = _tables(config)
  for name, call in sets.items():
    if not re.fullmatch(r'[\w.-]+', name) or name == VALIDATION:
      raise UsageError(
        f'eval.sets.{name}: is not a name for a set; take letters, digits, _, '
        f'- and ., but not {VALIDATION}, the split of the corpus'
      )
    spec.parse(f'eval.sets.{name}', call)
  for name, count in words.items():
    if name not in sets:
      raise UsageError(f'eval.words.{name}: eval.sets has no {name}, it has {sorted(sets)}')
    if count not in _WORDS and not (isinstance(count, int | float) and count > 0):
      raise UsageError(
        f'eval.words.{name}={count!r}: give the number of words, or one of ' + ', '.join(_WORDS)
      )


def ensure(config: Any, store: TokenStore):
  """Prepares the sets that are missing."""
  check(config)
  for name, call in _tables(config)[0].items():
    folder = files.join(store.folder, f'{_FOLDER}/{name}')
    if not manifest.exists(folder):
      with files.exclusive(folder, 'unfinished'):
        # Another process may have made it while we waited.
        if not manifest.exists(folder):
          _write(name, folder, call, store)
    _check_same(name, folder, call, store)


def held_out(config: Any, store: TokenStore) -> dict[str, EvalSet]:
  """Opens all held-out sets: the split of the corpus first."""
  found = {}
  validation = store.validation()
  if validation is not None:
    found[VALIDATION] = EvalSet(validation)
  sets, words = _tables(config)
  for name in sets:
    opened = store.held_out(files.join(store.folder, f'{_FOLDER}/{name}'))
    count, counted = words.get(name), opened.manifest
    if count in _WORDS:
      lines = counted.num_lines if count == 'words_and_lines' else 0
      count = counted.num_words + lines
    found[name] = EvalSet(opened, count)
  return found


def _tables(config: Any) -> tuple[Mapping[str, str], Mapping[str, Any]]:
  return config.eval.sets, config.eval.words


def _check_same(name: str, folder: str, call: str, store: TokenStore):
  found = manifest.read(folder)
  field = f'eval.sets.{name}'
  if spec.parse(field, found.source) != spec.parse(field, call):
    raise UsageError(
      f'{field}={call!r}: {folder} was prepared from {found.source!r}; take '
      'another name, or remove that folder'
    )
  if found.tokenizer_fingerprint != store.manifest.tokenizer_fingerprint:
    raise UsageError(f'{folder}: was prepared with another tokenizer; remove that folder')


def _write(name: str, folder: str, call: str, store: TokenStore):
  """Writes a set as a token store; its manifest last."""
  made = store.tokenizer()
  contents = store.manifest
  settings = Settings(
    source=call,
    holdout='none',
    tokenizer=contents.tokenizer,
    clean='none',
    compression=contents.compression,
    sentences=contents.sentences,
  )
  corpus = Corpus.of(settings, folder, f'eval.sets.{name}')
  corpus.record(folder)
  for part in token_store.PARTS:  # what a killed process left
    files.delete(folder, part)
  writer = StoreWriter(corpus, folder, made)
  num_words = num_lines = 0
  for parts in writer.write(num_workers=1):
    for part in parts:
      num_words += len(part.document.text.split())
      num_lines += part.document.text.count('\n')
  written = encode.manifest_of(
    settings,
    made,
    writer.close()[False],
    source_sha256=writer.digest.hexdigest(),
    num_words=num_words,
    num_lines=num_lines,
    pairs=corpus.split.pairs,
  )
  inputs.write(folder, inputs.look(corpus.split.files))
  manifest.write(folder, written)
  log.info(
    'eval set %s: %d documents, %d bytes, %d tokens, %d words',
    name,
    written.num_documents,
    written.num_bytes,
    written.num_tokens,
    num_words,
  )
