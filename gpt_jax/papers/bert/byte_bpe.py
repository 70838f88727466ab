# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""RoBERTa's byte-level BPE: trained here, or by a `vocab.json` (Liu et al.,
2019).

GPT-2's encoding with <s>, <pad>, </s>, <unk> and <mask>; documents end with
</s>. Names of special tokens in a text are plain text.
"""

import json
from collections.abc import Iterable

import tokenizers
from tokenizers import models, pre_tokenizers, processors, trainers

from gpt_jax.core.files.document import Document
from gpt_jax.core.ranges import Bytes, Count, Seed
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, saved, training
from gpt_jax.core.tokenizers.bpe import byte_level, read_merges
from gpt_jax.core.tokenizers.tokenizer import Maker
from gpt_jax.papers.bert.wordpiece import with_roles

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


def byte_bpe(vocab_size: Count, sample_bytes: Bytes = 0, seed: Seed = 0) -> Maker:
  """Byte-level BPE trained on the training split.

  By the `tokenizers` library, which joins the most frequent pair of pieces as
  long as it occurs twice.

  Args:
    vocab_size: number of pieces, with the 256 bytes and five special tokens.
  """
  size = training.sample_size(vocab_size, sample_bytes)
  call = f'tokenizer.name: byte_bpe(vocab_size={vocab_size})'
  least = len(_ROLES) + len(_BYTES)
  if vocab_size < least:
    raise UsageError(f'{call}: there are {least} pieces of bytes and special tokens; ask for more')

  def train(documents: Iterable[Document]) -> hf.HfTokenizer:
    chunks = training.take(documents, size, seed)
    library = byte_level(models.BPE())
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

  return Maker(train, learned=True, vocab_size=vocab_size, special=frozenset(_ROLES.values()))


def byte_bpe_file(vocabulary: str, merges: str, eos: str = '') -> Maker:
  """RoBERTa's `vocab.json` and `merges.txt`: 50,265 tokens.

  Args:
    eos: the token that ends documents; by default </s>.
  """

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
      raise UsageError(f'{where}: the files do not fit: {e}; fetch both again') from e
    if missing:
      raise UsageError(
        f"{where}: the vocabulary has no {', '.join(missing)}; if it is GPT-2's, name gpt2_bpe"
      )
    return _encoders(byte_level(model), eos)

  return Maker(read)


def _encoders(library: tokenizers.Tokenizer, eos: str = '') -> hf.HfTokenizer:
  ends = [(t, library.get_vocab()[t]) for t in ('</s>', '<s>')]
  library.post_processor = processors.RobertaProcessing(
    *ends, trim_offsets=False, add_prefix_space=False
  )
  roles = _ROLES | {'bos_token': '<s>', 'eos_token': '</s>'}
  return with_roles(library, roles, eos)
