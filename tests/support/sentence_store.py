# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Token stores in memory that have sentences."""

import numpy as np

from gpt_jax.core.tokenizers import special
from gpt_jax.core.tokens import manifest
from gpt_jax.core.tokens.store import TokenStore

EOS, CLS, SEP, PAD = 1, 2, 3, 4


def corpus(num_documents, seed=0, longest=9):
  """Documents as lists of sentences, which are lists of tokens.

  No token is there twice. Some documents are empty.
  """
  rng = np.random.default_rng(seed)
  token, documents = 10, []
  for _ in range(num_documents):
    sentences = []
    for _ in range(rng.integers(0, 12)):
      size = int(rng.integers(1, longest + 1))
      sentences.append(list(range(token, token + size)))
      token += size
    documents.append(sentences)
  return documents


def store_of(documents, rows, parts=None, pairs=False):
  """A token store in memory, with `corpus`'s tokens."""
  tokens, ends, sentence_ends, part_ends = [], [], [], {}
  for i, sentences in enumerate(documents):
    for sentence in sentences:
      tokens += sentence
      sentence_ends.append(len(tokens))
    tokens.append(EOS)
    sentence_ends[len(sentence_ends) - bool(sentences) :] = [len(tokens)]
    ends.append(len(tokens))
    if parts:
      part_ends[parts[i]] = len(tokens)
  written = manifest.Manifest(
    source='',
    source_sha256='',
    holdout='none',
    tokenizer='wordpiece_file',
    tokenizer_fingerprint='',
    vocab_size=max(tokens) + 1,
    eos_id=EOS,
    dtype='uint32',
    num_tokens=len(tokens),
    num_documents=len(ends),
    num_bytes=1,
    tokens_crc32=[],
    document_ends_crc32=[],
    parts=part_ends,
    pairs=pairs,
  )
  arrays = {
    'tokens': np.array(tokens, np.uint32),
    'document_ends': np.array(ends),
    'sentence_ends': np.array(sentence_ends),
  }
  store = TokenStore('memory', written, arrays)
  usual = special.of({}, EOS, {})
  store.special = usual._replace(cls_id=CLS, sep_id=SEP, pad_id=PAD)
  store.source_special = store.special
  source = 'mixture(a:0.5, b:0.5)' if parts else 'text("x")'
  return store.ordered(source, rows)
