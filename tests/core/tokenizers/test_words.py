# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens begin a word, against words written by hand."""

import pathlib

import numpy as np
import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers import tokenizer, words

GOLDEN = pathlib.Path(__file__).parents[2] / 'hf_tokenizers/golden'
TEXT = 'the cat\'s "mat" fell,\n\n2026 naïve 漢字x'
# A space belongs to the word after it, if it is no token of its own before what
# is no letter. `|` parts words; pieces of a word are not seen.
CHARACTERS = 'the| cat|\'|s| |"|mat|"| fell|,|\n|\n|2026| naïve| |漢|字|x'
# One byte of an ideograph is none.
BYTES = 'the| cat|\'|s| |"|mat|"| fell|,|\n|\n|2026| naïve| 漢字x'


def split(made, text):
  ids = made.encode(text)
  starts = made.word_starts(ids)
  assert starts.shape == ids.shape and starts.dtype == bool
  return [made.decode(w) for w in np.split(ids, np.flatnonzero(starts)[1:])]


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('characters', CHARACTERS),
    ('bytes', BYTES),
    ('byte_bpe(261)', BYTES),
    (f"hf_tokenizer('{GOLDEN}/gpt2/tokenizer.json')", BYTES),
    (
      "sentencepiece(282, model='bpe', character_coverage=1)",
      # The library's decoding drops a space at the start.
      CHARACTERS,
    ),
  ],
)
def test_words_of_a_text(name, expected):
  made = tokenizer.build(name, [Document('a', TEXT)])
  found = split(made, TEXT)
  assert found == expected.split('|')


def test_rows_and_special_tokens_begin_words():
  made = tokenizer.build('byte_bpe(261)', [Document('a', TEXT)])
  eos, (a, b, space) = made.eos_id, made.encode('ab ').tolist()
  rows = np.array([[a, b, eos, a, b], [b, space, a, b, eos]])
  assert made.word_starts(rows).tolist() == [
    [True, False, True, True, False],
    [True, True, False, False, True],
  ]
  assert made.word_starts(rows[:, :0]).shape == (2, 0)


def test_where_the_last_piece_of_a_word_is_marked():
  found = words.of_suffix(['a', 'b</w>', None, 'c'], '</w>')
  ids = np.array([0, 1, 3, 0, 1, 1, 2, 0, 1])
  starts = [1, 0, 1, 0, 0, 1, 1, 1, 0]
  assert found.starts(ids).astype(int).tolist() == starts


def test_pieces_spelled_in_bytes():
  assert words.of_bytes('ĠnaÃ¯ve') == ' naïve'.encode()
  assert words.of_marks('\u2581<0x41>') == b' <0x41>'
  assert words.of_marks('<0x41>') == b'A'
  parts = [b' x', b'\xc3', b'\xaf', b'.', b'x.', b' ', None]
  found = words.of_text(parts)
  assert found.begins.tolist() == [1, 0, 0, 1, 0, 1, 1]
  assert found.closes.tolist() == [0, 0, 0, 1, 1, 0, 1]
