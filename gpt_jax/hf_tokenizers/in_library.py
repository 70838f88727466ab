# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizers as those of Hugging Face's library, for exports."""

import functools
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, library, simple, words
from gpt_jax.core.tokenizers.sentencepiece import SentencePiece
from gpt_jax.core.tokenizers.special import END_OF_DOCUMENT
from gpt_jax.core.tokenizers.words import SPACE_MARK


@functools.singledispatch
def of(tokenizer: Any) -> tokenizers.Tokenizer:
  """A tokenizer of the library that gives a text the same ids."""
  raise NotImplementedError(type(tokenizer))


@of.register
def _(tokenizer: hf.Library) -> tokenizers.Tokenizer:
  return library.load(tokenizer.library.to_str().encode())


@of.register
def _(tokenizer: hf.HfTokenizer) -> tokenizers.Tokenizer:
  """As its file has it, without what draws, cuts or pads."""
  return library.load(tokenizer.contents[hf.FILE])


@of.register
def _(tokenizer: simple.Bytes) -> tokenizers.Tokenizer:
  return _byte_level([*range(tokenizer.eos_id), END_OF_DOCUMENT])


@of.register
def _(tokenizer: simple.FrequentBytes) -> tokenizers.Tokenizer:
  return _byte_level([END_OF_DOCUMENT, _RARE, *tokenizer.values])


_RARE = '\ufffd'  # rare bytes are decoded to it


def _byte_level(symbols: Sequence[int | str]) -> tokenizers.Tokenizer:
  """A symbol for each byte, or for each frequent one and the rare ones."""
  vocabulary = {s if isinstance(s, str) else words.spelled(s): i for i, s in enumerate(symbols)}
  unknown = _RARE if _RARE in vocabulary else None
  made = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=unknown, fuse_unk=False))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  made.decoder = decoders.ByteLevel()
  return made


@of.register
def _(tokenizer: simple.Characters) -> tokenizers.Tokenizer:
  """Refuses other characters, since the unknown token does not exist."""
  vocabulary = {c: i for i, c in enumerate(tokenizer.alphabet)}
  vocabulary[END_OF_DOCUMENT] = tokenizer.eos_id
  made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token='none'))
  made.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
  made.decoder = decoders.Fuse()
  return made


@of.register
def _(tokenizer: simple.WordList) -> tokenizers.Tokenizer:
  vocabulary = {word: i for i, word in enumerate(tokenizer.listed)}
  made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=simple.UNKNOWN))
  # Python's white space, spelled out: the library's differs.
  points = [c for c in map(chr, range(0x3001)) if c.isspace() and c != '\n']
  spaces = ''.join(f'\\x{{{ord(c):X}}}' for c in points)
  made.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(f'[{spaces}]+'), 'removed'), pre_tokenizers.Split('\n', 'isolated')]
  )
  made.decoder = decoders.Sequence(
    [
      # Puts a space before each word, as none has this prefix.
      decoders.WordPiece(prefix=simple.END_OF_WORDS, cleanup=False),
      decoders.Fuse(),
      decoders.Replace(Regex(' ?\\n ?'), '\n'),
    ]
  )
  return made


@of.register
def _(tokenizer: SentencePiece) -> tokenizers.Tokenizer:
  """Pieces have spaces where SentencePiece has U+2581.

  So a U+2581 in a text is not a space, and has no piece.
  """
  proto = tokenizer.proto
  pieces = [(p.piece.replace(SPACE_MARK, ' '), p) for p in proto.pieces]
  byte_fallback = proto.trainer_spec.byte_fallback
  make = {1: _unigram, 2: _bpe}.get(proto.trainer_spec.model_type)
  if make is None:
    raise UsageError(
      'the SentencePiece model is neither unigram nor bpe, the kinds that '
      'are read; give one of these'
    )
  made = make(pieces, byte_fallback)
  steps = []
  settings = proto.normalizer_spec
  if not tokenizer.spells_marks:
    steps.append(normalizers.Replace(SPACE_MARK, ' '))
  if settings.precompiled_charsmap:
    # The library maps a grapheme by its beginning, such as a capital without
    # its accent. So graphemes are normalised before.
    steps.append(normalizers.NFKC())
    if settings.name.endswith('_cf'):
      steps.append(normalizers.Lowercase())
      # SentencePiece keeps this capital: its small letter is two characters.
      steps.append(normalizers.Replace('i\u0307', '\u0130'))
    steps.append(normalizers.Precompiled(settings.precompiled_charsmap))
  if settings.remove_extra_whitespaces:
    steps.append(normalizers.Replace(Regex(r'\A +| +\z'), ''))
    steps.append(normalizers.Replace(Regex(' {2,}'), ' '))
  if settings.add_dummy_prefix:
    steps.append(normalizers.Prepend(' '))
  if steps:
    made.normalizer = normalizers.Sequence(steps)
  made.decoder = decoders.Sequence(
    [
      *[decoders.ByteFallback()] * byte_fallback,
      decoders.Fuse(),
      *[decoders.Strip(' ', 1, 0)] * settings.add_dummy_prefix,
    ]
  )
  return made


# Kinds of pieces in a model of SentencePiece.
_NORMAL, _UNKNOWN, _SYMBOL = 1, 2, 4


def _unigram(pieces: Sequence[tuple[str, Any]], byte_fallback: bool) -> tokenizers.Tokenizer:
  """Scores with which no text becomes a special token or its bytes.

  SentencePiece leaves these out of its search, the library does not. A constant
  added for each character does not change the best segmentation; special tokens
  get the score of a single character, and so lose to their characters. Those
  score at least as much as the unknown piece, which has 10 less than the least.
  """
  least = min(p.score for _, p in pieces if p.type == _NORMAL)
  each = 4 * (20 + abs(least))

  def score(text: str, piece: Any) -> float:
    if piece.type == _NORMAL:
      return piece.score + each * len(text)
    if piece.type == _SYMBOL:  # so that it wins
      return -0.1 + each * len(text)
    return least + each

  scored = [(text, score(text, p)) for text, p in pieces]
  (unknown,) = (i for i, (_, p) in enumerate(pieces) if p.type == _UNKNOWN)
  made = tokenizers.Tokenizer(models.Unigram(scored, unknown, byte_fallback))
  # Consecutive unknown characters are looked up together, and could be the name
  # of a special token. So one of them, which is in no piece, is split off.
  plain = [text for text, p in pieces if p.type in (_NORMAL, _SYMBOL)]
  names = {text for text, _ in pieces}.difference(plain)
  characters = {*''.join(plain)}
  parted = {
    next((c for c in name if c not in characters), '')
    for name in names
    if not {*plain}.intersection(name)
  }
  if parted and byte_fallback:
    made.pre_tokenizer = pre_tokenizers.Sequence(
      [pre_tokenizers.Split(c, 'isolated') for c in sorted(parted - {''})]
    )
  return made


def _bpe(pieces: Sequence[tuple[str, Any]], byte_fallback: bool) -> tokenizers.Tokenizer:
  """Merges are all ways to split a piece in two, in the order of its score."""
  vocabulary = {text: i for i, (text, _) in enumerate(pieces)}
  apart = {text: p.score for text, p in pieces if p.type == _NORMAL}
  ordered = sorted(apart, key=lambda text: -apart[text])
  merges = [
    (text[:i], text[i:])
    for text in ordered
    for i in range(len(text) - 1, 0, -1)
    if text[:i] in apart and text[i:] in apart
  ]
  (unknown,) = (text for text, p in pieces if p.type == _UNKNOWN)
  made = tokenizers.Tokenizer(
    models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)
  )
  made.add_tokens([AddedToken(text, normalized=False) for text, p in pieces if p.type == _SYMBOL])
  return made
