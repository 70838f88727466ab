# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""RoBERTa's byte-level BPE: ids of fixtures, merges by hand, any text."""

import functools
import json
import pathlib
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers import special, tokenizer
from tests.papers.bert.test_wordpiece import check_case

GOLDEN = pathlib.Path(__file__).parents[2] / 'hf_tokenizers/golden/byte_bpe'
SPECIAL = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']

# The corpus of Sennrich et al., 2016.
WORDS = {'low': 5, 'lower': 2, 'newest': 6, 'widest': 3}


def from_files(folder=GOLDEN):
  names = [str(folder / name) for name in ('vocab.json', 'merges.txt')]
  return tokenizer.build(f'byte_bpe_file({names[0]!r}, {names[1]!r})', [])


@functools.cache
def trained():
  corpus = [Document('a', 'the naïve cat sat on the mat\n' * 7)]
  return tokenizer.build('byte_bpe(277)', corpus)


def test_ids_and_offsets_are_those_of_the_fixture():
  made = from_files()
  assert check_case(made, GOLDEN, 'plain') == 200
  assert (made.vocab_size, made.eos_id) == (700, 2)


def test_special_tokens_are_known_by_role():
  for made in (from_files(), trained()):
    found = made.special
    assert (found.cls_id, found.pad_id, found.sep_id) == (0, 1, 2)
    assert found.mask_id == 4
    assert not {*range(5)} & {*made.encode(' '.join(SPECIAL)).tolist()}


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=['Cs'])))
def test_any_text_comes_back(text):
  made = trained()
  ids = made.encode(text)
  assert ids.dtype == np.int32
  assert made.decode(ids) == text
  assert not {*range(5)} & {*ids.tolist()}


def test_all_bytes_have_a_piece():
  contents: Any = trained()
  contents = json.loads(contents.contents['hf_tokenizer.json'])
  pieces = contents['model']['vocab']
  assert [*pieces][:5] == SPECIAL
  assert len(pieces) == 277
  alphabet = {p for p in [*pieces][5:261] if len(p) == 1}
  assert len(alphabet) == 256


def test_merges_by_hand():
  """Ten merges, counted by hand.

  es (9), est (9), lo (7), low (7), then three and three of 6 and 3 that make
  newest and widest, in an order that ties leave open.
  """
  text = '\n'.join(word for word, n in WORDS.items() for _ in range(n))
  made = tokenizer.build('byte_bpe(271)', [Document('a', text)])
  assert made.vocab_size == 5 + 256 + 10

  def pieces(word):
    return [made.decode([int(i)]) for i in made.encode(word)]

  assert pieces('low') == ['low']
  assert pieces('lower') == ['low', 'e', 'r']
  assert pieces('newest') == ['newest']
  assert pieces('widest') == ['widest']
  assert pieces('lowest') == ['low', 'est']
  assert [made.decode([i]) for i in range(261, 265)] == ['es', 'est', 'lo', 'low']


def test_merges_of_a_file_are_applied_in_their_order(tmp_path):
  merges = ['e s', 'es t', 'l o', 'lo w', 'n e', 'ne w', 'new est']
  merges += ['w i', 'wi d', 'wid est']
  joined = [merge.replace(' ', '') for merge in merges]
  letters = sorted({*''.join(joined), 'r'})
  pieces = [*SPECIAL, *letters, *joined]
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  (tmp_path / 'vocab.json').write_text(json.dumps(vocabulary))
  (tmp_path / 'merges.txt').write_text('\n'.join(['#version: 0.2', *merges]))
  made = from_files(tmp_path)
  for word, expected in [
    ('lowest', ['low', 'est']),
    ('lower', ['low', 'e', 'r']),
    ('newest', ['newest']),
    ('widest', ['widest']),
  ]:
    assert [pieces[i] for i in made.encode(word)] == expected


def test_a_mask_takes_the_space_before_it():
  made = from_files()
  found = special.with_masks(made, 'the <mask> again</s>')
  ends = made.encode('the').tolist(), made.encode(' again</s>').tolist()
  assert found.tolist() == [*ends[0], 4, *ends[1]]
