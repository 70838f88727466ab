# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE with an encoder's tokens, as RoBERTa's (Liu et al., 2019).

GPT-2's encoding, hence lossless, with <s>, <pad>, </s>, <unk> and <mask>.
Documents end with </s>. Names of special tokens in a text are plain text.
"""

import json
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from gpt_jax.files.document import Document
from gpt_jax.ranges import Bytes, Count, Seed
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import bpe, hf, training

# In the order of RoBERTa's vocabulary, whose <mask> is the last of all.
_ROLES = {
  'cls_token': '<s>',
  'pad_token': '<pad>',
  'sep_token': '</s>',
  'unk_token': '<unk>',
  'mask_token': '<mask>',
}
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_bpe(
  vocab_size: Count, sample_bytes: Bytes = 0, seed: Seed = 0
) -> Callable[[Iterable[Document]], hf.HfTokenizer]:
  """Byte-level BPE trained on the training split.

  By the `tokenizers` library: it joins the pair of pieces that is the most
  frequent, at least twice.

  Args:
    vocab_size: number of pieces, with the 256 bytes and five special tokens.
    sample_bytes: as for `sentencepiece`, as is `seed`.
    seed: chooses another sample.
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
    library = _library(models.BPE())
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
    return _made(library)

  return train


def byte_bpe_file(
  vocabulary: str, merges: str
) -> Callable[[Iterable[Document]], hf.HfTokenizer]:
  """RoBERTa's `vocab.json` and `merges.txt`: 50,265 tokens."""

  def read(documents: Iterable[Document]) -> hf.HfTokenizer:
    del documents
    where = f'tokenizer.name: byte_bpe_file({vocabulary!r}, {merges!r})'
    try:
      contents = []
      for path in (vocabulary, merges):
        with open(path, 'rb') as file:
          contents.append(file.read())
      pieces = json.loads(contents[0])
      model = models.BPE(pieces, bpe.read_merges(contents[1]))
      missing = [token for token in _ROLES.values() if token not in pieces]
    except OSError as e:
      raise UsageError(
        f'{where}: cannot read {e.filename!r} ({e.strerror}); name a '
        "RoBERTa's vocab.json and merges.txt"
      ) from e
    except Exception as e:  # `tokenizers` raises plain `Exception`
      raise UsageError(f'{where}: the files do not fit: {e}') from e
    if missing:
      raise UsageError(
        f'{where}: the vocabulary has no {", ".join(missing)}; if it is '
        "GPT-2's, name gpt2_bpe"
      )
    return _made(_library(model))

  return read


def _library(model: models.BPE) -> tokenizers.Tokenizer:
  library = tokenizers.Tokenizer(model)
  library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  library.decoder = decoders.ByteLevel()
  return library


def _made(library: tokenizers.Tokenizer) -> hf.HfTokenizer:
  ends = []
  for role in ('sep_token', 'cls_token'):
    i = library.token_to_id(_ROLES[role])
    assert i is not None
    ends.append((_ROLES[role], i))
  library.post_processor = processors.RobertaProcessing(
    *ends, trim_offsets=False, add_prefix_space=False
  )
  roles = _ROLES | {'bos_token': '<s>', 'eos_token': '</s>'}
  return hf.made(library, roles)
