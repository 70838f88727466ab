# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Byte pair encodings: GPT-1's and GPT-2's files, and RoBERTa's kind.

GPT-1's and GPT-2's read OpenAI's vocabulary files; ids agree with published
checkpoints. RoBERTa's is GPT-2's encoding with <s>, <pad>, </s>, <unk> and
<mask> (Liu et al., 2019), from files or trained here; documents end with </s>.
Names of special tokens in a text are plain text.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import (
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

from gpt_jax.files.document import Document
from gpt_jax.ranges import Bytes, Count, Seed
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import hf, saved, special, training, words

_VOCABULARY, _MERGES = 'vocabulary.json', 'merges.txt'

# A text is encoded in segments of about this many characters, on all cores.
_SEGMENT = 1 << 14
# Both encodings split before a newline that follows a visible character, so the
# two sides can be encoded separately.
_CUT = re.compile(r'(?<=[!-~])\n')

# RoBERTa's special tokens, in the order of its vocabulary; there <mask> is
# last.
_ROLES = {
  'cls_token': '<s>',
  'pad_token': '<pad>',
  'sep_token': '</s>',
  'unk_token': '<unk>',
  'mask_token': '<mask>',
}
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


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
      self._settle(library.get_vocab_size(), vocabulary[_END_OF_DOCUMENT[kind]])
    except KeyError as e:
      raise UsageError(
        f'the vocabulary has no {_END_OF_DOCUMENT[kind]!r}, so it is not '
        f'that of {kind}'
      ) from e
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'the vocabulary files do not fit {kind}: {e}') from e

  @property
  def special_names(self) -> dict[str, int]:
    # GPT-1 has no name for its own: see `_END_OF_DOCUMENT`.
    return (
      {} if self.kind == 'gpt1_bpe' else {special.END_OF_DOCUMENT: self.eos_id}
    )

  def _parts(self, text: str) -> list[str]:
    parts, start = [], 0
    while cut := _CUT.search(text, start + _SEGMENT):
      parts.append(text[start : cut.start()])
      start = cut.start()
    return [*parts, text[start:]]

  @functools.cached_property
  def _words(self) -> words.Words:
    special = {self.eos_id, self.id_of('<unk>')}
    pieces = [
      None if i in special else self.token(i) for i in range(self.vocab_size)
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


def _from_files(kind: str, encoder: str, merges: str) -> Bpe:
  contents = {
    name: saved.user_file(path, f'the files of {kind} that OpenAI published')
    for name, path in ((_VOCABULARY, encoder), (_MERGES, merges))
  }
  try:
    return Bpe(kind, contents)
  except UsageError as e:
    raise UsageError(
      f'tokenizer.name: {kind}({encoder!r}, {merges!r}): {e}'
    ) from e


def byte_bpe(
  vocab_size: Count, sample_bytes: Bytes = 0, seed: Seed = 0
) -> Callable[[Iterable[Document]], hf.HfTokenizer]:
  """Byte-level BPE trained on the training split.

  By the `tokenizers` library, which joins the most frequent pair of pieces as
  long as it occurs twice.

  Args:
    vocab_size: number of pieces, with the 256 bytes and five special tokens.
    sample_bytes: as for `sentencepiece`.
    seed: of the sample.
  """
  size = training.sample_size(vocab_size, sample_bytes)
  call = f'tokenizer.name: byte_bpe(vocab_size={vocab_size})'
  least = len(_ROLES) + len(_BYTES)
  if vocab_size < least:
    raise UsageError(
      f'{call}: there are {least} pieces of bytes and special tokens; ask for '
      'more'
    )

  def train(documents: Iterable[Document]) -> hf.HfTokenizer:
    chunks = training.take(documents, size, seed)
    library = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
      vocab_size=vocab_size,
      min_frequency=2,
      special_tokens=[*_ROLES.values()],
      initial_alphabet=_BYTES,
      show_progress=False,
    )
    library.train_from_iterator(chunks, trainer)
    if (found := library.get_vocab_size()) < vocab_size:
      most = f'{found} pieces'
      raise UsageError(f'{call}: {training.too_small(chunks, size, most)}')
    return _encoders(library)

  return train


def byte_bpe_file(
  vocabulary: str, merges: str
) -> Callable[[Iterable[Document]], hf.HfTokenizer]:
  """RoBERTa's `vocab.json` and `merges.txt`: 50,265 tokens."""

  def read(documents: Iterable[Document]) -> hf.HfTokenizer:
    del documents
    where = f'tokenizer.name: byte_bpe_file({vocabulary!r}, {merges!r})'
    contents = [
      saved.user_file(path, "a RoBERTa's vocab.json and merges.txt")
      for path in (vocabulary, merges)
    ]
    try:
      pieces = json.loads(contents[0])
      model = models.BPE(pieces, read_merges(contents[1]))
      missing = [token for token in _ROLES.values() if token not in pieces]
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'{where}: the files do not fit: {e}') from e
    if missing:
      raise UsageError(
        f'{where}: the vocabulary has no {", ".join(missing)}; if it is '
        "GPT-2's, name gpt2_bpe"
      )
    return _encoders(_byte_level(model))

  return read


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
  return _byte_level(models.BPE(vocabulary, merges))


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


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
  library = tokenizers.Tokenizer(model)
  library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  library.decoder = decoders.ByteLevel()
  return library


def _encoders(library: tokenizers.Tokenizer) -> hf.HfTokenizer:
  ends = [(t, library.get_vocab()[t]) for t in ('</s>', '<s>')]
  library.post_processor = processors.RobertaProcessing(
    *ends, trim_offsets=False, add_prefix_space=False
  )
  roles = _ROLES | {'bos_token': '<s>', 'eos_token': '</s>'}
  return hf.made(library, roles)


_ENCODINGS = {'gpt2_bpe': _gpt2, 'gpt1_bpe': _gpt1}

# GPT-1 has no token for the end of a document. Its newline is never in a text's
# ids, since the encoding drops white space.
_END_OF_DOCUMENT = {'gpt2_bpe': '<|endoftext|>', 'gpt1_bpe': '\n</w>'}
