# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of every tokenizer that is made here, by the table of choices."""

import numpy as np
import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers import tokenizer

TEXT = 'naïve, "mat\u2581"\n\u2581the ' * 3
CORPUS = [Document('a', f'{TEXT} cat')]
CALLS = {
  'bytes': 'bytes',
  'characters': 'characters',
  'frequent_bytes': 'frequent_bytes(11)',
  'words': 'words(vocab_size=4)',
  'sentencepiece': "sentencepiece(282, model='bpe', character_coverage=1)",
  'wordpiece': 'wordpiece(27)',
  'byte_bpe': 'byte_bpe(261)',
}
# Files of others are compared with their libraries, in the tests of their kind.
OTHERS = {
  'saved',
  'sides',
  'gpt1_bpe',
  'gpt2_bpe',
  'hf_tokenizer',
  'sentencepiece_file',
  'wordpiece_file',
  'byte_bpe_file',
  'words_file',
}


@pytest.fixture(params=CALLS)
def made(request):
  return tokenizer.build(CALLS[request.param], CORPUS)


def test_every_choice_is_here():
  assert {*CALLS} | OTHERS == {*tokenizer.TOKENIZERS}


@pytest.mark.parametrize('call', CALLS.values())
def test_its_maker_says_what_it_will_be(call):
  maker = tokenizer.maker(call)
  tokens = maker(CORPUS)
  if maker.learned:
    assert (maker.vocab_size or 0) <= tokens.vocab_size
    assert maker.special <= {*tokens.special.names}
  else:
    assert maker([]).fingerprint == tokens.fingerprint


def test_ids_of_a_batch_are_those_of_its_texts(made):
  texts = [TEXT, '', 'the cat'[3:], TEXT[5:17]]
  for text, ids in zip(texts, made.encode_batch(texts), strict=True):
    np.testing.assert_array_equal(ids, made.encode(text))
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert not {made.eos_id, *range(made.vocab_size, 999)} & {*ids.tolist()}
    assert made.decode([*ids, made.eos_id]) == made.decode(ids)


def test_spaces_part_texts_where_it_says_so(made):
  if made.parts_at_spaces:
    parts = [*made.encode('the'), *made.encode('cat')]
    np.testing.assert_array_equal(made.encode('the cat'), parts)


def test_offsets_are_where_tokens_come_from(made):
  ids, offsets = made.encode(TEXT), made.offsets(TEXT)
  assert offsets.shape == (len(ids), 2) and offsets.dtype == np.int32
  assert (np.diff(offsets[:, 0]) >= 0).all()
  assert (offsets[:, 1] >= offsets[:, 0]).all()
  covered = {i for a, b in offsets.tolist() for i in range(a, b)}
  left = {TEXT[i] for i in range(len(TEXT)) if i not in covered}
  assert left <= ({' ', '\n'} if made.parts_at_spaces else set())
  assert made.offsets('').shape == (0, 2)


def test_rows_begin_words(made):
  rows = np.resize(made.encode(TEXT), (2, 7))
  starts = made.word_starts(rows)
  assert starts.shape == rows.shape and starts.dtype == bool
  assert starts[:, 0].all()
  assert made.word_starts(rows[:, :0]).shape == (2, 0)


def test_a_saved_one_is_the_same(made, tmp_path):
  made.save(str(tmp_path))
  loaded = tokenizer.load(str(tmp_path))
  assert loaded.fingerprint == made.fingerprint
  assert loaded.special == made.special
  assert (loaded.vocab_size, loaded.eos_id) == (made.vocab_size, made.eos_id)
  ids = made.encode(TEXT)
  np.testing.assert_array_equal(loaded.encode(TEXT), ids)
  np.testing.assert_array_equal(loaded.encode_special(TEXT), ids)
  assert loaded.decode(ids) == made.decode(ids)
