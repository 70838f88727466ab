# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The characters of words are those of ELMo's released code."""

import json

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.hf import FILE, HfTokenizer
from gpt_jax.core.tokenizers.simple import END_OF_WORDS, Bytes, WordList
from gpt_jax.hf_tokenizers import in_library
from gpt_jax.papers.lstm import word_characters as characters


def test_words_and_ends_of_texts():
  """The released code's ids, which it raises by 1; 261 pads."""
  words = WordList(['cat', 'é', '<S>', 'abcdefgh'])
  found = characters.table(words, length=7)
  assert found.dtype == np.int16
  np.testing.assert_array_equal(
    found,
    [
      [259, 258, 260, 261, 261, 261, 261],  # the end of a document is </S>
      [259, 61, 118, 111, 108, 63, 260],  # <unk>
      [259, 100, 98, 117, 260, 261, 261],
      [259, 196, 170, 260, 261, 261, 261],  # two bytes
      [259, 257, 260, 261, 261, 261, 261],
      [259, 98, 99, 100, 101, 102, 260],  # cut
    ],
  )


def test_words_of_an_import_are_read():
  words = WordList(['cat', 'dog'])
  library = in_library.of(words).to_str().encode()
  files = {FILE: library, 'eos.json': json.dumps(END_OF_WORDS).encode()}
  found = characters.table(HfTokenizer(files))
  np.testing.assert_array_equal(found, characters.table(words))


@pytest.mark.parametrize(
  ('tokenizer', 'sizes', 'message'),
  [
    (Bytes(), (262, 50), r'tokens of this tokenizer are not words; set .*words'),
    (WordList(['a']), (261, 50), r'give num_characters=262'),
    (WordList(['a']), (262, 2), r'length=2\): .* a length of 3 or more'),
  ],
)
def test_what_is_refused(tokenizer, sizes, message):
  with pytest.raises(UsageError, match=message):
    characters.table(tokenizer, *sizes)
