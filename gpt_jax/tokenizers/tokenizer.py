# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: what a tokenizer is, and the choice of one."""

import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers

from gpt_jax import spec
from gpt_jax.files import files
from gpt_jax.files.document import of_source
from gpt_jax.spec import UsageError
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import saved, special
from gpt_jax.tokenizers.bpe import (
  Bpe,
  byte_bpe,
  byte_bpe_file,
  gpt1_bpe,
  gpt2_bpe,
)
from gpt_jax.tokenizers.hf import HfTokenizer, hf_tokenizer
from gpt_jax.tokenizers.sentencepiece import SentencePiece, sentencepiece_file
from gpt_jax.tokenizers.simple import (
  Bytes,
  Characters,
  FrequentBytes,
  WordList,
  byte_values,
  characters,
  characters_of,
  frequent_bytes,
  word_list,
  word_list_file,
)
from gpt_jax.tokenizers.special import Special
from gpt_jax.tokenizers.training import sentencepiece, sentinel
from gpt_jax.tokenizers.wordpiece import wordpiece, wordpiece_file

KIND = 'sides'
TARGET, SOURCE = 'target', 'source'


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

    For texts from a chat template: see `chat`.
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

  def to_library(self) -> tokenizers.Tokenizer:
    """The same ids by Hugging Face's library, for exports: see `exported`."""
    ...


class Sides(saved.Saved):
  r"""A tokenizer for targets and single texts, another for sources of pairs.

  tokenizer.name = "sides('saved(\"W\")', source='wordpiece(vocab_size=8000)')"

  For an encoder in front of a pre-trained one, which may have its own
  vocabulary (BART, section 3.4).
  """

  kind = KIND

  def __init__(self, target: Any, source: Any):
    """Takes two tokenizers, neither of them a pair itself."""
    if isinstance(target, Sides) or isinstance(source, Sides):
      raise UsageError(
        'tokenizer.name: one of the two tokenizers of sides is a pair itself; '
        'give single ones'
      )
    self.target, self.source = target, source
    self.vocab_size: int = target.vocab_size
    self.eos_id: int = target.eos_id
    self.special: Special = target.special
    self.run_ids: frozenset[int] = target.run_ids
    self.encode, self.encode_batch = target.encode, target.encode_batch
    self.encode_special, self.decode = target.encode_special, target.decode
    self.offsets, self.word_starts = target.offsets, target.word_starts
    self.offsets_special = target.offsets_special
    self.in_threads: bool = target.in_threads and source.in_threads
    self.parts_at_spaces: bool = (
      target.parts_at_spaces and source.parts_at_spaces
    )
    self.contents = {
      f'{KIND}.txt': f'{target.fingerprint}\n{source.fingerprint}\n'.encode()
    }

  def save(self, folder: str) -> None:
    """Writes both, each in a folder of its own."""
    self.target.save(files.join(folder, TARGET))
    self.source.save(files.join(folder, SOURCE))
    super().save(folder)

  def to_library(self) -> tokenizers.Tokenizer:
    raise UsageError('has a tokenizer of its own for sources')


def build(
  text: str,
  train_documents: Iterable[Document],
  all_documents: Iterable[Document] | None = None,
) -> Tokenizer:
  """Makes the tokenizer that `tokenizer.name` calls for.

  Args:
    text: a call of one of `TOKENIZERS`.
    train_documents: for training the tokenizer; read only if it is trained.
    all_documents: with those held out, for the alphabet of `characters`; None:
      `train_documents`.
  """
  make = spec.build('tokenizer.name', text, TOKENIZERS)
  if all_documents is None:
    all_documents = train_documents

  def learned(make: _Make, some, all_) -> Tokenizer:
    return make(all_ if make is characters_of else some)

  if not isinstance(make, _Pair):
    return learned(make, train_documents, all_documents)

  def side(make: _Make, source: bool) -> Tokenizer:
    some, all_ = (
      (d for d in documents if of_source(d.name) == source)
      for documents in (train_documents, all_documents)
    )
    return learned(make, some, all_)

  return Sides(side(make.target, False), side(make.source, True))


def imported(name: str, folder: str) -> Tokenizer:
  """The tokenizer of a checkpoint of Hugging Face.

  Args:
    name: a call that reads its vocabulary.
    folder: of the checkpoint, whose other files name special tokens.
  """
  made = build(name, [])
  assert isinstance(made, HfTokenizer | Bpe | SentencePiece)
  files = special.from_hf(folder, made)
  return of_kind(made.kind, {**made.contents, **files})


def load(folder: str) -> Tokenizer:
  """Reads a saved tokenizer."""
  kind, contents = saved.read(folder)
  if kind == KIND:
    names = TARGET, SOURCE
    made = Sides(*(load(files.join(folder, name)) for name in names))
    if made.fingerprint != saved.fingerprint(kind, contents):
      raise UsageError(
        f'{folder}: the tokenizers of its two sides are not those that were '
        'saved together; copy the folder again, or prepare the data again'
      )
    return made
  known = [name for name, choice in CHOICES.items() if choice.load]
  if kind not in known:
    raise UsageError(
      f'{folder}: holds a tokenizer of kind {kind!r}, this version knows '
      + ', '.join(sorted(known))
    )
  try:
    return of_kind(kind, contents)
  except (UsageError, KeyError) as e:
    why = f'{e} is missing' if isinstance(e, KeyError) else e
    raise UsageError(
      f'{folder}: {why}; copy the tokenizer folder again, or prepare the data '
      'again'
    ) from e


def of_kind(kind: str, contents: dict[str, bytes]) -> Tokenizer:
  """A tokenizer from the files of a saved one."""
  make = CHOICES[kind].load
  assert make is not None, kind
  return make(contents)


def of_folder(folder: str) -> Callable[[Iterable[Document]], Tokenizer]:
  """The tokenizer of a run or a token store.

  Args:
    folder: a workdir, a store, or the folder `tokenizer` of one.
  """

  def read(documents: Iterable[Document]) -> Tokenizer:
    del documents
    inside = os.path.join(folder, 'tokenizer')
    found = inside if os.path.isdir(inside) else folder
    if not os.path.isdir(found):
      raise UsageError(
        f'tokenizer.name: saved({folder!r}): there is no such folder; name a '
        'workdir, or a token store'
      )
    return load(found)

  return read


# Makes a tokenizer from documents, which only those that learn read.
_Make = Callable[[Iterable[Document]], Tokenizer]


class _Pair(NamedTuple):
  """Makes the two tokenizers of `Sides`."""

  target: _Make
  source: _Make


def sides(target: str, source: str) -> _Pair:
  """Two tokenizers, by their calls: of the targets and of the sources."""
  makes = [
    spec.build('tokenizer.name', call, TOKENIZERS) for call in (target, source)
  ]
  names = [
    spec.parse('tokenizer.name', call)[0].name for call in (target, source)
  ]
  if 'sides' in names:
    raise UsageError(
      f'tokenizer.name: sides({target!r}, {source!r}): one is a pair itself; '
      'give single ones'
    )
  if all(CHOICES[name].learned for name in names):
    raise UsageError(
      f'tokenizer.name: sides({target!r}, {source!r}): learns both, and reads '
      "the documents once; prepare one before, and give it as saved('FOLDER')"
    )

  return _Pair(*makes)


def of_sources(made: Tokenizer) -> Tokenizer:
  """The tokenizer of the sources of pairs."""
  return made.source if isinstance(made, Sides) else made


def of_targets(made: Tokenizer) -> Tokenizer:
  """The tokenizer of all texts but the sources of pairs."""
  return made.target if isinstance(made, Sides) else made


def own_of_sources(made: Tokenizer) -> int:
  """The vocabulary of the sources' own tokenizer; 0: they have none."""
  return made.source.vocab_size if isinstance(made, Sides) else 0


def num_ids(made: Tokenizer) -> int:
  """All ids are below it, also those of sources."""
  return max(made.vocab_size, of_sources(made).vocab_size)


def single(text: str) -> list[str]:
  """The calls of single tokenizers in `tokenizer.name`, targets' first."""
  (call,) = spec.bind_all('tokenizer.name', text, TOKENIZERS)[:1]
  if call.name != 'sides':
    return [text]
  return [call.kwargs['target'], call.kwargs['source']]


class Choice(NamedTuple):
  """A choice of `tokenizer.name`.

  Attributes:
    build: takes its arguments, and returns a function that makes the tokenizer
      of documents.
    load: makes it of its saved files; None: it is saved as another choice.
    learned: whether it is made of the documents.
    marks: the special tokens of `_MARKS` that it always has.
  """

  build: Callable[..., Any]
  load: Callable[[dict[str, bytes]], Tokenizer] | None = None
  learned: bool = False
  marks: frozenset[str] = frozenset()


_MARKS = frozenset(['cls', 'sep', 'mask'])
CHOICES = {
  'saved': Choice(of_folder),
  'sentencepiece': Choice(
    sentencepiece, functools.partial(SentencePiece, 'sentencepiece'), True
  ),
  'sentencepiece_file': Choice(
    sentencepiece_file, functools.partial(SentencePiece, 'sentencepiece_file')
  ),
  'bytes': Choice(byte_values, lambda files: Bytes()),
  'frequent_bytes': Choice(
    frequent_bytes,
    lambda files: FrequentBytes(json.loads(files['bytes.json'])),
    True,
  ),
  'characters': Choice(
    characters,
    lambda files: Characters(json.loads(files['characters.json'])),
    True,
  ),
  'words': Choice(
    word_list, lambda files: WordList(json.loads(files['words.json'])), True
  ),
  'words_file': Choice(word_list_file),
  'gpt2_bpe': Choice(gpt2_bpe, functools.partial(Bpe, 'gpt2_bpe')),
  'gpt1_bpe': Choice(gpt1_bpe, functools.partial(Bpe, 'gpt1_bpe')),
  'hf_tokenizer': Choice(hf_tokenizer, HfTokenizer),
  'wordpiece': Choice(wordpiece, learned=True, marks=_MARKS),
  'wordpiece_file': Choice(wordpiece_file),
  'byte_bpe': Choice(byte_bpe, learned=True, marks=_MARKS),
  'byte_bpe_file': Choice(byte_bpe_file),
  'sides': Choice(sides),
}
TOKENIZERS = {name: choice.build for name, choice in CHOICES.items()}


def special_names(call: spec.Call, made: Tokenizer | None) -> frozenset[str]:
  """The special tokens that a tokenizer has, or will have once trained."""
  if made is not None:
    return frozenset(made.special.names)
  more = map(sentinel, range(call.kwargs.get('sentinels', 0)))
  return frozenset([*call.kwargs.get('special', ()), *more])


def marks(call: spec.Call, made: Tokenizer | None) -> frozenset[str]:
  """Which of 'cls', 'sep' and 'mask' a tokenizer has, or will once trained.

  Args:
    call: of `tokenizer.name`, with all its arguments.
    made: the tokenizer; None: it is not trained yet.
  """
  if made is None:
    named = call.kwargs.get('special', ())
    found = (mark for mark in _MARKS if f'[{mark.upper()}]' in named)
    return CHOICES[call.name].marks.union(found)
  return frozenset(
    mark for mark in _MARKS if getattr(made.special, f'{mark}_id') is not None
  )


def never_drawn(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
  """The ids that a model never generates, bool [V]; None if there are none.

  The rows of the model's table past the tokenizer's last id, and
  `Special.never_ids`. Sampling renormalises over the other ids. Scores of beam
  search, `fill` and `evaluate` are normalised over the whole table, as the
  training loss is.

  Args:
    vocab_size: V, of the model.
  """
  never_V = np.arange(vocab_size) >= tokenizer.vocab_size
  never_V[[i for i in tokenizer.special.never_ids if i < vocab_size]] = True
  return never_V if never_V.any() else None
