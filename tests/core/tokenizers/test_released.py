# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encodings of others: ids known from releases, and those of the library."""

import io

import numpy as np
import pytest
import sentencepiece as spm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import bpe, tokenizer

WORDS = ['the cat sat on the mat', 'a cat and a dog 2026', 'Élan vital']
TEXTS = ['', ' ', '  the  cat\n\tsat ', '</s><s> x', '\u2581 \0 漢 ﬁ', '2026', 'the cat ' * 999]

# As different models have them: LLaMA's kind, T5's kind, one without eos.
LLAMA = {'byte_fallback': True, 'vocab_size': 290, 'model_type': 'bpe'}
LLAMA |= {'normalization_rule_name': 'identity'}
T5 = {'pad_id': 0, 'eos_id': 1, 'unk_id': 2, 'bos_id': -1, 'vocab_size': 30}
NO_EOS = {'eos_id': -1, 'vocab_size': 30, 'control_symbols': ['<sep>']}


def write(path, options):
  """Trains a model as others do; returns what it gives for `TEXTS`."""
  written = io.BytesIO()
  spm.SentencePieceTrainer.Train(
    sentence_iterator=iter(WORDS * 3),
    model_writer=written,
    hard_vocab_limit=False,
    minloglevel=2,
    **options,
  )
  path.write_bytes(written.getvalue())
  return spm.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.mark.parametrize(
  ('options', 'arguments', 'eos_id'),
  [(LLAMA, '', 2), (T5, '', 1), (NO_EOS, ", eos='<sep>'", 2), (T5, ", eos='<pad>'", 0)],
)
def test_ids_are_those_of_the_library(tmp_path, options, arguments, eos_id):
  path = tmp_path / 'foreign.model'
  library = write(path, options)
  made = tokenizer.build(f'sentencepiece_file({str(path)!r}{arguments})', [])
  assert (made.vocab_size, made.eos_id) == (library.vocab_size(), eos_id)
  made.save(str(tmp_path / 'saved'))
  loaded = tokenizer.load(str(tmp_path / 'saved'))
  assert loaded.fingerprint == made.fingerprint
  assert loaded.eos_id == eos_id
  for text, ids in zip(TEXTS, made.encode_batch(TEXTS), strict=True):
    np.testing.assert_array_equal(ids, library.encode(text))
    np.testing.assert_array_equal(loaded.encode(text), ids)
    assert made.decode([*ids, eos_id]) == library.decode(ids.tolist())
    assert eos_id not in ids


def test_what_cannot_be_read_is_named(tmp_path):
  path = tmp_path / 'x.model'
  call = f'sentencepiece_file({str(path)!r})'
  write(path, NO_EOS)
  with pytest.raises(UsageError, match=r"end of a document .*eos='<unk>'"):
    tokenizer.build(call, [])
  with pytest.raises(UsageError, match="has no piece '<eot>'"):
    tokenizer.build(f"{call[:-1]}, eos='<eot>')", [])


FILES = {
  'gpt2_bpe': ('gpt2/encoder.json', 'gpt2/vocab.bpe'),
  'gpt1_bpe': ('gpt1/encoder_bpe_40000.json', 'gpt1/vocab_40000.bpe'),
}


@pytest.fixture
def build(shared):
  def make(kind):
    encoder, merges = (str(shared / 'tokenizers' / p) for p in FILES[kind])
    return tokenizer.build(f'{kind}({encoder!r}, {merges!r})', [])

  return make


def test_gpt2_gives_the_published_ids(build):
  made = build('gpt2_bpe')
  assert (made.vocab_size, made.eos_id) == (50257, 50256)
  np.testing.assert_array_equal(made.encode('Hello world'), [15496, 995])
  # The name of the special token in a text is plain text.
  assert made.eos_id not in made.encode('<|endoftext|>')
  assert made.decode([15496, made.eos_id]) == 'Hello'


def test_gpt2_keeps_all_of_tiny_shakespeare(build, shared):
  text = (shared / 'tinyshakespeare' / 'input.txt').read_text()
  made = build('gpt2_bpe')
  (ids,) = made.encode_batch([text])
  assert len(ids) == 338_025  # as counted in nanoGPT's data folder
  assert made.decode(ids) == text


def test_the_first_line_may_be_a_merge():
  merges = b'a b\n\xc4\xa0 c\n'
  expected = [('a', 'b'), ('\u0120', 'c')]
  assert bpe.read_merges(merges) == expected
  assert bpe.read_merges(b'#version: 0.2\n' + merges) == expected


def test_gpt1_is_lower_case_words(build):
  made = build('gpt1_bpe')
  assert (made.vocab_size, made.eos_id) == (40478, 40477)
  ids = made.encode("Hello World, it's \n naïve")
  assert made.decode(ids) == "hello world , it ' s naive"
  assert made.encode('\n').size == 0
  np.testing.assert_array_equal(made.encode('\U0001f600'), [0])


@pytest.mark.parametrize('kind', FILES)
def test_segments_give_the_ids_of_the_whole(build, kind, monkeypatch):
  made = build(kind)
  pieces = ['a', "'s", ' ', '\n', '\n\n', '\t', 'é', '\x1c', '9.', '\r\n', 'B']

  @settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
  )
  @given(st.lists(st.sampled_from(pieces), max_size=30).map(''.join))
  def check(text):
    monkeypatch.setattr('gpt_jax.core.tokenizers.bpe._SEGMENT', 10**9)
    whole, offsets = made.encode(text), made.offsets(text)
    monkeypatch.setattr('gpt_jax.core.tokenizers.bpe._SEGMENT', 1)
    np.testing.assert_array_equal(made.encode(text), whole)
    np.testing.assert_array_equal(made.offsets(text), offsets)
    assert offsets.shape == (len(whole), 2)

  check()


@pytest.mark.parametrize('kind', FILES)
def test_a_saved_encoding_needs_no_other_file(build, kind, tmp_path):
  made = build(kind)
  made.save(str(tmp_path))
  loaded = tokenizer.load(str(tmp_path))
  assert loaded.fingerprint == made.fingerprint
  text = 'some words 123'
  np.testing.assert_array_equal(loaded.encode(text), made.encode(text))
