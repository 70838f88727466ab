# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in Hugging Face's library, and its files `tokenizer.json`."""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from gpt_jax.files.document import Document
from gpt_jax.files.files import parse
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import saved, special, words

# Not `tokenizer.json`, which is the index of a saved tokenizer.
FILE = 'hf_tokenizer.json'
_EOS = 'eos.json'

# Files beside a tokenizer.json that may name the end of a document.
_BESIDE = ('tokenizer_config.json', 'special_tokens_map.json', 'config.json')

# Names of it in published vocabularies, where no file says.
_USUAL = (
  *('<|endoftext|>', '<|end_of_text|>', '</s>', '<eos>', '<|eos|>', '<EOT>'),
)

# Ends of texts in encoders' rows, for vocabularies with none of these.
_ENCODERS = ('[SEP]', '<sep>')


# The most characters that a tokenizer.json may replace one by. Replacements are
# of a few characters, and a file has few of them.
_MOST_GROWTH = 10_000
_TOO_MUCH = 10**12
# Ids for each token of a vocabulary; some are left out.
_MOST_GAPS = 10
# Puts nothing around a text.
_PLAIN: Any = {'add_special_tokens': False}
_SEQUENCES = ('normalizers', 'pretokenizers', 'decoders')


class Library(saved.Vocabulary):
  """A tokenizer of the `tokenizers` library, Hugging Face's "fast" ones."""

  in_threads = False  # its results become lists, under Python's lock

  def __init__(
    self, kind: str, contents: dict[str, bytes], library: tokenizers.Tokenizer
  ):
    """`library` was made from the files `contents`."""
    super().__init__(kind, contents)
    self.library = library

  def offsets(self, text: str) -> np.ndarray:
    parts = self._parts(text)
    return _offsets(parts, self.library.encode_batch(parts, **_PLAIN))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    parts = [self._parts(text) for text in texts]
    found = self._encode([part for group in parts for part in group])
    self._check_rows(found)
    ids = iter(found)
    return [np.concatenate([next(ids) for _ in group]) for group in parts]

  def decode(self, ids: Iterable[int]) -> str:
    return self.library.decode(self._visible(ids), skip_special_tokens=False)

  def id_of(self, token: str) -> int | None:
    return self.library.token_to_id(token)

  def token(self, i: int) -> str | None:
    return self.library.id_to_token(i)

  def to_library(self) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(self.library.to_str())

  def _parts(self, text: str) -> list[str]:
    """The parts of a text that are encoded separately."""
    return [text]

  def _encode(self, texts: list[str]) -> list[np.ndarray]:
    try:
      encoded = self.library.encode_batch_fast(texts, **_PLAIN)
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(
        f'the tokenizer has no token for a part of the text ({e}); leave it out'
      ) from e
    return [np.asarray(e.ids, np.int32) for e in encoded]


class HfTokenizer(Library):
  """A `tokenizer.json`.

  Names of special tokens in a text are plain text, so that no document can end
  itself; `encode_special` is for templates, which name them. Nothing is put
  around a text (see `special`), and texts are neither cut nor padded. Whether
  decoding gives the text back depends on the file; byte-level ones are
  lossless.
  """

  kind = 'hf_tokenizer'

  def __init__(self, contents: dict[str, bytes]):
    """Reads the tokenizer and the name of its end of document."""
    try:
      library = tokenizers.Tokenizer.from_str(contents[FILE].decode())
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'is not a tokenizer.json: {e}') from e
    super().__init__(self.kind, contents, library)
    _check_growth(contents[FILE])
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    around = library.encode('x')
    marks = zip(around.ids, around.special_tokens_mask, strict=True)
    self.text_start = tuple(
      i for i, _ in itertools.takewhile(lambda mark: mark[1], marks)
    )
    # It is of no more use, and may leave spaces out of a token's offsets.
    library.post_processor = None  # type: ignore
    self._eos = json.loads(contents[_EOS])
    eos_id = library.token_to_id(self._eos)
    if eos_id is None:
      raise UsageError(f'has no token {self._eos!r}')
    ids = {*library.get_vocab().values()}  # they may have gaps
    if max(ids) > _MOST_GAPS * (len(ids) + 1000):
      raise UsageError(f'has {len(ids):,} tokens, and one of id {max(ids):,}')
    self._settle(max(ids) + 1, eos_id)
    never_ids = self.special.never_ids | ({*range(self._size)} - ids)
    self.special = self.special._replace(never_ids=never_ids)
    self.run_ids = self._bytes_of_runs()
    self.parts_at_spaces = self._parts_at_spaces()

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    found = super().encode_batch(texts)
    for i, ids in enumerate(found):
      if self.eos_id in ids:
        found[i] = np.concatenate(self._encode(self._spelled(texts[i])))
    return found

  def offsets(self, text: str) -> np.ndarray:
    found, parts = self.library.encode(text, **_PLAIN), [text]
    encoded = [found]
    if self.eos_id in found.ids:
      parts = self._spelled(text)
      encoded = self.library.encode_batch(parts, **_PLAIN)
    return _offsets(parts, encoded)

  def encode_special(self, text: str) -> np.ndarray:
    named, parting = self._naming
    ids = named.encode(text, **_PLAIN).ids
    found = np.array([i for i in ids if i != parting], np.int32)
    self._check_rows([found])
    return found

  def offsets_special(self, text: str) -> np.ndarray:
    named, parting = self._naming
    found = named.encode(text, **_PLAIN)
    kept = [
      o for i, o in zip(found.ids, found.offsets, strict=True) if i != parting
    ]
    return np.array(kept, np.int32).reshape(-1, 2)

  def to_library(self) -> tokenizers.Tokenizer:
    """As its file has it, without truncation and padding."""
    library = tokenizers.Tokenizer.from_str(self.contents[FILE].decode())
    library.no_truncation()
    library.no_padding()
    return library

  @property
  def special_names(self) -> dict[str, int]:
    added = self.library.get_added_tokens_decoder()
    return {token.content: i for i, token in added.items() if token.special}

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {*self.special_names.values(), self.eos_id}
    pieces = [
      None if i in special else self.token(i) or ''
      for i in range(self.vocab_size)
    ]
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
    named = tokenizers.Tokenizer.from_str(self.library.to_str())
    named.encode_special_tokens = False
    missing = self.special.names.keys() - self.special_names.keys()
    named.add_special_tokens([*sorted(missing), special.BREAK])
    parting = named.token_to_id(special.BREAK)
    assert parting is not None
    return named, parting

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


def _offsets(
  parts: Sequence[str], encoded: Sequence[tokenizers.Encoding]
) -> np.ndarray:
  """Offsets, int32 [num_tokens, 2], of a text whose parts were encoded."""
  found, start = [], 0
  for part, encoding in zip(parts, encoded, strict=True):
    of_part = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    found.append(of_part + np.int32(start))
    start += len(part)
  return np.concatenate(found)


def made(
  library: tokenizers.Tokenizer, roles: Mapping[str, str]
) -> HfTokenizer:
  """A tokenizer that we made, with the files that Hugging Face needs.

  Args:
    library: without special tokens.
    roles: names of special tokens, as {'sep_token': '[SEP]'}, which ends
      documents.
  """
  # Special tokens, which a text names only for `encode_special`.
  library.add_special_tokens(
    [
      tokenizers.AddedToken(token, lstrip=token == '<mask>', special=True)
      for token in dict.fromkeys(roles.values())
    ]
  )
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', **roles}
  eos = roles['sep_token']
  return HfTokenizer(
    {
      FILE: library.to_str().encode(),
      _EOS: json.dumps(eos).encode(),
      special.CONFIG: json.dumps(config, indent=2).encode() + b'\n',
    }
  )


def hf_tokenizer(
  path: str, eos: str = ''
) -> Callable[[Iterable[Document]], HfTokenizer]:
  """An existing `tokenizer.json`, such as Llama 3's.

  Args:
    eos: the token that ends documents; by default the one that the files beside
      it name, or else one with a usual name.
  """

  def read(documents: Iterable[Document]) -> HfTokenizer:
    del documents
    data = saved.user_file(path, 'a tokenizer.json')
    try:
      found = eos or _find_eos(os.path.dirname(path), data)
      return HfTokenizer({FILE: data, _EOS: json.dumps(found).encode()})
    except UsageError as e:
      raise type(e)(f'tokenizer.name: {path!r}: {e}') from e

  return read


def _find_eos(folder: str, data: bytes) -> str:
  """The token that ends documents."""
  try:
    added = json.loads(data).get('added_tokens') or []
    ids = {token['content']: token['id'] for token in added}
  except (
    *(ValueError, KeyError, TypeError, AttributeError),
    RecursionError,
  ) as e:
    raise UsageError(f'is not a tokenizer.json: {e}') from e
  for name in _BESIDE:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
      continue
    with open(path, 'rb') as file:
      beside = parse(file.read(), path, remedy='copy it again')
    if token := special.content(beside.get('eos_token')):
      return token
    eos_id = beside.get('eos_token_id')
    eos_ids = eos_id if isinstance(eos_id, list) else [eos_id]
    for token, i in ids.items():
      if i in eos_ids[:1]:
        return token
  usual = [token for token in _USUAL if token in ids]
  usual = usual or [token for token in _ENCODERS if token in ids]
  if len(usual) != 1:
    raise special.NoEndError(
      'does not say which token ends a document; name it, as in '
      f"hf_tokenizer('tokenizer.json', eos='{(usual or ['</s>'])[0]}'); its "
      f'special tokens are {", ".join(sorted(ids)) or "none"}'
    )
  return usual[0]


def _check_growth(file: bytes) -> None:
  """Refuses a tokenizer.json whose replacements multiply a text."""
  values = json.loads(file)
  for name in ('normalizer', 'pre_tokenizer', 'decoder'):
    if (growth := _growth(values.get(name))) > _MOST_GROWTH:
      raise UsageError(
        f'its {name} makes up to {growth:,} characters of one; at most '
        f'{_MOST_GROWTH} are taken'
      )


def _growth(step: Any) -> int:
  """The most characters that a step replaces one by."""
  if not isinstance(step, dict):
    return 1
  parts = [p for name in _SEQUENCES for p in step.get(name) or ()]
  # An empty pattern also matches around each character.
  own = 1 + 2 * len(step.get('content') or '')
  own = own if step.get('type') == 'Replace' else 1
  own += len(step.get('prepend') or '')
  for part in parts:
    own = min(own * max(_growth(part), 1), _TOO_MUCH)
  return own
