# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoding speed of `prepare` against SentencePiece's own threads.

Ours includes the holdout split, batching, cutting long documents, conversion to
the dtype of the store, document ends and the digest of the text: all that
`prepare` does except reading and writing files. SentencePiece's is one call,
`encode(documents, num_threads=N)`, to lists (the default) and to arrays. All
encode the same documents in memory, in alternation.
"""

import hashlib
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpt_jax.config import Config
from gpt_jax.files import progress
from gpt_jax.files import workers as processes
from gpt_jax.files.document import Document, Source
from gpt_jax.spec import UsageError
from gpt_jax.text import holdout
from gpt_jax.tokenizers import tokenizer
from gpt_jax.tokenizers.sentencepiece import SentencePiece
from gpt_jax.tokens import encode, store

# Bytes of text: enough for several seconds, and held in memory.
_MOST_BYTES = 256_000_000


class _Rates(NamedTuple):
  """Bytes per second in one round."""

  ours: float
  lists: float
  arrays: float


def measure(config: Config, steps: int) -> dict:
  """Makes the config's tokenizer; encodes its corpus `steps` times each way."""
  split = holdout.split(config.data.source, config.data.holdout)
  with progress.bar() as report:
    documents, size = [], 0
    for part in split.parts():
      documents.append(part.document)
      size += len(part.document.text.encode())
      report('reading', size, split.num_bytes)
      if size >= _MOST_BYTES:
        break
  made = tokenizer.build(config.tokenizer.name, documents)
  if not isinstance(made, SentencePiece):
    raise UsageError(
      f'tokenizer.name={config.tokenizer.name!r}: is not of SentencePiece, '
      'which is what encoding is compared with; take sentencepiece or '
      'sentencepiece_file'
    )
  workers = processes.count(config.data.workers)
  texts = [document.text for document in documents]
  own = made.processor

  def lists() -> list:
    return own.encode(texts, num_threads=workers)

  def arrays() -> list:
    return own.encode(texts, num_threads=workers, return_type='numpy')

  rounds = []
  with progress.bar() as report:
    for i in range(steps):
      rates = (
        size / _seconds(lambda: _as_prepare_does(documents, made, workers)),
        size / _seconds(lists),
        size / _seconds(arrays),
      )
      rounds.append(_Rates(*rates))
      report('encoding', (i + 1) * size, steps * size)
  ids, theirs = made.encode_batch(texts), arrays()
  return {
    'tokenizer': config.tokenizer.name,
    'workers': workers,
    'num_documents': len(documents),
    'num_bytes': size,
    'num_tokens': sum(map(len, ids)),
    'num_documents_same': sum(map(np.array_equal, ids, theirs)),
    'rounds': steps,
    'bytes_per_second': _median([r.ours for r in rounds]),
    'sentencepiece_bytes_per_second': _median([r.lists for r in rounds]),
    'sentencepiece_arrays_bytes_per_second': _median(
      [r.arrays for r in rounds]
    ),
    # Ratios within a round: the load of the machine may change between rounds.
    'ratio': _median([r.ours / r.lists for r in rounds]),
    'ratio_to_arrays': _median([r.ours / r.arrays for r in rounds]),
  }


def _as_prepare_does(
  documents: list[Document], made: SentencePiece, workers: int
) -> int:
  """Encodes the documents, and returns the number of tokens."""
  source = Source(lambda: iter(documents), None, {})
  corpus = holdout.Corpus(source, str, pairs=False)
  parts = holdout.documents()(corpus).parts()
  dtype = store.token_dtype(tokenizer.num_ids(made))
  eos = np.array([made.eos_id], np.int32)
  digest, num_tokens = hashlib.sha256(), 0
  batches = encode.batches(parts, made)
  for batch, tokens in encode.encoded(batches, made, workers):
    flat = []
    for piece, found in zip(batch, tokens, strict=True):
      flat += [found.ids, eos] if piece.last else [found.ids]
      if piece.last:
        text = piece.part.document.text.encode()
        digest.update(f'{piece.part.document.name}\0{len(text)}\0'.encode())
        digest.update(text)
    num_tokens += len(np.concatenate(flat).astype(dtype))
  return num_tokens


def _seconds(work: Callable[[], object]) -> float:
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


def _median(values: list[float]) -> float:
  return statistics.median(values)


def report(result: dict) -> str:
  """Formats the result."""
  r = result
  lines = [
    f'{r["tokenizer"]}: {r["num_documents"]:,} documents, '
    f'{r["num_bytes"] / 1e6:.1f} MB, {r["num_tokens"]:,} tokens; '
    f'{r["workers"]} threads, medians of {r["rounds"]} rounds in turn',
    f'as prepare does it       {r["bytes_per_second"] / 1e6:6.1f} MB/s',
  ]
  for name, key, ratio in (
    ('SentencePiece, to lists ', 'sentencepiece_bytes_per_second', 'ratio'),
    (
      'SentencePiece, to arrays',
      'sentencepiece_arrays_bytes_per_second',
      'ratio_to_arrays',
    ),
  ):
    lines.append(
      f'{name} {r[key] / 1e6:6.1f} MB/s; ours is {r[ratio]:.2f} times as fast'
    )
  lines.append(
    f'the same ids in {r["num_documents_same"]:,} of {r["num_documents"]:,} '
    'documents'
  )
  return '\n'.join(lines)
