# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoding on several workers, and its benchmark."""

import io
import time

import numpy as np
import pytest
import sentencepiece as spm

from gpt_jax.benchmarks import prepare as benchmark
from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.holdout import Part
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokens import encode


class Slow:
  """Ids are lengths; texts of other lengths take other times."""

  in_threads = True
  parts_at_spaces = False
  eos_id = 0

  def __init__(self):
    self.started, self.sources = 0, self

  def encode_batch(self, texts):
    self.started += 1
    time.sleep(0.001 * (len(texts[0]) % 5))
    return [np.array([len(text)], np.int32) for text in texts]


def batches():
  parts = (Part(Document(str(i), 'x' * (1 + i * 7 % 13)), False) for i in range(53))
  return encode.batches(parts, Slow())


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setattr(encode, '_BATCH', 1)


@pytest.mark.parametrize('workers', [1, 3])
def test_threads_keep_the_order(workers):
  names, ids = [], []
  for batch, found in encode.encoded(batches(), Slow(), workers):
    names += [piece.part.document.name for piece in batch]
    ids += [int(i.ids[0]) for i in found]
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
      raise ValueError('bad')

  with pytest.raises(ValueError, match='bad'):
    list(encode.encoded(batches(), Bad(), 2))


def test_the_benchmark_encodes_the_same(corpus, make_config):
  name = "sentencepiece(295, model='bpe')"
  result = benchmark.encode(make_config(tokenizer=name, workers=2), 1)
  assert result['num_documents'] == 37 == result['num_documents_same']
  assert result['workers'] == 2 and result['ratio'] > 0
  assert result['num_tokens'] <= result['num_bytes']
  assert f'{name}: 37 documents' in benchmark.report_encode(result)
  with pytest.raises(UsageError, match=r"='bytes'.* compared with Sentence"):
    benchmark.encode(make_config(), 1)


# The library's own defaults, and LLaMA's settings: a space before each text.
FOREIGN = {
  'unigram': {'vocab_size': 61},
  'llama': {
    **{'vocab_size': 311, 'model_type': 'bpe', 'byte_fallback': True},
    **{'normalization_rule_name': 'identity', 'split_digits': True},
    **{'remove_extra_whitespaces': False},
    'allow_whitespace_only_pieces': True,
  },
  'suffix': {'vocab_size': 61, 'treat_whitespace_as_suffix': True},
}


def long_text():
  rng = np.random.default_rng(29)
  words = ['the', 'cat', '  sat', 'on', 'a', 'mat.', 'é', '漢', '\n', 'x1', '12']
  return ' '.join(rng.choice(words, size=1009))


def pieces_of(text, made):
  part = Part(Document('x', text), False)
  return [*encode.pieces(part, made)]


@pytest.mark.parametrize('kind', FOREIGN)
@pytest.mark.parametrize('longest', [23, 331])
def test_ids_of_a_long_document_are_those_of_the_library(tmp_path, monkeypatch, kind, longest):
  monkeypatch.setattr(encode, '_LONGEST', longest)
  text, written = long_text(), io.BytesIO()
  spm.SentencePieceTrainer.Train(
    sentence_iterator=iter(text.splitlines()),
    model_writer=written,
    add_dummy_prefix=True,
    hard_vocab_limit=False,
    minloglevel=2,
    **FOREIGN[kind],
  )
  path = tmp_path / 'foreign.model'
  path.write_bytes(written.getvalue())
  library = spm.SentencePieceProcessor(model_proto=written.getvalue())
  made = tokenizer.build(f'sentencepiece_file({str(path)!r})', [])
  cut = pieces_of(text, made)
  assert len(cut) > len(text) // (longest + 40)
  assert [piece.last for piece in cut] == [False] * (len(cut) - 1) + [True]
  ids = np.concatenate(made.encode_batch([piece.text for piece in cut]))
  np.testing.assert_array_equal(ids, library.encode(text))


def test_a_tokenizer_without_added_spaces_cuts_after_newlines(monkeypatch):
  monkeypatch.setattr(encode, '_LONGEST', 23)
  text = long_text()
  cut = pieces_of(text, tokenizer.build('bytes', []))
  assert ''.join(piece.text for piece in cut) == text
  assert max(len(piece.text) for piece in cut) == 23


def test_without_a_space_a_document_is_not_cut(monkeypatch):
  monkeypatch.setattr(encode, '_LONGEST', 7)
  made = Slow()
  made.parts_at_spaces = True
  found = [piece.text for piece in pieces_of('x' * 17 + '  ab cd\n' * 3, made)]
  assert found == ['x' * 17 + '  ab', 'cd\n  ab', 'cd\n  ab', 'cd\n']
  assert len(pieces_of('漢' * 99, made)) == 1
