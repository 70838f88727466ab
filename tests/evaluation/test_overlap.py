# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Texts of tasks in a training store, against a search of the plain text."""

import numpy as np
import pytest

from gpt_jax.data.tokenizers.tokenizer import Bytes
from gpt_jax.evaluation import overlap


class Store:
  """A token store of documents in memory."""

  def __init__(self, documents):
    parts = [[*d.encode(), 256] for d in documents]
    self._ids = np.concatenate(parts)
    self.document_ends = np.cumsum([len(p) for p in parts])

  def __len__(self):
    return len(self._ids)

  def tokens(self, start, stop):
    return self._ids[start:stop]


def sentence(rng, count):
  return ' '.join(f'w{i}' for i in rng.integers(1000, size=count))


@pytest.mark.parametrize('block', [1 << 20, 311])
def test_finds_what_training_has_seen(monkeypatch, block):
  monkeypatch.setattr(overlap, '_BLOCK', block)
  monkeypatch.setattr(overlap, '_SHARED', 13 * 6)
  rng = np.random.default_rng(0)
  texts = [(f'f:{i}', sentence(rng, 29)) for i in range(7)]
  texts.append(('f:short', 'too short'))
  documents = [sentence(rng, 211) for _ in range(5)]

  def plant(document, words):
    at = documents[document].index(' ', 500)
    before, after = documents[document][:at], documents[document][at:]
    documents[document] = f'{before} {words}{after}'

  plant(1, ' '.join(texts[2][1].split()[3:16]).upper() + '!')  # 13 words
  plant(3, ' '.join(texts[4][1].split()[5:17]))  # 12 are none
  plant(4, texts[6][1])
  figures, found = overlap.find(
    {'a': texts[:4], 'b': texts[4:]},
    Store(documents),
    Bytes(),
    lambda stage, done, total: None,
  )
  assert [f['where'] for f in found['a']] == ['f:2']
  assert [f['where'] for f in found['b']] == ['f:6']
  assert found['a'][0]['words'] == ' '.join(texts[2][1].split()[3:16])
  assert figures['eval/a/overlap'] == 1 / 4
  assert figures['eval/b/overlap'] == 1 / 4
  assert figures['eval/b/overlap_checked'] == 3
