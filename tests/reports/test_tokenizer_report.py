# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is measured of a tokenizer, against numbers counted by hand."""

import numpy as np

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers import changes
from gpt_jax.reports import tokenizer_report


class Lower:
  """Letters of the alphabet; capitals become small, the rest is lost."""

  vocab_size, eos_id = 27, 26

  def encode(self, text):
    return self.encode_batch([text])[0]

  def encode_batch(self, texts):
    return [
      np.array([ord(c) - 97 for c in text.lower() if 'a' <= c <= 'z'], np.int32) for text in texts
    ]

  def decode(self, ids):
    return ''.join(chr(97 + i) for i in ids if i != self.eos_id)


def test_the_numbers_are_those_counted_by_hand():
  texts = ['abc', 'aé Bz\n', 'zz']
  documents = [Document(str(i), text) for i, text in enumerate(texts)]
  found = tokenizer_report.measure(Lower(), documents)
  assert (found.vocab_size, found.num_tokens) == (27, 3 + 3 + 2)
  assert found.tokens_per_word == 8 / 4
  assert found.bytes_per_token == (3 + 7 + 2) / 8  # é takes two
  assert (found.num_used, found.fraction_used) == (4, 4 / 27)
  assert found.counts[:3].tolist() == [2, 2, 1] and found.counts[25] == 3
  # é, space, B and newline are gone; b was not there.
  assert (found.num_documents_changed, found.num_characters_lost) == (1, 4)
  assert found.first_change == ('1', 'aé Bz\n', 'abz')
  assert found.bytes_per_second > 0


def test_a_change_late_in_a_document_is_found():
  text = 'x' * 5000 + 'A' + 'y' * 5000
  found = tokenizer_report.measure(Lower(), [Document('a', text)])
  name, before, after = found.first_change
  assert name == 'a'
  assert before == 'x' * 20 + 'A' + 'y' * 19
  assert after == 'x' * 20 + 'a' + 'y' * 19


def test_a_change_is_told_in_one_line():
  assert changes.change(Lower(), 'abc') == ''
  found = changes.change(Lower(), 'ab\nc')
  assert found.startswith(r"does not keep the text ('ab\nc' comes back as 'abc')")
  # Books are long: what is told is in their first characters.
  assert changes.change(Lower(), 'a' * (1 << 14) + 'B') == ''
