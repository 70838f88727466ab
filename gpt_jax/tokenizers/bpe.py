# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The byte pair encodings of GPT-1 and GPT-2, from OpenAI's vocabulary files.

Both run in the `tokenizers` library with the parts that Hugging Face's fast
tokenizers have, so ids agree with published checkpoints.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gpt_jax.spec import UsageError
from gpt_jax.text.sources import Document
from gpt_jax.tokenizers import saved, special, words

_VOCABULARY, _MERGES = 'vocabulary.json', 'merges.txt'

# A text is encoded in segments of about this many characters, on all cores.
_SEGMENT = 1 << 14
# Both encodings part before a newline that follows a visible character, hence
# encoding the two sides by themselves gives the same ids.
_CUT = re.compile(r'(?<=[!-~])\n')


class Bpe:
  """GPT-2's or GPT-1's encoding.

  GPT-2's is lossless. GPT-1's lower-cases, strips accents, loses which white
  space stood between words, and maps what it does not know to `<unk>`.
  """

  in_threads = False  # its results become lists, under Python's lock
  parts_at_spaces = False
  run_ids = frozenset()

  def __init__(self, kind: str, contents: dict[str, bytes]):
    """Reads the two vocabulary files, as bytes, from `contents`."""
    self.kind = kind
    self.contents = contents
    try:
      vocabulary = json.loads(contents[_VOCABULARY].decode('utf-8'))
      self._bpe = _ENCODINGS[kind](vocabulary, read_merges(contents[_MERGES]))
      self.eos_id: int = vocabulary[_END_OF_DOCUMENT[kind]]
      self.special = special.of(contents, self.eos_id, {})
    except KeyError as e:
      raise UsageError(
        f'the vocabulary has no {_END_OF_DOCUMENT[kind]!r}, so it is not '
        f'that of {kind}'
      ) from e
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'the vocabulary files do not fit {kind}: {e}') from e
    self._size: int = self._bpe.get_vocab_size()
    self.vocab_size = special.num_rows(contents, self._size)

  @property
  def library(self) -> tokenizers.Tokenizer:
    """The encoding in the library's own class."""
    return self._bpe

  @property
  def fingerprint(self) -> str:
    return saved.fingerprint(self.kind, self.contents)

  def encode(self, text: str) -> np.ndarray:
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    segments = [list(_segments(text)) for text in texts]
    flat = [segment for group in segments for segment in group]
    encoded = self._bpe.encode_batch_fast(flat, add_special_tokens=False)
    found = [np.asarray(e.ids, np.int32) for e in encoded]
    if self.vocab_size < self._size:
      for ids in found:
        special.check_rows(ids, self.vocab_size, self._bpe.id_to_token)
    ids = iter(found)
    return [np.concatenate([next(ids) for _ in group]) for group in segments]

  def offsets(self, text: str) -> np.ndarray:
    parts = list(_segments(text))
    return offsets(parts, self._bpe.encode_batch(parts))

  def decode(self, ids: Iterable[int]) -> str:
    unseen = {self.eos_id, *self.special.prompt_start}
    kept = [int(i) for i in ids if i not in unseen]
    return self._bpe.decode(kept, skip_special_tokens=False)

  text_start, special_names = None, {}  # two vocabulary files do not say

  def id_of(self, token: str) -> int | None:
    return self._bpe.token_to_id(token)

  def encode_special(self, text: str) -> np.ndarray:
    ids = special.encode(text, self.special.names, self.encode)
    special.check_rows(ids, self.vocab_size, self._bpe.id_to_token)
    return ids

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return self._words.starts(ids)

  def save(self, folder: str) -> None:
    saved.write(folder, self.kind, self.contents)

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {self.eos_id, self.id_of('<unk>')}
    pieces = [
      None if i in special else self._bpe.id_to_token(i)
      for i in range(self.vocab_size)
    ]
    if self.kind == 'gpt1_bpe':
      return words.of_suffix(pieces, '</w>')
    return words.of_text(
      None if piece is None else words.of_bytes(piece) for piece in pieces
    )


def gpt2_bpe(encoder: str, merges: str) -> Callable[[Iterable[Document]], Bpe]:
  """GPT-2's `encoder.json` and `vocab.bpe`: 50,257 tokens."""
  return lambda documents: _from_files('gpt2_bpe', encoder, merges)


def gpt1_bpe(encoder: str, merges: str) -> Callable[[Iterable[Document]], Bpe]:
  """GPT-1's `encoder_bpe_40000.json` and `vocab_40000.bpe`: 40,478 tokens."""
  return lambda documents: _from_files('gpt1_bpe', encoder, merges)


def offsets(
  parts: Sequence[str], encoded: Sequence[tokenizers.Encoding]
) -> np.ndarray:
  """Int32 [num_tokens, 2] for a text in parts, each encoded by itself."""
  found, start = [], 0
  for part, encoding in zip(parts, encoded, strict=True):
    of_part = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    found.append(of_part + np.int32(start))
    start += len(part)
  return np.concatenate(found)


def _from_files(kind: str, encoder: str, merges: str) -> Bpe:
  contents = {}
  for name, path in ((_VOCABULARY, encoder), (_MERGES, merges)):
    try:
      with open(path, 'rb') as file:
        contents[name] = file.read()
    except OSError as e:
      raise UsageError(
        f'tokenizer.name: {kind} cannot read {path!r} ({e.strerror}); name '
        'the vocabulary files that OpenAI published'
      ) from e
  try:
    return Bpe(kind, contents)
  except UsageError as e:
    raise UsageError(
      f'tokenizer.name: {kind}({encoder!r}, {merges!r}): {e}'
    ) from e


def read_merges(data: bytes) -> list[tuple[str, str]]:
  """Reads pairs, one a line, after a line that states the version."""
  lines = data.decode('utf-8').split('\n')[1:]
  pairs = []
  for number, line in enumerate(lines, start=2):
    if line:
      pair = line.split(' ')
      if len(pair) != 2:
        raise ValueError(f'line {number} of the merges is not a pair')
      pairs.append((pair[0], pair[1]))
  return pairs


def _gpt2(vocabulary, merges) -> tokenizers.Tokenizer:
  bpe = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
  bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = decoders.ByteLevel()
  return bpe


def _gpt1(vocabulary, merges) -> tokenizers.Tokenizer:
  model = models.BPE(
    vocabulary,
    merges,
    unk_token='<unk>',
    end_of_word_suffix='</w>',
    continuing_subword_prefix='',
    fuse_unk=False,
  )
  bpe = tokenizers.Tokenizer(model)
  bpe.normalizer = normalizers.BertNormalizer(lowercase=True)
  bpe.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  bpe.decoder = decoders.BPEDecoder(suffix='</w>')
  return bpe


def _segments(text: str) -> Iterator[str]:
  start = 0
  while cut := _CUT.search(text, start + _SEGMENT):
    yield text[start : cut.start()]
    start = cut.start()
  yield text[start:]


_ENCODINGS = {'gpt2_bpe': _gpt2, 'gpt1_bpe': _gpt1}

# GPT-1 has no token for the end of a document. Its newline is never the id of
# a text, since the encoding drops white space.
_END_OF_DOCUMENT = {'gpt2_bpe': '<|endoftext|>', 'gpt1_bpe': '\n</w>'}
