# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT's WordPiece (Devlin et al., 2018): trained here, or a `vocab.txt`.

A text loses control characters, the kind of its white space and, in lower case,
accents. It is split at spaces, punctuation and ideographs, and words are
spelled in the longest pieces, which begin with `##` inside a word. A word that
cannot be spelled, or has more than 100 characters, is [UNK].

Decoding puts a space between all words. Documents end with [SEP]. Names of
special tokens in a text are plain text: `[`, `mask`, `]`.
"""

import collections
import json
from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from gpt_jax.core.files import lines
from gpt_jax.core.files.document import Document
from gpt_jax.core.ranges import Bytes, Count, Seed
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, saved, special, training
from gpt_jax.core.tokenizers.tokenizer import Maker

# In the order of BERT's own vocabularies.
_ROLES = {
  'pad_token': '[PAD]',
  'unk_token': '[UNK]',
  'cls_token': '[CLS]',
  'sep_token': '[SEP]',
  'mask_token': '[MASK]',
}
_PREFIX = '##'
_LONGEST_WORD = 100  # characters


def wordpiece(
  vocab_size: Count,
  lowercase: bool = True,
  alphabet: Count = 1000,
  sample_bytes: Bytes = 0,
  seed: Seed = 0,
  strip_accents: bool | None = None,
) -> Maker:
  """WordPiece trained on the training split.

  By the `tokenizers` library, which joins the most frequent pair of pieces as
  long as it occurs twice.

  Args:
    vocab_size: number of pieces, with [PAD] [UNK] [CLS] [SEP] [MASK].
    lowercase: also removes accents, unless `strip_accents` says otherwise.
    alphabet: how many characters have pieces: the most frequent ones.
    strip_accents: None: as `lowercase`.
  """
  size = training.sample_size(vocab_size, sample_bytes)
  call = f'tokenizer.name: wordpiece(vocab_size={vocab_size})'
  normalizer = _normalizer(lowercase, strip_accents)

  def train(documents: Iterable[Document]) -> hf.HfTokenizer:
    chunks = training.take(documents, size, seed)
    first = _alphabet(chunks, normalizer, alphabet)
    if len(first) > vocab_size:
      raise UsageError(
        f'{call}: this corpus needs at least {len(first)} pieces (its '
        f'characters); ask for more, or lower alphabet={alphabet}'
      )
    vocabulary = _train(chunks, first, normalizer, vocab_size)
    if len(vocabulary) < vocab_size:
      most = f'{len(vocabulary)} pieces'
      raise UsageError(f'{call}: {training.too_small(chunks, size, most)}')
    return _made(vocabulary, normalizer)

  return Maker(train, learned=True, vocab_size=vocab_size, special=frozenset(_ROLES.values()))


def wordpiece_file(
  path: str, lowercase: bool = True, strip_accents: bool | None = None, eos: str = ''
) -> Maker:
  """A `vocab.txt`, such as BERT's: one piece a line.

  Args:
    lowercase: whether the model is uncased, which also removes accents, unless
      `strip_accents` says otherwise.
    strip_accents: None: as `lowercase`.
    eos: the token that ends documents; by default [SEP].
  """

  def read(documents: Iterable[Document]) -> hf.HfTokenizer:
    del documents
    data = saved.user_file(path, 'a vocab.txt')
    # Lines may end as on Windows.
    pieces = lines.decoded(path, data).replace('\r\n', '\n').split('\n')
    while pieces and not pieces[-1]:
      pieces.pop()
    if why := _flaw(pieces):
      raise UsageError(
        f'tokenizer.name: {path!r} {why}; name the vocab.txt of a BERT, one piece a line'
      )
    return _made(pieces, _normalizer(lowercase, strip_accents), eos)

  return Maker(read)


def _flaw(pieces: Sequence[str]) -> str:
  """What is wrong with a vocabulary; '' if nothing."""
  if not pieces:
    return 'is empty'
  missing = [token for token in _ROLES.values() if token not in pieces]
  if missing:
    return f'has no {", ".join(missing)}'
  seen = {}
  for number, piece in enumerate(pieces, start=1):
    if piece in seen:
      return f'has {piece!r} on lines {seen[piece]} and {number}'
    seen[piece] = number
  return ''


def _normalizer(lowercase: bool, strip_accents: bool | None) -> normalizers.BertNormalizer:
  return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)


def _made(
  pieces: Sequence[str], normalizer: normalizers.BertNormalizer, eos: str = ''
) -> hf.HfTokenizer:
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  library = _library(vocabulary, normalizer)
  library.decoder = decoders.WordPiece(prefix=_PREFIX, cleanup=False)
  names = [_ROLES['cls_token'], _ROLES['sep_token']]
  library.post_processor = processors.TemplateProcessing(
    single=f'{names[0]} $A {names[1]}',
    pair=f'{names[0]} $A {names[1]} $B:1 {names[1]}:1',
    special_tokens=[(name, vocabulary[name]) for name in names],
  )
  return with_roles(library, _ROLES, eos)


def _library(
  vocabulary: dict[str, int], normalizer: normalizers.BertNormalizer
) -> tokenizers.Tokenizer:
  library = tokenizers.Tokenizer(
    models.WordPiece(
      vocabulary, unk_token=_ROLES['unk_token'], max_input_chars_per_word=_LONGEST_WORD
    )
  )
  library.normalizer = normalizer
  library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return library


def _alphabet(
  chunks: Sequence[str], normalizer: normalizers.BertNormalizer, most: int
) -> list[str]:
  """The special tokens, and the most frequent characters, sorted.

  Each character is a piece at the beginning of a word and, if it can be there,
  another inside one, so that every word of them can be spelled.
  """
  normalize = normalizer.normalize_str
  part = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  counts = collections.Counter()
  for chunk in chunks:
    counts.update(normalize(chunk))
  del counts[' ']
  common = sorted(counts, key=lambda c: (-counts[c], c))[:most]
  common.sort()
  inside = [c for c in common if len(part(normalize(f'a{c}a'))) == 1]
  return [*_ROLES.values(), *common, *(_PREFIX + c for c in inside)]


def _train(
  chunks: Sequence[str], first: list[str], normalizer: normalizers.BertNormalizer, vocab_size: int
) -> list[str]:
  """The pieces in order; those of `first` come first.

  As special tokens they get ids before the library looks at words, which it
  does in random order: pairs of the same frequency go by their ids.
  """
  library = _library({}, normalizer)
  characters = [piece for piece in first if len(piece) == 1]
  trainer = trainers.WordPieceTrainer(
    vocab_size=vocab_size,
    min_frequency=2,
    special_tokens=first,
    initial_alphabet=characters,
    limit_alphabet=len(characters),
    continuing_subword_prefix=_PREFIX,
    show_progress=False,
  )
  library.train_from_iterator(chunks, trainer)
  found = library.get_vocab()
  return sorted(found, key=lambda piece: found[piece])


def with_roles(
  library: tokenizers.Tokenizer, roles: Mapping[str, str], eos: str = ''
) -> hf.HfTokenizer:
  """A tokenizer that we made, with the files that Hugging Face needs.

  Args:
    library: without special tokens.
    roles: names of special tokens, as {'sep_token': '[SEP]'}.
    eos: the token that ends documents; '': the sep_token.
  """
  # Special tokens, which a text names only for `encode_special`.
  library.add_special_tokens(
    [
      tokenizers.AddedToken(token, lstrip=token == '<mask>', special=True)
      for token in dict.fromkeys(roles.values())
    ]
  )
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', **roles}
  return hf.HfTokenizer(
    {
      hf.FILE: library.to_str().encode(),
      hf.EOS: json.dumps(eos or roles['sep_token']).encode(),
      special.CONFIG: json.dumps(config, indent=2).encode() + b'\n',
    }
  )
