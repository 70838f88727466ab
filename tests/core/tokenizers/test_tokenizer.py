# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that need no training, the choice of one, and saved folders."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer

# What UTF-8 can write: all but halves of surrogate pairs.
TEXT = st.text(st.characters(exclude_categories=['Cs']))


def build(name, *texts):
  return tokenizer.build(name, [Document(str(i), t) for i, t in enumerate(texts)])


@settings(max_examples=50, deadline=None)
@given(TEXT)
def test_bytes_round_trip(text):
  made = build('bytes')
  ids = made.encode(text)
  assert made.decode(ids) == text
  assert ids.dtype == np.int32 and len(ids) == len(text.encode())
  assert made.decode([*ids, made.eos_id]) == text


@settings(max_examples=50, deadline=None)
@given(TEXT.filter(bool))
def test_characters_round_trip(text):
  made = build('characters', text)
  assert made.decode(made.encode(text)) == text
  assert made.vocab_size == len(set(text)) + 1 == made.eos_id + 1


def test_characters_are_sorted_and_those_held_out_count():
  made = tokenizer.build('characters', [Document('a', 'cab')], [Document('b', 'cab!')])
  np.testing.assert_array_equal(made.encode('!abc'), [0, 1, 2, 3])
  assert made.eos_id == 4
  assert [list(x) for x in made.encode_batch(['ca', ''])] == [[3, 1], []]


def test_an_unknown_character_is_named():
  with pytest.raises(UsageError, match=r"'é' \(U\+00E9\)"):
    build('characters', 'abc').encode('abé')
  with pytest.raises(UsageError, match="'z'"):
    build('characters', 'abc').encode('z')


def test_words_go_by_their_frequency():
  text = 'b a <unk> b c\n a b, \n b\n'
  made = build('words(count=2)', text)
  # 0 ends documents, 1 is <unk>, then b 4 times less one that has a comma.
  np.testing.assert_array_equal(made.encode('b a  c\n<unk> b'), [3, 4, 1, 2, 1, 3])
  assert made.decode([3, 4, 1, 2, 1, 3, 0]) == 'b a <unk>\n<unk> b'
  assert made.vocab_size == 5
  assert build('words(vocab_size=4)', text).vocab_size == 4
  assert made.offsets(' ab\nc').tolist() == [[1, 3], [3, 4], [4, 5]]


def test_rare_bytes_are_one_symbol():
  # 'a' 4 times, the bytes C3 and A9 of 'é' 3 times each, 'x' once.
  made = build('frequent_bytes(vocab_size=5)', 'éaaé', 'aéax')
  np.testing.assert_array_equal(made.encode('aéx\0'), [2, 4, 3, 1, 1])
  assert made.decode([2, 4, 3, 1, 0]) == 'aé\ufffd'
  assert made.offsets('éx').tolist() == build('bytes').offsets('éx').tolist()
  # All that the corpus has, and the two that are no byte.
  assert build('frequent_bytes(vocab_size=204)', 'éaaé').vocab_size == 5


def test_another_run_has_the_same_tokenizer(tmp_path):
  made = build('characters', 'some text')
  made.save(str(tmp_path / 'w/tokenizer'))
  for folder in ('w', 'w/tokenizer'):
    again = build(f'saved({str(tmp_path / folder)!r})', 'other text, not read')
    assert again.fingerprint == made.fingerprint


def test_a_damaged_folder_is_named(tmp_path):
  folder = str(tmp_path / 'saved')
  with pytest.raises(UsageError, match=r'saved/tokenizer.json: there is no'):
    tokenizer.load(folder)
  build('characters', 'abc').save(folder)
  alphabet = tmp_path / 'saved' / 'characters.json'
  alphabet.write_text('"abd"')
  with pytest.raises(UsageError, match=r'characters.json was changed'):
    tokenizer.load(folder)
  alphabet.unlink()
  with pytest.raises(UsageError, match=r'characters.json: is missing'):
    tokenizer.load(folder)
  (tmp_path / 'saved' / 'tokenizer.json').write_text('{')
  with pytest.raises(UsageError, match=r'tokenizer.json: is damaged'):
    tokenizer.load(folder)
