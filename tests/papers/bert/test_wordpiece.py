# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BERT's WordPiece: ids of fixtures, training, special tokens, bad files."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import special, tokenizer

GOLDEN = pathlib.Path(__file__).parents[2] / 'hf_tokenizers/golden/wordpiece'
SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
TEXT = 'The unaffable CAT, naïve 漢字 cats; [MASK] the cat\'s "café"\n' * 3
CORPUS = [Document('a', TEXT), Document('b', 'low lower lowest 2026 ' * 2)]


def from_file(case):
  path = str(GOLDEN / f'vocab_{case}.txt')
  lowercase = case == 'uncased'
  return tokenizer.build(f'wordpiece_file({path!r}, lowercase={lowercase})', [])


def check_case(made, folder, case):
  """All lines of a fixture: ids one by one and in a batch, and offsets."""
  lines = json.loads((folder / 'lines.json').read_text())
  golden = np.load(folder / 'golden.npz')
  splits = golden[f'{case}/out/row_splits'][1:-1]
  ids = np.split(golden[f'{case}/out/ids'], splits)
  offsets = np.split(golden[f'{case}/out/offsets'], splits)
  batch = made.encode_batch(lines)
  for line, *found in zip(lines, batch, ids, offsets, strict=True):
    np.testing.assert_array_equal(made.encode(line), found[1])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(made.offsets(line), found[2])
  return len(lines)


@pytest.mark.parametrize('case', ['cased', 'uncased'])
def test_ids_and_offsets_are_those_of_the_fixture(case):
  made = from_file(case)
  assert check_case(made, GOLDEN, case) == 300
  assert (made.vocab_size, made.eos_id) == (1000, 3)


@pytest.mark.parametrize('case', ['cased', 'uncased'])
def test_no_text_names_a_special_token(case):
  made = from_file(case)
  text = ' '.join(SPECIAL) + '[MASK][SEP]'
  ids = made.encode(text)
  # [UNK] is what a word without pieces becomes.
  assert not {0, 2, 3, 4} & {*ids.tolist()}
  known = tokenizer.build('wordpiece(79, lowercase=False)', CORPUS)
  assert known.decode(known.encode('[MASK]')) == '[ MASK ]'


def test_special_tokens_are_known_by_role():
  found = from_file('cased').special
  assert (found.pad_id, found.cls_id, found.sep_id) == (0, 2, 3)
  assert found.mask_id == 4
  assert found.names == {name: i for i, name in enumerate(SPECIAL)}
  assert found.stop_ids == {3} and found.prompt_start == ()


def test_training_learns_the_corpus():
  made = tokenizer.build('wordpiece(79)', CORPUS)
  assert (made.vocab_size, made.eos_id) == (79, 3)
  ids = made.encode(TEXT)
  assert 1 not in ids  # all can be spelled
  words = "the unaffable cat , naive 漢 字 cats ; [ mask ] the cat ' s"
  assert made.decode(ids[: len(ids) // 3]) == f'{words} " cafe "'
  # What is frequent is one piece; punctuation goes on with no word.
  assert len(made.encode('the')) == 1
  assert not {'##,', '##[', '##漢', '##A'} & {*vocabulary(made)}
  assert {'##t', 'low', '漢', '2'} <= {*vocabulary(made)}
  cased = tokenizer.build('wordpiece(79, lowercase=False)', CORPUS)
  assert {'T', 'ï', '##ï'} <= {*vocabulary(cased)}


def vocabulary(made):
  contents = json.loads(made.contents['hf_tokenizer.json'])
  found = contents['model']['vocab']
  assert sorted(found.values()) == [*range(len(found))]
  return sorted(found, key=found.get)


def test_pieces_are_as_documented():
  made = tokenizer.build('wordpiece(43, alphabet=11)', CORPUS)
  found = vocabulary(made)
  assert found[:5] == SPECIAL and len(found) == 43
  assert len(found[5]) == 1 and found[5:16] == sorted(found[5:16])
  # Characters beyond the alphabet have no piece, and ids are of the most
  # frequent: q is nowhere.
  assert made.encode('quiz').tolist() == [1]


def print_fingerprints():
  texts = [' '.join(f'{i * j % 997:x}é' for j in range(i)) for i in range(97)]
  corpus = [Document(str(i), text) for i, text in enumerate(texts)]
  for name in ('wordpiece(211, alphabet=13)', 'byte_bpe(401)'):
    print(tokenizer.build(name, corpus).fingerprint)


def test_training_is_the_same_in_each_process_and_with_any_threads(capsys):
  """The library looks at words in an order that a process chooses by chance."""
  print_fingerprints()
  script = inspect.getsource(print_fingerprints)
  imports = (
    'from gpt_jax.core.files.document import Document\n'
    'from gpt_jax.core.tokenizers import tokenizer\n'
  )
  other = subprocess.run(
    [sys.executable, '-c', f'{imports}{script}\nprint_fingerprints()'],
    env=os.environ | {'RAYON_NUM_THREADS': '1'},
    capture_output=True,
    check=True,
    text=True,
  )
  assert other.stdout == capsys.readouterr().out
  assert len(other.stdout.split()) == 2


def test_words_begin_where_no_piece_goes_on():
  made = from_file('cased')
  ids = np.array([[2, 900, 8, 901, 3], [8, 4, 9, 10, 0]])
  pieces = vocabulary(made)
  starts = made.word_starts(ids)
  for row, found in zip(ids, starts, strict=True):
    expected = [i == 0 or pieces[p][:2] != '##' for i, p in enumerate(row)]
    assert found.tolist() == expected
  assert starts[0].tolist()[2] is False


def test_a_windows_file_is_read(tmp_path):
  path = tmp_path / 'vocab.txt'
  path.write_bytes('\r\n'.join([*SPECIAL, 'cat', '##s', '']).encode())
  made = tokenizer.build(f'wordpiece_file({str(path)!r})', [])
  assert made.vocab_size == 7
  assert made.encode('Cats').tolist() == [5, 6]


@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_only_newlines_end_a_piece(tmp_path, end):
  """As in BERT's code, which splits bytes; str.splitlines would split more."""
  odd = ['\u2028', '\x85', '\x0b', 'a\rb', '\x1c']
  path = tmp_path / 'vocab.txt'
  path.write_bytes(end.join([*SPECIAL, *odd, 'cat']).encode())
  made = tokenizer.build(f'wordpiece_file({str(path)!r})', [])
  assert vocabulary(made)[len(SPECIAL) :] == [*odd, 'cat']
  assert made.encode('cat').tolist() == [len(SPECIAL) + len(odd)]


def test_a_mask_is_read_where_it_is_asked_for():
  made = from_file('cased')
  plain, named = (made.encode('the [SEP] x'), special.with_masks(made, 'the [SEP] x[MASK]!'))
  np.testing.assert_array_equal(named[:-2], plain)
  assert named[-2] == 4
  with pytest.raises(UsageError, match='no token'):
    special.with_masks(tokenizer.build('bytes', []), 'a [MASK]')
