# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Word vectors equal what a file with the oddities of GloVe's holds."""

import gzip
import json
import re

import numpy as np
import pytest

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.core.tokenizers.simple import END_OF_WORDS
from gpt_jax.opening import vectors
from tests.support.golden_io import ROOT, case, config

FOLDER = ROOT / 'glove'
FILE, SIZE = str(FOLDER / 'glove.txt'), config(FOLDER)['dim']
WORDS = json.loads((FOLDER / 'words.json').read_text())
VALUES = case(FOLDER, 'main').outputs['vectors']


def test_words_hold_spaces_and_the_first_of_equal_ones_counts(tmp_path):
  assert [*vectors.words(FILE, SIZE)] == WORDS
  asked = ['unlisted', *WORDS[::-1]]
  packed = tmp_path / 'glove.txt.gz'
  packed.write_bytes(gzip.compress((FOLDER / 'glove.txt').read_bytes()))
  for path in (FILE, str(packed)):
    found = vectors.read(path, asked, SIZE)
    np.testing.assert_array_equal(found.values_VD[1:], VALUES[::-1])
    assert not found.values_VD[0].any()
    assert not found.found_V[0] and found.found_V[1:].all()


def test_a_tokenizer_has_the_words_without_white_space():
  made = tokenizer.build(f'words_file({FILE!r}, size={SIZE})', [])
  words = [w for w in WORDS if w != '<unk>' and len(w.split()) == 1]
  assert made.listed == [END_OF_WORDS, '<unk>', *words]
  np.testing.assert_array_equal(made.encode('of  北京 no'), [5, 8, 1])
  short = tokenizer.build(f'words_file({FILE!r}, {SIZE}, vocab_size=4)', [])
  assert short.listed == made.listed[:4]
  with pytest.raises(UsageError, match=r'vocab_size=2.*has no word; give at'):
    tokenizer.build(f'words_file({FILE!r}, {SIZE}, vocab_size=2)', [])


@pytest.mark.parametrize(
  ('text', 'why'),
  [
    (b'', 'is empty'),
    (b'3 2\na 1 2 3\n', ':1: needs a word and 3 numbers after it: it has 1;'),
    (b'a 1 2 3\nb 1 2\n', ':2: needs a word and 3 numbers after it: it has 2'),
    (b'a 1 2 3 4\nb 1 2 3 4\n', ':1: needs a word and 3 numbers after it: it'),
    (b'a 1 2 x\n', r':1: needs a word and 3 numbers.*could not convert'),
    (b'a 1 2 nan\n', ':1: needs .*not all of its numbers are finite'),
    (b'b 1 2 3\n\na 1 2 3\n', ':2: needs a word and 3 numbers after it: it h'),
    (b'a 1  2\n', ':1: needs .*'),
  ],
)
def test_odd_lines_are_refused(tmp_path, text, why):
  path = tmp_path / 'glove.txt'
  path.write_bytes(text)
  with pytest.raises(UsageError, match=why) as error:
    vectors.read(str(path), ['a'], 3)
  assert len(str(error.value).splitlines()) == 1


def test_words_are_utf8_and_files_exist(tmp_path):
  path = tmp_path / 'glove.txt'
  path.write_bytes(b'a 1 2\n\xff 1 2\n')
  with pytest.raises(UsageError, match=re.escape(f'{path}:2: is not UTF-8')):
    [*vectors.words(str(path), 2)]
  with pytest.raises(UsageError, match='no such file'):
    vectors.read(str(tmp_path / 'none'), ['a'], 2)
