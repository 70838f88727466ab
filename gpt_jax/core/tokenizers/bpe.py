# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Byte pair encodings by the files that OpenAI published for GPT-1 and GPT-2.

Names of special tokens in a text are plain text.
"""

import functools
import json
import re

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, saved, words
from gpt_jax.core.tokenizers.tokenizer import Maker

_VOCABULARY, _MERGES = 'vocabulary.json', 'merges.txt'
_EOS = 'eos.json'  # the token that ends a document, where a user named it

# A text is encoded in segments of about this many characters, on all cores.
_SEGMENT = 1 << 14
# Both encodings split before a newline that follows a visible character, so the
# two sides can be encoded separately.
_CUT = re.compile(r'(?<=[!-~])\n')


class Bpe(hf.Library):
  """GPT-2's or GPT-1's encoding.

  GPT-2's is lossless. GPT-1's lower-cases, strips accents, forgets the kind of
  white space between words, and maps unknown characters to `<unk>`.
  """

  parts_at_spaces = False
  run_ids = frozenset()

  def __init__(self, kind: str, contents: dict[str, bytes]):
    """Reads the two vocabulary files, as bytes, from `contents`."""
    try:
      vocabulary = json.loads(contents[_VOCABULARY].decode('utf-8'))
      library = _ENCODINGS[kind](vocabulary, read_merges(contents[_MERGES]))
      super().__init__(kind, contents, library)
      self._eos = _END_OF_DOCUMENT[kind]
      if _EOS in contents:
        self._eos = json.loads(contents[_EOS])
      self._settle(library.get_vocab_size(), vocabulary[self._eos])
    except KeyError as e:
      raise UsageError(
        f'the vocabulary has no {self._eos!r}, so it is not that of {kind}; '
        "eos='TOKEN' names another end of documents"
      ) from e
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'the vocabulary files do not fit {kind}: {e}; fetch both again') from e

  @property
  def special_names(self) -> dict[str, int]:
    # GPT-1 has no name for its own: see `_END_OF_DOCUMENT`.
    return {} if '\n' in self._eos else {self._eos: self.eos_id}

  def _parts(self, text: str) -> list[str]:
    parts, start = [], 0
    while cut := _CUT.search(text, start + _SEGMENT):
      parts.append(text[start : cut.start()])
      start = cut.start()
    return [*parts, text[start:]]

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {self.eos_id, self.id_of('<unk>')}
    pieces = [None if i in special else self.token(i) for i in range(self.vocab_size)]
    if self.kind == 'gpt1_bpe':
      return words.of_suffix(pieces, '</w>')
    return words.of_text(None if piece is None else words.of_bytes(piece) for piece in pieces)


def gpt2_bpe(encoder: str, merges: str, eos: str = '') -> Maker:
  """GPT-2's `encoder.json` and `vocab.bpe`: 50,257 tokens.

  Args:
    eos: the token that ends documents; by default <|endoftext|>.
  """
  return Maker(lambda documents: _from_files('gpt2_bpe', encoder, merges, eos))


def gpt1_bpe(encoder: str, merges: str, eos: str = '') -> Maker:
  """GPT-1's `encoder_bpe_40000.json` and `vocab_40000.bpe`: 40,478 tokens.

  Args:
    eos: the token that ends documents; by default a newline, which no text has.
  """
  return Maker(lambda documents: _from_files('gpt1_bpe', encoder, merges, eos))


def _from_files(kind: str, encoder: str, merges: str, eos: str) -> Bpe:
  contents = {
    name: saved.user_file(path, f'the files of {kind} that OpenAI published')
    for name, path in ((_VOCABULARY, encoder), (_MERGES, merges))
  }
  if eos:
    contents[_EOS] = json.dumps(eos).encode()
  try:
    return Bpe(kind, contents)
  except UsageError as e:
    raise UsageError(f'tokenizer.name: {kind}({encoder!r}, {merges!r}): {e}') from e


def read_merges(data: bytes) -> list[tuple[str, str]]:
  """Reads pairs, one a line, maybe after a line with the version."""
  lines = data.decode('utf-8').split('\n')
  pairs = []
  for number, line in enumerate(lines, start=1):
    if line and not (number == 1 and line.startswith('#version')):
      pair = line.split(' ')
      if len(pair) != 2:
        raise ValueError(f'line {number} of the merges is not a pair')
      pairs.append((pair[0], pair[1]))
  return pairs


def _gpt2(vocabulary, merges) -> tokenizers.Tokenizer:
  return byte_level(models.BPE(vocabulary, merges))


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


def byte_level(model: models.BPE) -> tokenizers.Tokenizer:
  """GPT-2's way to split texts, and to spell bytes, around a model."""
  library = tokenizers.Tokenizer(model)
  library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  library.decoder = decoders.ByteLevel()
  return library


_ENCODINGS = {'gpt2_bpe': _gpt2, 'gpt1_bpe': _gpt1}

# GPT-1 has no token for the end of a document. Its newline is never in a text's
# ids, since the encoding drops white space.
_END_OF_DOCUMENT = {'gpt2_bpe': '<|endoftext|>', 'gpt1_bpe': '\n</w>'}
