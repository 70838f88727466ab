# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""GPT-1's and GPT-2's encodings against ids known from their releases."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_jax.core.tokenizers import bpe, tokenizer

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
