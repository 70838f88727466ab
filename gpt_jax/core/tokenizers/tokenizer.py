# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: what a tokenizer is, and the choice of one."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from gpt_jax.core import spec
from gpt_jax.core.files import files
from gpt_jax.core.files.document import Document, of_source
from gpt_jax.core.spec import Table, UsageError
from gpt_jax.core.tokenizers import saved
from gpt_jax.core.tokenizers.special import Special

_FIELD = 'tokenizer.name'


class Tokenizer(Protocol):
  """Maps text to ids below `vocab_size`; documents end with `eos_id`.

  `encode` never adds `eos_id`; `decode` leaves out `eos_id` and the ids before
  a prompt.
  """

  @property
  def vocab_size(self) -> int: ...

  @property
  def eos_id(self) -> int: ...

  @property
  def special(self) -> Special:
    """The special tokens."""
    ...

  @property
  def fingerprint(self) -> str:
    """The sha256 of the files that define the ids of a text."""
    ...

  @property
  def own_fingerprint(self) -> str:
    """Like `fingerprint`, of all texts but the sources of pairs."""
    ...

  @property
  def sources(self) -> 'Tokenizer':
    """Reads the sources of pairs: itself, unless `sides` made it."""
    ...

  @property
  def source_vocab_size(self) -> int:
    """The ids of sources, where they have a tokenizer of their own; else 0."""
    ...

  @property
  def in_threads(self) -> bool:
    """Whether several threads encode as fast as several processes."""
    ...

  @property
  def parts_at_spaces(self) -> bool:
    """Whether the ids of 'x y' are those of 'x' and then those of 'y'.

    True where the tokenizer puts a space before each text, as LLaMA's does.
    """
    ...

  @property
  def run_ids(self) -> frozenset[int]:
    """Ids that `decode` reads together with neighbours of the same set.

    The text of such a run is known when another token follows. Empty where each
    token just adds to the text.
    """
    ...

  def encode(self, text: str) -> np.ndarray:
    """Returns int32 [num_tokens]."""
    ...

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Like `encode` for each text.

    On this thread alone if `in_threads`, else on all cores if the library can.
    """
    ...

  def encode_special(self, text: str) -> np.ndarray:
    """Like `encode`, but names of special tokens are those tokens.

    For texts from a template, which names them.
    """
    ...

  def decode(self, ids: Iterable[int]) -> str: ...

  def offsets(self, text: str) -> np.ndarray:
    """Where the tokens of `encode(text)` come from: int32 [num_tokens, 2].

    Start and stop in characters. Where several tokens make one character, each
    has its range, or one of them has it and the others an empty one.
    """
    ...

  def offsets_special(self, text: str) -> np.ndarray:
    """Like `offsets`, for the tokens of `encode_special(text)`."""
    ...

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    """Which tokens of rows begin a word: bool [..., L] for ids [..., L].

    See `words`. The first token of a row does, and special tokens do.
    """
    ...

  def save(self, folder: str) -> None:
    """Writes a folder that `load` reads; no other file is needed."""
    ...


class Maker(NamedTuple):
  """Makes the tokenizer that a call of `tokenizer.name` names.

  Attributes:
    make: takes the documents, which only a tokenizer that is learned reads.
    learned: whether it is made of the documents.
    of_all: whether of those held out, too.
    vocab_size: of one that is learned, as far as its call says.
    special: names of the special tokens of one that is learned.
    sources: makes the tokenizer that sources of pairs have of their own.
  """

  make: Callable[[Iterable[Document]], Tokenizer]
  learned: bool = False
  of_all: bool = False
  vocab_size: int | None = None
  special: frozenset[str] = frozenset()
  sources: 'Maker | None' = None

  def __call__(
    self, train_documents: Iterable[Document], all_documents: Iterable[Document] | None = None
  ) -> Tokenizer:
    """Makes the tokenizer.

    Args:
      train_documents: read only if it is learned.
      all_documents: with those held out; None: `train_documents`.
    """
    documents = train_documents
    if self.of_all and all_documents is not None:
      documents = all_documents
    if self.sources is None:
      return self.make(documents)
    everything = all_documents and filter(_is_source, all_documents)
    return saved.paired(
      self.make(d for d in documents if not _is_source(d)),
      self.sources(filter(_is_source, train_documents), everything),
    )


def _is_source(document: Document) -> bool:
  return of_source(document.name)


def maker(text: str) -> Maker:
  """What makes the tokenizer of a call of `TOKENIZERS`."""
  return spec.build(_FIELD, text, TOKENIZERS)


def build(
  text: str, train_documents: Iterable[Document], all_documents: Iterable[Document] | None = None
) -> Tokenizer:
  """Makes the tokenizer that `tokenizer.name` calls for; see `Maker`."""
  return maker(text)(train_documents, all_documents)


def load(folder: str) -> Tokenizer:
  """Reads a saved tokenizer."""
  kind, contents = saved.read(folder)
  if kind == saved.PAIR:
    target, sources = (load(files.join(folder, x)) for x in saved.SIDES)
    pair = saved.paired(target, sources)
    if pair.fingerprint != saved.fingerprint(kind, contents):
      raise UsageError(
        f'{folder}: the tokenizers of its two sides are not those that were '
        'saved together; copy the folder again, or prepare the data again'
      )
    return pair
  if kind not in _CLASSES:
    raise UsageError(
      f'{folder}: holds a tokenizer of kind {kind!r}, this version knows '
      f'{", ".join(sorted(_CLASSES))}; take the version that made it'
    )
  try:
    return of_kind(kind, contents)
  except (UsageError, KeyError) as e:
    why = f'{e} is missing' if isinstance(e, KeyError) else e
    raise UsageError(
      f'{folder}: {why}; copy the tokenizer folder again, or prepare the data again'
    ) from e


def of_kind(kind: str, contents: dict[str, bytes]) -> Tokenizer:
  """A tokenizer from the files of a saved one."""
  return _CLASSES[kind].of_files(kind, contents)


def of_folder(folder: str) -> Maker:
  """The tokenizer of a run or a token store.

  Args:
    folder: a workdir, a store, or the folder `tokenizer` of one.
  """

  def read(documents: Iterable[Document]) -> Tokenizer:
    del documents
    inside = os.path.join(folder, 'tokenizer')
    path = inside if os.path.isdir(inside) else folder
    if not os.path.isdir(path):
      raise UsageError(
        f'{_FIELD}: saved({folder!r}): there is no such folder; name a workdir, or a token store'
      )
    return load(path)

  return Maker(read)


def sides(target: str, source: str) -> Maker:
  r"""A tokenizer of targets and single texts, and another of sources of pairs.

  For an encoder in front of a pre-trained one, which may have its own
  vocabulary: "sides('saved(\"W\")', source='wordpiece(vocab_size=8000)')".
  """
  call = f'{_FIELD}: sides({target!r}, {source!r})'
  of_target, of_sources = maker(target), maker(source)
  if of_target.sources or of_sources.sources:
    raise UsageError(f'{call}: one is a pair itself; give single ones')
  if of_target.learned and of_sources.learned:
    raise UsageError(
      f'{call}: learns both, and reads the documents once; prepare one before, '
      "and give it as saved('FOLDER')"
    )
  return of_target._replace(sources=of_sources)


def single(text: str) -> list[spec.Call]:
  """The calls of single tokenizers in `tokenizer.name`, targets' first."""
  call = spec.bind_all(_FIELD, text, TOKENIZERS)[0]
  if call.name != 'sides':
    return [call]
  return [single(call.kwargs[name])[0] for name in ('target', 'source')]


def planned_size(of: Maker) -> int | None:
  """The number of tokens, without those of sources; None: not known yet."""
  if of.learned:
    return of.vocab_size
  try:
    return of.make([]).vocab_size
  except (UsageError, OSError):
    return None  # its file is not here


_ROOM = 'gpt_jax.core.tokenizers'
TOKENIZERS = Table(
  {
    'saved': f'{_ROOM}.tokenizer:of_folder',
    'sentencepiece': f'{_ROOM}.training:sentencepiece',
    'sentencepiece_file': f'{_ROOM}.sentencepiece:sentencepiece_file',
    'bytes': f'{_ROOM}.simple:byte_values',
    'frequent_bytes': f'{_ROOM}.simple:frequent_bytes',
    'characters': f'{_ROOM}.simple:characters',
    'words': f'{_ROOM}.simple:word_list',
    'gpt2_bpe': f'{_ROOM}.bpe:gpt2_bpe',
    'gpt1_bpe': f'{_ROOM}.bpe:gpt1_bpe',
    'sides': f'{_ROOM}.tokenizer:sides',
  },
  _FIELD,
)
# By the kind of a saved tokenizer.
_CLASSES = Table(
  {
    'sentencepiece': f'{_ROOM}.sentencepiece:SentencePiece',
    'sentencepiece_file': f'{_ROOM}.sentencepiece:SentencePiece',
    'bytes': f'{_ROOM}.simple:Bytes',
    'frequent_bytes': f'{_ROOM}.simple:FrequentBytes',
    'characters': f'{_ROOM}.simple:Characters',
    'words': f'{_ROOM}.simple:WordList',
    'gpt2_bpe': f'{_ROOM}.bpe:Bpe',
    'gpt1_bpe': f'{_ROOM}.bpe:Bpe',
    'hf_tokenizer': f'{_ROOM}.hf:HfTokenizer',
  }
)
