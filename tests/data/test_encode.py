# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoding on several workers, and its benchmark."""

import time

import numpy as np
import pytest

from gpt_jax.benchmarks import encode as benchmark
from gpt_jax.data import encode
from gpt_jax.data.holdout import Part
from gpt_jax.data.sources.source import Document
from gpt_jax.spec import UsageError


class Slow:
  """Ids are lengths; texts of other lengths take other times."""

  in_threads = True

  def __init__(self):
    self.started = 0

  def encode_batch(self, texts):
    self.started += 1
    time.sleep(0.001 * (len(texts[0]) % 5))
    return [np.array([len(text)], np.int32) for text in texts]


def batches():
  return encode.batches(
    Part(Document(str(i), 'x' * (1 + i * 7 % 13)), False) for i in range(53)
  )


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setattr(encode, '_BATCH', 1)


@pytest.mark.parametrize('workers', [1, 3])
def test_threads_keep_the_order(workers):
  names, ids = [], []
  for batch, found in encode.encoded(batches(), Slow(), workers):
    names += [piece.part.document.name for piece in batch]
    ids += [int(i[0]) for i in found]
  assert names == [str(i) for i in range(53)]
  assert ids == [1 + i * 7 % 13 for i in range(53)]


def test_threads_are_few_batches_ahead_and_end():
  made = Slow()
  stream = encode.encoded(batches(), made, 2)
  next(stream)
  stream.close()
  assert 0 < made.started <= 5


def test_an_error_of_a_thread_reaches_the_reader():
  class Bad(Slow):
    def encode_batch(self, texts):
      raise UsageError('bad')

  with pytest.raises(UsageError, match='bad'):
    list(encode.encoded(batches(), Bad(), 2))


def test_the_benchmark_encodes_the_same(corpus, make_config):
  name = "sentencepiece(295, model='bpe')"
  result = benchmark.measure(make_config(tokenizer=name, workers=2), 1)
  assert result['num_documents'] == 37 == result['num_documents_same']
  assert result['workers'] == 2 and result['ratio'] > 0
  assert result['num_tokens'] <= result['num_bytes']
  assert f'{name}: 37 documents' in benchmark.report(result)
  with pytest.raises(UsageError, match=r"='bytes'.* not of SentencePiece"):
    benchmark.measure(make_config(), 1)
