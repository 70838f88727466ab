# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exports our tokenizers as files that transformers' AutoTokenizer reads.

Each becomes a `tokenizer.json`, the only file that is complete: other files are
read by a class that transformers picks by the model's type, which adds spaces,
tokens or normalisation of its own. The result is compared with our tokenizer on
texts that are known to be hard and on texts from the vocabulary; a difference
is an error.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import (
  AddedToken,
  Regex,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import hf, special, words
from gpt_jax.tokenizers.bpe import Bpe
from gpt_jax.tokenizers.sentencepiece import SentencePiece, message
from gpt_jax.tokenizers.simple import (
  END_OF_WORDS,
  UNKNOWN,
  Bytes,
  Characters,
  FrequentBytes,
  WordList,
)
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.tokenizers.words import SPACE_MARK

_EOS = special.END_OF_DOCUMENT
_RARE = '\ufffd'  # rare bytes are decoded to it

_HARD = (
  *('', ' ', '  ', '   \n', '\n\n\n', '\t', '\t\tx', ' a', 'a ', '  a   b  '),
  *('a\r\nb\rc\n', '\r\n\r\n', '\x00', '\x0b\x0c\x1c\x85', 'a\u00a0b\u2003c'),
  *('\ufeffa', 'a\u200bb\u200dc\u00ad', '\u2028x\u2029', 'x \u3000 y'),
  *('\u00e9t\u00e9', 'e\u0301te\u0301', 'E\u0301A\u030a', '\u0130I\u0131'),
  *('a\u0323\u0307', '\u1ea9', '\u212b\u2126', '\u1100\u1161'),
  *('\uac00', '\ufb01 \uff21 \u00bd \u2460 \u2122', '\u00df\u1e9e\u017f'),
  *('\U0001f600', '\U0001f468\u200d\U0001f469\u200d\U0001f467', '\u2764\ufe0f'),
  *('\U0001f1e9\U0001f1ea', '\u4f60\u597d', '\u3053\u3093', '\u0627\u0644'),
  *('\u2581', 'a\u2581b', ' \u2581 ', '\u2581\u2581', '\ufffd', '\ufdd0'),
  *('<0x41>', '<0x0A> <0xFF>', '<s>', '</s>', '<unk>', '<pad>', '<mask>'),
  *('[CLS] [SEP] [MASK]', '<|endoftext|>', '<extra_id_0>', 'a</s>b'),
  *('aaa', 'aaaaa', 'aaaaaaaa', '-----------', '=' * 37, ' ' * 23, '\n' * 19),
  *("it's don't I'LL", '12345 3.14', 'def f(x):\n    return x\n', 'AbC dEf'),
  *('http://a.b/c?d=e&f', '{"a": [1, 2]}', '##a ##', '\u2019tis', '\\n'),
)
_NUM_RANDOM, _NUM_PIECES = 400, 17


class Template(NamedTuple):
  """The ids that a model reads around texts."""

  start: tuple[int, ...] = ()  # before the first text
  # Between two texts; None: the model reads no pairs.
  between: tuple[int, ...] | None = None
  end: tuple[int, ...] = ()  # after the last
  # Whether the model has types of tokens, of which the second text's is 1.
  typed: bool = False
  last: bool = False  # whether the last token's type is 2, as XLNet's


def files(
  tokenizer: Tokenizer,
  template: Template,
  roles: Mapping[str, int],
  *,
  names: bool,
) -> dict[str, bytes]:
  """The files of a tokenizer that we made, by Hugging Face's names.

  Args:
    tokenizer: not an import, which has files of its own.
    template: the ids around a text.
    roles: ids of special tokens, as {'eos_token': 0}.
    names: whether names of special tokens in a text are these tokens, as for a
      model that fills a [MASK].
  """
  if type(tokenizer) not in _LIBRARIES:
    raise UsageError('has a tokenizer of its own for sources')
  library = _LIBRARIES[type(tokenizer)](tokenizer)
  if not isinstance(tokenizer, hf.HfTokenizer):
    _check(tokenizer, library)
  token = library.id_to_token
  model = json.loads(library.to_str())['model']
  unknown = model.get('unk_token')
  if 'unk_id' in model:
    unknown = model['vocab'][model['unk_id']][0]
  unknown_id = library.token_to_id(unknown or '')
  if unknown_id is not None:
    roles = {**roles, 'unk_token': unknown_id}
  known = {*roles.values(), *tokenizer.special.names.values()}
  mask = tokenizer.special.mask_id
  library.add_special_tokens(
    [
      # The space before a mask belongs to it: see `special.with_masks`.
      AddedToken(str(token(i)), lstrip=i == mask, special=True)
      for i in sorted(known)
    ]
  )
  library.post_processor = _processor(template, library)
  inputs = ['input_ids', *['token_type_ids'] * template.typed, 'attention_mask']
  config = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'clean_up_tokenization_spaces': False,
    'model_input_names': inputs,
    'split_special_tokens': not names,
    **{role: token(i) for role, i in roles.items()},
  }
  return {
    'tokenizer.json': library.to_str().encode(),
    special.CONFIG: json.dumps(config, indent=2).encode() + b'\n',
  }


def _processor(template: Template, library: tokenizers.Tokenizer) -> Any:
  """Puts the template's tokens around a text."""
  between = template.between
  typed = 1 if template.typed else 0

  def part(ids: Sequence[int], kind: int) -> list[str]:
    return [f'{library.id_to_token(i)}:{kind}' for i in ids]

  def end(kind: int) -> list[str]:
    *most, last = [part([i], kind)[0] for i in template.end] or ['']
    if template.last and template.typed:
      last = part(template.end[-1:], 2)[0]
    return [*most, last] if last else []

  start = part(template.start, 0)
  pair = ['$A:0', f'$B:{typed}']
  if between is not None:
    pair = [*start, '$A:0', *part(between, 0), f'$B:{typed}', *end(typed)]
  around = {*template.start, *(between or ()), *template.end}
  return processors.TemplateProcessing(
    single=[*start, '$A:0', *end(0)],
    pair=pair,
    special_tokens=[(str(library.id_to_token(i)), i) for i in sorted(around)],
  )


def approximate(tokenizer: Tokenizer) -> str:
  """The texts that may still get other ids in transformers; '': none."""
  if (
    isinstance(tokenizer, SentencePiece)
    and _proto(tokenizer).normalizer_spec.precompiled_charsmap
  ):
    return (
      'texts whose letters have several accents or vowel signs in another '
      'order than NFKC gives them, such as vocalised Arabic and pointed Hebrew '
      'as they are typed, and to some letters of rare scripts'
    )
  return ''


def _proto(tokenizer: SentencePiece) -> Any:
  return message().FromString(tokenizer.processor.serialized_model_proto())


def _check(tokenizer: Tokenizer, library: tokenizers.Tokenizer) -> None:
  """Raises if any of many texts gets other ids."""
  library.encode_special_tokens = True
  try:
    for text in _texts(tokenizer):
      ours, theirs = _ids(tokenizer, text), _library_ids(library, text)
      if ours != theirs:
        raise UsageError(
          f'transformers would read {text[:40]!r} as {theirs}, and the '
          f'tokenizer of this run reads {ours}'
        )
  finally:
    library.encode_special_tokens = False


def _ids(tokenizer: Tokenizer, text: str) -> list[int] | None:
  """The ids of a text; None: the tokenizer refuses it."""
  try:
    return tokenizer.encode(text).tolist()
  except UsageError:
    return None


def _library_ids(library: tokenizers.Tokenizer, text: str) -> list[int] | None:
  try:
    return library.encode(text, add_special_tokens=False).ids
  except Exception:  # `tokenizers` raises plain `Exception`
    return None


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
  """Hard texts, and random ones from pieces of the vocabulary."""
  yield from _HARD
  yield from tokenizer.special.names
  rng = np.random.default_rng(0)
  for _ in range(_NUM_RANDOM):
    ids = rng.integers(tokenizer.vocab_size, size=_NUM_PIECES)
    yield ''.join(tokenizer.decode([i]) for i in ids.tolist())
    yield tokenizer.decode(ids.tolist())


def _byte_level(symbols: Sequence[int | str]) -> tokenizers.Tokenizer:
  """A symbol for each byte, or for each frequent one and the rare ones."""
  vocabulary = {
    s if isinstance(s, str) else words.spelled(s): i
    for i, s in enumerate(symbols)
  }
  unknown = _RARE if _RARE in vocabulary else None
  library = tokenizers.Tokenizer(
    models.BPE(vocabulary, [], unk_token=unknown, fuse_unk=False)
  )
  library.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  library.decoder = decoders.ByteLevel()
  return library


def _characters(tokenizer: Characters) -> tokenizers.Tokenizer:
  """Other characters are refused, since the unknown token does not exist."""
  vocabulary = {c: i for i, c in enumerate(tokenizer.alphabet)}
  vocabulary[_EOS] = tokenizer.eos_id
  library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token='none'))
  library.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
  library.decoder = decoders.Fuse()
  return library


def _words(tokenizer: WordList) -> tokenizers.Tokenizer:
  listed = [END_OF_WORDS, UNKNOWN, *tokenizer.words]
  vocabulary = {word: i for i, word in enumerate(listed)}
  library = tokenizers.Tokenizer(
    models.WordLevel(vocabulary, unk_token=UNKNOWN)
  )
  # Python's white space, spelled out: the library's differs.
  points = [c for c in map(chr, range(0x3001)) if c.isspace() and c != '\n']
  spaces = ''.join(f'\\x{{{ord(c):X}}}' for c in points)
  library.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(Regex(f'[{spaces}]+'), 'removed'),
      pre_tokenizers.Split('\n', 'isolated'),
    ]
  )
  library.decoder = decoders.Sequence(
    [
      # Puts a space before each word, as none has this prefix.
      decoders.WordPiece(prefix=END_OF_WORDS, cleanup=False),
      decoders.Fuse(),
      decoders.Replace(Regex(' ?\\n ?'), '\n'),
    ]
  )
  return library


def _of_hf(tokenizer: hf.HfTokenizer) -> tokenizers.Tokenizer:
  library = tokenizers.Tokenizer.from_str(tokenizer.contents[hf.FILE].decode())
  library.no_truncation()
  library.no_padding()
  return library


def _sentencepiece(tokenizer: SentencePiece) -> tokenizers.Tokenizer:
  """Pieces have spaces where SentencePiece has U+2581.

  So a U+2581 in a text is not a space, and has no piece.
  """
  proto = _proto(tokenizer)
  pieces = [(p.piece.replace(SPACE_MARK, ' '), p) for p in proto.pieces]
  byte_fallback = proto.trainer_spec.byte_fallback
  make = {1: _unigram, 2: _bpe}.get(proto.trainer_spec.model_type)
  if make is None:
    raise UsageError('the SentencePiece model is neither unigram nor bpe')
  library = make(pieces, byte_fallback)
  steps = []
  settings = proto.normalizer_spec
  if not tokenizer.keeps_marks:
    steps.append(normalizers.Replace(SPACE_MARK, ' '))
  if settings.precompiled_charsmap:
    # The library maps a grapheme by its beginning: of a capital and its accent
    # the capital alone. So both are normalised before.
    steps.append(normalizers.NFKC())
    if settings.name.endswith('_cf'):
      steps.append(normalizers.Lowercase())
      # SentencePiece keeps this capital, whose small letter is two characters.
      steps.append(normalizers.Replace('i\u0307', '\u0130'))
    steps.append(normalizers.Precompiled(settings.precompiled_charsmap))
  if settings.remove_extra_whitespaces:
    steps.append(normalizers.Replace(Regex(r'\A +| +\z'), ''))
    steps.append(normalizers.Replace(Regex(' {2,}'), ' '))
  if settings.add_dummy_prefix:
    steps.append(normalizers.Prepend(' '))
  if steps:
    library.normalizer = normalizers.Sequence(steps)
  library.decoder = decoders.Sequence(
    [
      *[decoders.ByteFallback()] * byte_fallback,
      decoders.Fuse(),
      *[decoders.Strip(' ', 1, 0)] * settings.add_dummy_prefix,
    ]
  )
  return library


# Kinds of pieces in a model of SentencePiece.
_NORMAL, _UNKNOWN, _SYMBOL = 1, 2, 4


def _unigram(
  pieces: Sequence[tuple[str, Any]], byte_fallback: bool
) -> tokenizers.Tokenizer:
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
  library = tokenizers.Tokenizer(models.Unigram(scored, unknown, byte_fallback))
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
    library.pre_tokenizer = pre_tokenizers.Sequence(
      [pre_tokenizers.Split(c, 'isolated') for c in sorted(parted - {''})]
    )
  return library


def _bpe(
  pieces: Sequence[tuple[str, Any]], byte_fallback: bool
) -> tokenizers.Tokenizer:
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
  library = tokenizers.Tokenizer(
    models.BPE(
      vocabulary,
      merges,
      unk_token=unknown,
      fuse_unk=True,
      byte_fallback=byte_fallback,
    )
  )
  library.add_tokens(
    [
      AddedToken(text, normalized=False)
      for text, p in pieces
      if p.type == _SYMBOL
    ]
  )
  return library


_LIBRARIES: dict[type, Any] = {
  Bytes: lambda made: _byte_level([*range(made.eos_id), _EOS]),
  FrequentBytes: lambda made: _byte_level([_EOS, _RARE, *made.values]),
  Characters: _characters,
  WordList: _words,
  Bpe: lambda made: tokenizers.Tokenizer.from_str(made.library.to_str()),
  hf.HfTokenizer: _of_hf,
  SentencePiece: _sentencepiece,
}
