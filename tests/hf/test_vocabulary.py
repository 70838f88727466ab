# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads the vocabulary of an encoder's checkpoint."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from gpt_jax.hf import vocabulary
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import tokenizer

GOLDEN = pathlib.Path(__file__).parents[1] / 'tokenizers/golden'


def copy(folder, name, **names):
  for file, to in names.items():
    (found,) = (GOLDEN / name).glob(f'{file}.*')
    shutil.copyfile(found, folder / to)


@pytest.mark.parametrize(
  ('entries', 'case'),
  [
    (None, 'uncased'),
    ({'do_lower_case': True}, 'uncased'),
    ({'do_lower_case': None, 'strip_accents': None}, 'uncased'),
    ({'do_lower_case': False, 'mask_token': '[MASK]'}, 'cased'),
  ],
)
def test_berts_vocabulary(tmp_path, entries, case):
  copy(tmp_path, 'wordpiece', **{f'vocab_{case}': 'vocab.txt'})
  if entries is not None:
    path = tmp_path / 'tokenizer_config.json'
    path.write_text(json.dumps(entries))
  found = vocabulary.read(str(tmp_path), 'bert')
  assert found is not None
  name, made = found
  golden = np.load(GOLDEN / 'wordpiece/golden.npz')
  lines = json.loads((GOLDEN / 'wordpiece/lines.json').read_text())
  ids = np.concatenate(made.encode_batch(lines))
  np.testing.assert_array_equal(ids, golden[f'{case}/out/ids'])
  assert made.special.prompt_start == (2,) and made.special.mask_id == 4
  # Training with the call that the import names gives the same ids.
  assert tokenizer.build(name, []).fingerprint == made.fingerprint


@pytest.mark.parametrize(
  'entries',
  [
    {'do_lower_case': 'false'},
    {'strip_accents': False},
    {'do_lower_case': False, 'strip_accents': True},
    {'tokenize_chinese_chars': False},
    {'tokenizer_class': 'BertJapaneseTokenizer'},
  ],
)
def test_a_vocabulary_read_otherwise_than_berts_is_refused(tmp_path, entries):
  copy(tmp_path, 'wordpiece', vocab_uncased='vocab.txt')
  path = tmp_path / 'tokenizer_config.json'
  path.write_text(json.dumps({'tokenizer_class': 'BertTokenizer', **entries}))
  option, value = [*entries.items()][-1]
  with pytest.raises(
    UsageError, match=f'{option}={value!r}: a vocab.txt is re'
  ):
    vocabulary.read(str(tmp_path), 'bert')


def test_robertas_vocabulary(tmp_path):
  copy(tmp_path, 'byte_bpe', vocab='vocab.json', merges='merges.txt')
  found = vocabulary.read(str(tmp_path), 'roberta')
  assert found is not None and found[0].startswith('byte_bpe_file(')
  roles = found[1].special
  assert (roles.cls_id, roles.sep_id, roles.mask_id) == (0, 2, 4)


@pytest.mark.parametrize('name', ['normalizer', 'decoder'])
def test_a_tokenizer_that_multiplies_text_is_refused(tmp_path, name):
  """32 steps that each double an 'a': 4 GB of one."""
  made = {
    'version': '1.0',
    'model': {'type': 'BPE', 'vocab': {'a': 0, '</s>': 1}, 'merges': []},
  }
  steps = [{'type': 'Replace', 'pattern': {'String': 'a'}, 'content': 'aa'}]
  made[name] = {'type': 'Sequence', f'{name}s': steps * 32}
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(made))
  with pytest.raises(UsageError, match=f'its {name} makes up to'):
    tokenizer.build(f'hf_tokenizer({str(path)!r}, eos="</s>")', [])
