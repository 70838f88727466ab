# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in Hugging Face's library, and its files `tokenizer.json`."""

import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import models

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import alignment, saved, special, words
from gpt_jax.core.tokenizers import library as library_lib

# Not `tokenizer.json`, which is the index of a saved tokenizer.
FILE = 'hf_tokenizer.json'
EOS = 'eos.json'  # the token that ends a document

# Ids for each token of a vocabulary; some are left out.
_MOST_GAPS = 10
_FAILS = 'the tokenizer has no token for a part of the text, or fails on it ({}); leave it out'
# Puts nothing around a text.
_PLAIN: Any = {'add_special_tokens': False}


class Library(saved.Vocabulary):
  """A tokenizer of the `tokenizers` library, Hugging Face's "fast" ones."""

  in_threads = False  # its results become lists, under Python's lock

  def __init__(self, kind: str, contents: dict[str, bytes], library: tokenizers.Tokenizer):
    """`library` was made from the files `contents`."""
    super().__init__(kind, contents)
    self.library = library

  def offsets(self, text: str) -> np.ndarray:
    parts = self._parts(text)
    return self._joined(parts, self._encodings(parts))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    parts = [self._parts(text) for text in texts]
    found = self._encode([part for group in parts for part in group])
    self._check_rows(found)
    ids = iter(found)
    return [np.concatenate([next(ids) for _ in group]) for group in parts]

  def decode(self, ids: Iterable[int]) -> str:
    with library_lib.errors('the tokens cannot be decoded: {}'):
      return self.library.decode(self._visible(ids), skip_special_tokens=False)

  def id_of(self, token: str) -> int | None:
    return self.library.token_to_id(token)

  def token(self, i: int) -> str | None:
    return self.library.id_to_token(i)

  def _parts(self, text: str) -> list[str]:
    """The parts of a text that are encoded separately."""
    return [text]

  def _encode(self, texts: list[str]) -> list[np.ndarray]:
    with library_lib.errors(_FAILS):
      encoded = self.library.encode_batch_fast(texts, **_PLAIN)
    return [np.asarray(e.ids, np.int32) for e in encoded]

  def _encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
    """With offsets, which take longer."""
    with library_lib.errors(_FAILS):
      return self.library.encode_batch(list(texts), **_PLAIN)

  @functools.cached_property
  def _alignment(self) -> alignment.Alignment:
    return alignment.Alignment(self.library)

  def _joined(self, parts: Sequence[str], encoded: Sequence[tokenizers.Encoding]) -> np.ndarray:
    """Offsets, int32 [num_tokens, 2], of a text whose parts were encoded."""
    found, start = [], 0
    for part, encoding in zip(parts, encoded, strict=True):
      with library_lib.errors(_FAILS):
        ranges = self._alignment.ranges(part, encoding)
      found.append(ranges + np.int32(start))
      start += len(part)
    return np.concatenate(found)


class HfTokenizer(Library):
  """A `tokenizer.json`.

  Names of special tokens in a text are plain text, so that no document can end
  itself; `encode_special` is for templates, which name them. Nothing is put
  around a text (see `special`), and texts are neither cut nor padded. Whether
  decoding gives the text back depends on the file; byte-level ones are
  lossless.
  """

  kind = 'hf_tokenizer'

  @classmethod
  def of_files(cls, kind: str, contents: dict[str, bytes]) -> Self:
    del kind
    return cls(contents)

  def __init__(self, contents: dict[str, bytes]):
    """Reads the tokenizer and the name of its end of document."""
    library = library_lib.load(contents[FILE])
    super().__init__(self.kind, contents, library)
    values = json.loads(contents[FILE])
    library.encode_special_tokens = True
    self.text_start = _text_start(library)
    # It is of no more use, and may leave spaces out of a token's offsets.
    library.post_processor = None  # type: ignore
    self._eos = json.loads(contents[EOS])
    eos_id = library.token_to_id(self._eos)
    if eos_id is None:
      raise UsageError(f'has no token {self._eos!r}; name the end by eos=')
    ids = {*library.get_vocab().values()}  # they may have gaps
    if max(ids) > _MOST_GAPS * (len(ids) + 1000):
      raise UsageError(f'has {len(ids):,} tokens, and one of id {max(ids):,}')
    self._settle(max(ids) + 1, eos_id)
    never_ids = self.special.never_ids | ({*range(self._size)} - ids)
    self.special = self.special._replace(never_ids=never_ids)
    # Ids that no text has. Unknown characters may have a special token.
    self._unknown = _unknown(library, values)
    forged = {*self.special_names.values()} - {self._unknown} | {eos_id}
    self._forged = np.zeros(self._size, bool)
    self._forged[[*forged]] = True
    self.run_ids = self._bytes_of_runs()
    self.parts_at_spaces = self._parts_at_spaces()

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    found = super().encode_batch(texts)
    for i, ids in enumerate(found):
      if self._forged[ids].any():
        encoded = self._apart(texts[i])[1]
        found[i] = np.concatenate([np.array(e.ids, np.int32) for e in encoded])
    return found

  def offsets(self, text: str) -> np.ndarray:
    encoded = self._encodings([text])
    if self._forged[encoded[0].ids].any():
      return self._joined(*self._apart(text))
    return self._joined([text], encoded)

  def encode_special(self, text: str) -> np.ndarray:
    found, _ = self._named(text)
    self._check_rows([found])
    return found

  def offsets_special(self, text: str) -> np.ndarray:
    return self._named(text)[1]

  @property
  def special_names(self) -> dict[str, int]:
    added = self.library.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {*self.special_names.values(), self.eos_id}
    pieces = [None if i in special else self.token(i) or '' for i in range(self.vocab_size)]
    model: Any = self.library.model
    if prefix := getattr(model, 'continuing_subword_prefix', None):
      return words.of_prefix([piece or '' for piece in pieces], prefix)
    if suffix := getattr(model, 'end_of_word_suffix', None):
      return words.of_suffix(pieces, suffix)
    parts = f'{self.library.pre_tokenizer!r} {self.library.decoder!r}'
    spelled = words.of_bytes if 'ByteLevel' in parts else words.of_marks
    return words.of_text(None if p is None else spelled(p) for p in pieces)

  @functools.cached_property
  def _naming(self) -> tuple[tokenizers.Tokenizer, int]:
    """The library with special tokens read by name, and the id of `BREAK`."""
    named = library_lib.load(self.library.to_str().encode())
    named.encode_special_tokens = False
    missing = self.special.names.keys() - self.special_names.keys()
    named.add_special_tokens([*sorted(missing), special.BREAK])
    parting = named.token_to_id(special.BREAK)
    assert parting is not None
    return named, parting

  def _named(self, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets of a text in which special tokens are read by name.

    A name is one only as it is written: a normalizer may make it of others, and
    users write texts too. `BREAK` then parts it.
    """
    named, parting = self._naming
    names = {**self.special.names, **self.special_names}
    names = {i: name for name, i in names.items() if i != self._unknown}
    added: list[int] = []  # where BREAKs were added
    while True:
      with library_lib.errors(_FAILS):
        encoding = named.encode(text, **_PLAIN)
        ranges = self._alignment.ranges(text, encoding)
      ids = np.array(encoding.ids, np.int32)
      suspects = np.flatnonzero(np.isin(ids, [*names])).tolist()
      cuts = [
        self._cut(text, ids[i], ranges[i])
        for i in suspects
        if names[int(ids[i])] not in text[slice(*ranges[i])]
      ]
      if not cuts:
        break
      for cut in reversed(cuts):
        text = text[:cut] + special.BREAK + text[cut:]
        added = [cut, *(i + (i >= cut) for i in added)]
    given = np.ones(len(text) + 1, np.int32)
    given[added] = 0
    ranges = (np.cumsum(given) - given)[ranges].astype(np.int32)
    kept = ids != parting
    return ids[kept], ranges[kept]

  def _apart(self, text: str) -> tuple[list[str], list[tokenizers.Encoding]]:
    """Parts of a text, none of which has a special token."""
    parts = self._spelled(text)
    while True:
      encoded = self._encodings(parts)
      found = []
      for part, encoding in zip(parts, encoded, strict=True):
        forged = np.flatnonzero(self._forged[encoding.ids]).tolist()
        ranges = self._joined([part], [encoding]) if forged else np.empty(0)
        cuts = [self._cut(part, encoding.ids[i], ranges[i]) for i in forged]
        bounds = zip([0, *cuts], [*cuts, len(part)], strict=True)
        found += [part[i:j] for i, j in bounds]
      if len(found) == len(parts):
        return parts, encoded
      parts = found

  def _cut(self, text: str, i: int, bounds: np.ndarray) -> int:
    """Where to part characters that are read as a special token."""
    start, stop = bounds.tolist()
    if stop - start < 2:
      raise UsageError(
        f'the tokenizer reads {text[start:stop]!r} as its special token '
        f'{self.token(int(i))!r}; leave it out of the text'
      )
    return start + 1

  def _parts_at_spaces(self) -> bool:
    try:
      both, *alone = self.encode_batch(['x y', 'x', 'y'])
    except UsageError:  # one of a few characters
      return False
    return bool(len(both) and np.array_equal(both, np.concatenate(alone)))

  def _bytes_of_runs(self) -> frozenset[int]:
    """Byte tokens that decode to U+FFFD unless the whole run is UTF-8.

    Ids that `decode` leaves out do not split a run.
    """
    if 'ByteFallback' not in repr(self.library.decoder):
      return frozenset()
    ids = (self.id_of(f'<0x{byte:02X}>') for byte in range(256))
    unseen = {self.eos_id, *self.special.prompt_start}
    return frozenset(unseen.union(i for i in ids if i is not None))

  def _spelled(self, text: str) -> list[str]:
    """Splits the name of the end of document, which T5 has as a plain piece."""
    first, *others = text.split(self._eos)
    parts = [first]
    for other in others:
      parts += [self._eos[:1], self._eos[1:], other]
    return parts


def _unknown(library: tokenizers.Tokenizer, values: Any) -> int | None:
  """The id of unknown characters.

  Args:
    library: made from the tokenizer.json `values`.
  """
  if isinstance(library.model, models.Unigram):
    return values['model'].get('unk_id')
  name = values['model'].get('unk_token')
  return None if name is None else library.token_to_id(name)


def _text_start(library: tokenizers.Tokenizer) -> tuple[int, ...]:
  """The ids that the post-processor puts before a text."""
  if library.post_processor is None:
    return ()
  # Another vocabulary may lack any text that we could try.
  word = tokenizers.Tokenizer(models.WordLevel({'x': 0}, unk_token='x'))
  word.post_processor = library.post_processor
  around = word.encode('x')
  marks = zip(around.ids, around.special_tokens_mask, strict=True)
  return tuple(i for i, _ in itertools.takewhile(lambda mark: mark[1], marks))
