# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: what a tokenizer is, and the choice of one."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from gpt_jax import spec
from gpt_jax.data.sources.sources import Document
from gpt_jax.data.tokenizers import saved, special
from gpt_jax.data.tokenizers.bpe import Bpe, gpt1_bpe, gpt2_bpe
from gpt_jax.data.tokenizers.hf import HfTokenizer, hf_tokenizer
from gpt_jax.data.tokenizers.located import Located
from gpt_jax.data.tokenizers.sentencepiece import (
  SentencePiece,
  sentencepiece_file,
)
from gpt_jax.data.tokenizers.special import Special
from gpt_jax.data.tokenizers.training import sentencepiece
from gpt_jax.spec import UsageError

# From these code points on UTF-8 takes a byte more.
_MORE_BYTES = (1 << 7, 1 << 11, 1 << 16)


class Tokenizer(Protocol):
  """Maps text to ids below `vocab_size`; documents end with `eos_id`.

  `encode` never adds `eos_id`, and `decode` leaves it out, as it does what
  stands before a prompt.
  """

  @property
  def vocab_size(self) -> int: ...

  @property
  def eos_id(self) -> int: ...

  @property
  def special(self) -> Special:
    """What stands before a text, what ends an answer, and other tokens."""
    ...

  @property
  def fingerprint(self) -> str:
    """The sha256 of what defines the ids of a text."""
    ...

  @property
  def in_threads(self) -> bool:
    """Whether several threads encode as fast as several processes."""
    ...

  @property
  def parts_at_spaces(self) -> bool:
    """Whether the ids of 'x y' are those of 'x' and then those of 'y'.

    So it is where a space is put before each text, as LLaMA's tokenizer does.
    """
    ...

  def encode(self, text: str) -> np.ndarray:
    """Returns int32 [num_tokens]."""
    ...

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Like `encode` for each text.

    On this thread alone if `in_threads`, else on all cores where the library
    can.
    """
    ...

  def encode_located(self, texts: Sequence[str]) -> list[Located]:
    """Like `encode_batch`, and where in its text each token ends."""
    ...

  def encode_special(self, text: str) -> np.ndarray:
    """Like `encode`, and names of special tokens are those tokens.

    For what a chat template made: see `chat`.
    """
    ...

  def decode(self, ids: Iterable[int]) -> str: ...

  def save(self, folder: str) -> None:
    """Writes a folder that `load` reads; no other file is needed."""
    ...


def build(
  text: str,
  train_documents: Iterable[Document],
  all_documents: Iterable[Document] | None = None,
) -> Tokenizer:
  """Makes the tokenizer that `tokenizer.name` calls for.

  Args:
    text: a call of one of `TOKENIZERS`.
    train_documents: what a trained tokenizer may learn from; it is read only
      if the tokenizer is trained.
    all_documents: those held out too, of which `characters` takes the set of
      characters; `train_documents` if None.

  Raises:
    UsageError: the call, a vocabulary file or the corpus does not do.
  """
  make = spec.build('tokenizer.name', text, TOKENIZERS)
  if all_documents is None or make is not characters_of:
    all_documents = train_documents
  return make(all_documents)


def imported(name: str, folder: str) -> Tokenizer:
  """The tokenizer of a checkpoint of Hugging Face.

  Args:
    name: a call that reads its vocabulary.
    folder: of the checkpoint, whose other files say what stands before a text.

  Raises:
    UsageError: a file does not do.
  """
  made = build(name, [])
  assert isinstance(made, HfTokenizer | Bpe | SentencePiece)
  files = special.from_hf(folder, made)
  return LOADERS[made.kind]({**made.contents, **files})


def load(folder: str) -> Tokenizer:
  """Reads a saved tokenizer.

  Raises:
    UsageError: a file is missing, damaged, or of a kind not known here.
  """
  kind, contents = saved.read(folder)
  if kind not in LOADERS:
    raise UsageError(
      f'{folder}: holds a tokenizer of kind {kind!r}, this version knows '
      + ', '.join(sorted(LOADERS))
    )
  try:
    return LOADERS[kind](contents)
  except (UsageError, KeyError) as e:
    why = f'{e} is missing' if isinstance(e, KeyError) else e
    raise UsageError(
      f'{folder}: {why}; copy the tokenizer folder again, or prepare the data '
      'again'
    ) from e


class Bytes:
  """The 256 values of a byte of UTF-8, and the end of document.

  Lossless. Bytes that are not UTF-8 decode to U+FFFD.
  """

  kind = 'bytes'
  vocab_size = 257
  eos_id = 256
  special = special.of({}, eos_id)
  in_threads = True
  parts_at_spaces = False

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, {})

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_located(self, texts: Sequence[str]) -> list[Located]:
    found = []
    for text in texts:
      points = _code_points(text)
      sizes = 1 + sum((points >= more).astype(int) for more in _MORE_BYTES)
      stops = np.repeat(np.arange(1, len(text) + 1), sizes)
      found.append(Located(self.encode(text), stops))
    return found

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def decode(self, ids: Iterable[int]) -> str:
    return bytes(int(i) for i in ids if i < 256).decode(errors='replace')

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, {})


class Characters:
  """The characters of a corpus in sorted order, then the end of document.

  Lossless for the text that it encodes; refuses other characters.
  """

  kind = 'characters'
  in_threads = True
  parts_at_spaces = False

  def __init__(self, alphabet: str):
    """`alphabet` holds each character once, sorted."""
    self._alphabet = alphabet
    self._sorted = _code_points(alphabet)
    self.eos_id = len(alphabet)
    self.special = special.of({}, self.eos_id)
    self.vocab_size = len(alphabet) + 1

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self._contents())

  def encode(self, text: str) -> np.ndarray:
    points = _code_points(text)
    ids = np.searchsorted(self._sorted, points)
    known = self._sorted[np.minimum(ids, self.eos_id - 1)] == points
    if not known.all():
      character = text[int(np.argmin(known))]
      raise UsageError(
        f'the text holds {character!r} (U+{ord(character):04X}), which is '
        f'none of the {self.eos_id} characters of this tokenizer; leave it '
        "out, or use tokenizer.name='bytes'"
      )
    return ids.astype(np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [self.encode(text) for text in texts]

  def encode_located(self, texts: Sequence[str]) -> list[Located]:
    return [
      Located(self.encode(text), np.arange(1, len(text) + 1)) for text in texts
    ]

  def encode_special(self, text: str) -> np.ndarray:
    return self.encode(text)

  def decode(self, ids: Iterable[int]) -> str:
    return ''.join(self._alphabet[i] for i in ids if i != self.eos_id)

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self._contents())

  def _contents(self) -> dict[str, bytes]:
    return {'characters.json': json.dumps(self._alphabet).encode()}


def byte_values() -> Callable[[Iterable[Document]], Bytes]:
  """The 256 bytes."""
  return lambda documents: Bytes()


def characters() -> Callable[[Iterable[Document]], Characters]:
  """The set of characters of the whole corpus."""
  return characters_of


def characters_of(documents: Iterable[Document]) -> Characters:
  """Collects the alphabet of `documents`."""
  alphabet = set()
  for document in documents:
    alphabet.update(document.text)
  return Characters(''.join(sorted(alphabet)))


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)


# Each takes the documents to learn from.
TOKENIZERS = {
  'sentencepiece': sentencepiece,
  'sentencepiece_file': sentencepiece_file,
  'bytes': byte_values,
  'characters': characters,
  'gpt2_bpe': gpt2_bpe,
  'gpt1_bpe': gpt1_bpe,
  'hf_tokenizer': hf_tokenizer,
}

# Those of them that need documents.
LEARNED = ('sentencepiece', 'characters')

# By the kind that a saved tokenizer names; each takes the saved files.
LOADERS: dict[str, Callable[[dict[str, bytes]], Tokenizer]] = {
  'sentencepiece': lambda c: SentencePiece('sentencepiece', c),
  'sentencepiece_file': lambda c: SentencePiece('sentencepiece_file', c),
  'bytes': lambda c: Bytes(),
  'characters': lambda c: Characters(json.loads(c['characters.json'])),
  'gpt2_bpe': lambda c: Bpe('gpt2_bpe', c),
  'gpt1_bpe': lambda c: Bpe('gpt1_bpe', c),
  'hf_tokenizer': HfTokenizer,
}
