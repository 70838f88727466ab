# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains SentencePiece models (Kudo and Richardson, 2018), on a sample of text.

By default they keep every character: the text is not normalised, white space is
not merged, nothing is put in front, and characters without a piece are spelled
in bytes.
"""

import hashlib
import heapq
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import sentencepiece as spm

from gpt_jax.core.files.document import Document
from gpt_jax.core.ranges import Bytes, Count, Seed, Whole, number
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.sentencepiece import MODEL, SentencePiece, message
from gpt_jax.core.tokenizers.special import sentinel
from gpt_jax.core.tokenizers.tokenizer import Maker
from gpt_jax.core.tokenizers.words import SPACE_MARK

# Default size of the sample: bytes for each piece, and the most bytes. On two
# cores, unigram took 12 s for 32,000 pieces of English books.
_BYTES_PER_PIECE = 1000
_MOST_BYTES = 64_000_000

# The sample is taken in chunks of about this many characters.
_CHUNK = 1 << 14
LONGEST = 4 * _CHUNK  # a line without end is cut here


def sample_size(vocab_size: int, sample_bytes: int) -> int:
  """Bytes of the sample; if `sample_bytes` is 0, by the vocabulary's size."""
  return sample_bytes or min(_BYTES_PER_PIECE * vocab_size, _MOST_BYTES)


def num_bytes(chunks: Iterable[str]) -> int:
  return sum(len(chunk.encode()) for chunk in chunks)


def too_small(chunks: Iterable[str], size: int, most: str) -> str:
  """The error that a sample of `size` bytes supports at most `most` pieces."""
  held = num_bytes(chunks)
  more = f'raise sample_bytes above {held}' if held >= size else 'add text'
  return f'{held} bytes of this corpus support at most {most}; ask for no more, or ' + more


def take(documents: Iterable[Document], most: int, seed: int) -> list[str]:
  """Chooses chunks of about `most` bytes together, those of the least hashes.

  In one pass, with memory bounded by the sample. The choice does not depend on
  the order of the documents, and is everything if there are fewer bytes.
  """
  key = seed.to_bytes(8, 'little', signed=True)
  heap, held = [], 0  # the greatest hash on top
  for order, (place, chunk) in enumerate(cut(documents)):
    digest = hashlib.blake2b(place.encode(), digest_size=8, key=key).digest()
    length = len(chunk.encode())
    heapq.heappush(heap, (-int.from_bytes(digest, 'big'), order, length, chunk))
    held += length
    while held - heap[0][2] >= most:
      held -= heapq.heappop(heap)[2]
  return [chunk for _, _, _, chunk in sorted(heap, key=lambda entry: entry[1])]


def cut(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
  """Cuts documents at newlines into pairs of a place and a text."""
  for name, text in documents:
    start = 0
    while start < len(text):
      stop = text.find('\n', start + _CHUNK, start + LONGEST)
      stop = start + LONGEST if stop < 0 else stop
      yield f'{name}@{start}', text[start:stop]
      start = stop


# Ends each text in an encoder's row.
_SEP = '[SEP]'

# Texts with a meaning of their own in a model.
_TAKEN = r'[\n\t\0\u2581]|^(<unk>|<s>|</s>|<0x[0-9A-F]{2}>)$'
_RESERVED = {'symbols': re.compile(rf'{_TAKEN}|^<pad>$'), 'special': re.compile(_TAKEN)}

# Log-probabilities of pieces are multiples of 1 / _SCALE. So their sums over a
# long text are exact in 32 bits, and of two equally probable segmentations,
# such as of many spaces, all libraries choose the same.
_SCALE = 1024


def sentencepiece(
  vocab_size: Count,
  model: Literal['unigram', 'bpe'] = 'unigram',
  normalization: Literal['identity', 'nfkc', 'nfkc_cf'] = 'identity',
  byte_fallback: bool = True,
  split_digits: bool = True,
  symbols: Sequence[str] = (),
  special: Sequence[str] = (),
  sentinels: Whole = 0,
  character_coverage: Annotated[float, number(0.9, 1)] = 0.9999,
  sample_bytes: Bytes = 0,
  seed: Seed = 0,
) -> Maker:
  """A model trained on the training split.

  Args:
    vocab_size: number of pieces, including 256 bytes, unknown, eos, newline,
      tab, `symbols` and `special`.
    model: 'unigram' (Kudo, 2018) or 'bpe' (Sennrich et al., 2016).
    normalization: 'identity' (Chinchilla) or 'nfkc' (Gopher), which replaces
      characters by equivalent ones, such as a ligature by its letters: decoding
      gives these. 'nfkc_cf' also lower-cases (ALBERT, which also removes
      accents).
    byte_fallback: characters without a piece are spelled in bytes of UTF-8
      (PaLM); else they are the unknown piece, and lost.
    split_digits: each digit is a piece: '123.5' -> 1 2 3 . 5 (PaLM).
    symbols: texts that are always a piece of their own.
    special: tokens that no text becomes, such as an encoder's ['<pad>',
      '[CLS]', '[SEP]', '[MASK]']. If [SEP] is among them, it ends documents.
    sentinels: the number of further such tokens, T5's <extra_id_0>,
      <extra_id_1>, ..., of which the first has the highest id.
    character_coverage: the fraction of the sample's characters that have
      pieces, the most frequent ones first.
    sample_bytes: of the training sample, chunks of documents that are chosen by
      a hash of their names; 0: 1000 for each piece, at most 64 MB.
  """
  call = f'sentencepiece(vocab_size={vocab_size})'

  def fail(name: str, value: object, why: str):
    return UsageError(f'tokenizer.name: {call}: {name}={value!r} {why}')

  for name, value in (('symbols', symbols), ('special', special)):
    if why := _flaw(value, reserved=_RESERVED[name]):
      raise fail(name, value, why)
  if both := [text for text in special if text in symbols]:
    raise fail('special', special, f'has {both[0]!r}, one of symbols')
  special = (*special, *map(sentinel, reversed(range(sentinels))))
  if len({*special, *symbols}) < len(special) + len(symbols):
    raise fail('sentinels', sentinels, 'are in special or symbols, too')
  # With spaces as in pieces; real ones would never be found.
  spaced = [symbol.replace(' ', SPACE_MARK) for symbol in symbols]
  options = {
    'model_type': model,
    'vocab_size': vocab_size,
    'normalization_rule_name': normalization,
    'byte_fallback': byte_fallback,
    'split_digits': split_digits,
    'user_defined_symbols': ['\n', '\t', *spaced],
    'character_coverage': character_coverage,
  }
  if others := [token for token in special if token != _SEP]:
    options['control_symbols'] = others
  if _SEP in special:
    options['eos_piece'] = _SEP
  size = sample_size(vocab_size, sample_bytes)

  def train(documents: Iterable[Document]) -> SentencePiece:
    chunks = take(documents, size, seed)
    try:
      data = _train(_sentences(chunks), options)
    except RuntimeError as e:
      why = _explain(str(e), chunks, size, model)
      raise UsageError(f'tokenizer.name: {call}: {why}') from e
    return SentencePiece('sentencepiece', {MODEL: data})

  return Maker(train, learned=True, vocab_size=vocab_size, special=frozenset(special))


def _flaw(texts: object, reserved: re.Pattern) -> str:
  """What is wrong with a list of pieces; '' if nothing."""
  if not isinstance(texts, list | tuple) or not all(
    isinstance(text, str) and text for text in texts
  ):
    return "must be a list of texts, as ['<mask>']"
  if len({*texts}) < len(texts):
    return 'must differ'
  for text in texts:
    if reserved.search(text):
      return (
        f'holds {text!r}: newline and tab are symbols already, U+2581, NUL, '
        '<unk>, <s>, </s> and <0x00> to <0xFF> cannot be'
      )
  return ''


def _train(sentences: Iterator[str], options: dict) -> bytes:
  """Returns the trained model, the same bytes for the same sentences.

  Raises:
    RuntimeError: there is too little text.
  """
  written = io.BytesIO()
  spm.SentencePieceTrainer.Train(
    **options,
    sentence_iterator=sentences,
    model_writer=written,
    # Candidates for pieces: these are ample, and fewer train faster.
    seed_sentencepiece_size=min(32 * options['vocab_size'], 1_000_000),
    remove_extra_whitespaces=False,
    add_dummy_prefix=False,
    allow_whitespace_only_pieces=True,
    unk_id=0,
    eos_id=1,
    bos_id=-1,
    pad_id=-1,
    max_sentence_length=4 * LONGEST,  # in bytes
    # The result depends on the number of threads.
    num_threads=8,
    minloglevel=2,
  )
  if options['model_type'] != 'unigram':
    return written.getvalue()
  model = message().FromString(written.getvalue())
  for piece in model.pieces:
    piece.score = round(piece.score * _SCALE) / _SCALE
  return model.SerializeToString(deterministic=True)


def _explain(error: str, chunks: Sequence[str], size: int, model: str) -> str:
  if found := re.search(r'value <= (\d+)', error):
    most = f'{found[1]} pieces with model={model!r}'
    return too_small(chunks, size, most)
  if found := re.search(r'required_chars. \d+ vs (\d+)', error):
    return (
      f'this corpus needs at least {found[1]} pieces (bytes, symbols and its '
      'characters); ask for more'
    )
  return f'training failed on this corpus: {error}'


def _sentences(chunks: Iterable[str]) -> Iterator[str]:
  """Splits chunks at newlines and tabs, which are symbols of their own.

  The trainer would skip a sentence with a tab, its own separator.
  """
  for chunk in chunks:
    yield from filter(None, re.split('[\n\t]', chunk))
