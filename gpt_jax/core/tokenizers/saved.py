# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A saved tokenizer: a folder with `tokenizer.json` and the files it names."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special, words
from gpt_jax.core.tokenizers.special import Special

_INDEX = 'tokenizer.json'

# The kind of a folder of two tokenizers, and the folders inside of it.
PAIR = 'sides'
SIDES = ('target', 'source')


class Saved:
  """A tokenizer that its files define; see `tokenizer.Tokenizer`.

  Attributes:
    own_sources: reads the sources of pairs; None: this one does.
  """

  kind: str
  contents: Mapping[str, bytes]
  vocab_size: int
  own_sources: 'Saved | None' = None
  _words: words.Words

  @property
  def sources(self) -> Any:
    return self.own_sources or self

  @property
  def source_vocab_size(self) -> int:
    return self.own_sources.vocab_size if self.own_sources else 0

  @property
  def own_fingerprint(self) -> str:
    """Of the ids of all texts but the sources of pairs."""
    return fingerprint(self.kind, self.contents)

  @property
  def fingerprint(self) -> str:
    if self.own_sources is None:
      return self.own_fingerprint
    return fingerprint(PAIR, self._pair())

  def _pair(self) -> dict[str, bytes]:
    """The file that says which two tokenizers belong together."""
    prints = self.own_fingerprint, self.sources.fingerprint
    return {f'{PAIR}.txt': ''.join(f'{x}\n' for x in prints).encode()}

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return self._words.starts(ids)

  def save(self, folder: str) -> None:
    if self.own_sources is None:
      _write(folder, self.kind, self.contents)
      return
    for name, side in zip(SIDES, (self, self.sources), strict=True):
      _write(files.join(folder, name), side.kind, side.contents)
    _write(folder, PAIR, self._pair())


def paired(target: Any, sources: Any) -> Any:
  """A tokenizer like `target` that reads sources of pairs by another."""
  if target.own_sources or sources.own_sources:
    raise UsageError(
      'tokenizer.name: one of the two tokenizers of sides is a pair itself; give single ones'
    )
  pair = copy.copy(target)
  pair.own_sources = sources
  return pair


def _write(folder: str, kind: str, contents: Mapping[str, bytes]) -> None:
  """Writes the files of a tokenizer, the index last."""
  for name, data in contents.items():
    files.write(folder, name, data)
  index = {
    'kind': kind,
    'files': sorted(_defining(contents)),
    'fingerprint': fingerprint(kind, contents),
  }
  beside = {
    name: hashlib.sha256(contents[name]).hexdigest()
    for name in sorted(contents.keys() - _defining(contents).keys())
  }
  index |= {'beside': beside} if beside else {}
  files.write(folder, _INDEX, json.dumps(index, indent=2).encode() + b'\n')


class Vocabulary(Saved):
  """A vocabulary, maybe an import with files about special tokens."""

  eos_id: int
  vocab_size: int
  special: Special
  # The ids that its file puts before a text; None: the file does not say.
  text_start: tuple[int, ...] | None = None

  def __init__(self, kind: str, contents: Mapping[str, bytes]):
    self.kind, self.contents = kind, contents

  @classmethod
  def of_files(cls, kind: str, contents: dict[str, bytes]) -> Self:
    """The tokenizer that wrote these files."""
    return cls(kind, contents)

  def _settle(self, size: int, eos_id: int) -> None:
    """Sets the size of the vocabulary, the end of a document, and `special`."""
    self._size, self.eos_id = size, eos_id
    self.vocab_size = special.num_rows(self.contents, size)
    self.special = special.of(self.contents, eos_id, self.special_names)

  @property
  def special_names(self) -> Mapping[str, int]:
    """Special tokens of its file."""
    return {}

  def token(self, i: int) -> str | None:
    raise NotImplementedError

  def id_of(self, token: str) -> int | None:
    raise NotImplementedError

  def encode(self, text: str) -> np.ndarray:
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    raise NotImplementedError

  def encode_special(self, text: str) -> np.ndarray:
    ids = special.encode(text, self.special.names, self.encode)
    self._check_rows([ids])
    return ids

  def offsets(self, text: str) -> np.ndarray:
    raise NotImplementedError

  def offsets_special(self, text: str) -> np.ndarray:
    return special.offsets(text, self.special.names, self.offsets)

  def _check_rows(self, found: Sequence[np.ndarray]) -> None:
    """Refuses ids for which the model has no embedding."""
    if self.vocab_size == self._size:
      return
    for ids in found:
      if len(ids) and (worst := int(ids.max())) >= self.vocab_size:
        raise UsageError(
          f'the text needs the token {self.token(worst)!r} with id {worst}, '
          f'and the model has only {self.vocab_size} rows for tokens; leave '
          'that token out of the text'
        )

  def _visible(self, ids: Iterable[int]) -> list[int]:
    """The ids that `decode` does not leave out."""
    unseen = {self.eos_id, *self.special.prompt_start}
    return [int(i) for i in ids if i not in unseen]


def user_file(path: str, what: str) -> bytes:
  """Reads a file that `tokenizer.name` names; `what` is for the error."""
  files.check_regular(path, remedy=f'name {what}')
  try:
    with open(path, 'rb') as file:
      return file.read()
  except OSError as e:
    raise UsageError(f'tokenizer.name: cannot read {path!r} ({e.strerror}); name {what}') from e


def fingerprint(kind: str, contents: Mapping[str, bytes]) -> str:
  """Returns the sha256 of the files that define the ids of a text."""
  total = hashlib.sha256(kind.encode())
  for name, data in sorted(_defining(contents).items()):
    total.update(name.encode() + hashlib.sha256(data).digest())
  return total.hexdigest()


def read(folder: str) -> tuple[str, dict[str, bytes]]:
  """Returns the kind of a saved tokenizer and its files."""

  def fail(name: str, what: str):
    return UsageError(
      f'{files.join(folder, name)}: {what}; copy the tokenizer folder again, '
      'or prepare the data again'
    )

  data = files.read(folder, _INDEX)
  if data is None:
    raise fail(_INDEX, 'there is no saved tokenizer')
  try:
    index = json.loads(data)
    kind, names = index['kind'], index['files']
    expected, beside = index['fingerprint'], index.get('beside', {})
  except (ValueError, RecursionError, KeyError, TypeError) as e:
    raise fail(_INDEX, 'is damaged') from e
  whole = isinstance(names, list) and all(isinstance(n, str) for n in names)
  if not whole or not isinstance(kind, str) or not isinstance(beside, dict):
    raise fail(_INDEX, 'is damaged')
  contents = {}
  for name in (*names, *beside):
    part = files.read(folder, files.inside(name, of=files.join(folder, _INDEX)))
    if part is None:
      raise fail(name, 'is missing')
    contents[name] = part
  if fingerprint(kind, contents) != expected:
    raise fail(_INDEX, f'{", ".join(names) or kind} was changed or damaged')
  for name, digest in beside.items():
    if hashlib.sha256(contents[name]).hexdigest() != digest:
      raise fail(name, 'was changed or damaged')
  return kind, contents


def _defining(contents: Mapping[str, bytes]) -> dict[str, bytes]:
  """The files that the ids of a text depend on.

  The others are not in the fingerprint, by which token stores are compared.
  """
  others = (special.SPECIAL, *special.BESIDE)
  return {name: data for name, data in contents.items() if name not in others}
