# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which of our tokenizers reads the vocabulary of an encoder's checkpoint."""

import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import sentencepiece

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer
from gpt_jax.hf import vocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / 'hf_tokenizers/golden'


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
    {'tokenize_chinese_chars': False},
    {'tokenizer_class': 'BertJapaneseTokenizer'},
    {'tokenizer_class': 'MPNetTokenizer'},
    {'unk_token': '[PAD]'},
  ],
)
def test_a_vocabulary_read_otherwise_than_berts_is_refused(tmp_path, entries):
  copy(tmp_path, 'wordpiece', vocab_uncased='vocab.txt')
  path = tmp_path / 'tokenizer_config.json'
  path.write_text(json.dumps({'tokenizer_class': 'BertTokenizer', **entries}))
  option, value = [*entries.items()][-1]
  words = re.escape(f"{option}={value!r}: a vocab.txt is read as BERT's")
  with pytest.raises(UsageError, match=words):
    vocabulary.read(str(tmp_path), 'bert')


@pytest.mark.parametrize(
  ('entries', 'expected'),
  [
    ({'strip_accents': False}, ['caf', '##é', 'é']),
    ({'do_lower_case': False}, ['Caf', '##é', 'É']),
    ({'do_lower_case': False, 'strip_accents': True}, ['Caf', '##e', 'E']),
    ({}, ['caf', '##e', 'e']),
  ],
)
def test_accents_go_by_an_option_of_their_own(tmp_path, entries, expected):
  pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'caf', 'Caf']
  pieces += ['##é', '##e', 'e', 'E', 'é', 'É']
  (tmp_path / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(entries))
  found = vocabulary.read(str(tmp_path), 'bert')
  assert found is not None
  name, made = found
  assert [pieces[i] for i in made.encode('Café É')] == expected
  assert tokenizer.build(name, []).fingerprint == made.fingerprint


def test_an_eos_token_without_a_tokenizer_json(tmp_path):
  """Of each kind of files: what tokenizer_config.json names ends documents."""
  config = tmp_path / 'tokenizer_config.json'
  config.write_text(json.dumps({'eos_token': '<pad>'}))
  letters = {x: i for i, x in enumerate(['<|endoftext|>', '<pad>', 'a', 'b'])}
  (tmp_path / 'vocab.json').write_text(json.dumps(letters))
  (tmp_path / 'merges.txt').write_text('#version: 0.2\n')
  found = vocabulary.read(str(tmp_path), 'gpt2')
  assert found is not None
  assert found[0].endswith(", eos='<pad>')") and found[1].eos_id == 1
  assert tokenizer.build(found[0], []).fingerprint == found[1].fingerprint
  assert found[1].encode('ab').tolist() == [2, 3]
  config.write_text(json.dumps({'eos_token': '<none>'}))  # no such token
  found = vocabulary.read(str(tmp_path), 'gpt2')
  assert found is not None and found[1].eos_id == 0
  copy(tmp_path, 'byte_bpe', vocab='vocab.json', merges='merges.txt')
  config.write_text(json.dumps({'eos_token': '<s>'}))
  found = vocabulary.read(str(tmp_path), 'roberta')
  assert found is not None and found[1].eos_id == found[1].special.cls_id == 0


def sentencepiece_model(folder, name, **options):
  options = {
    **{'model_type': 'bpe', 'normalization_rule_name': 'identity'},
    **{'remove_extra_whitespaces': False, 'byte_fallback': True},
    **options,
  }
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(['the cat sat on the mat'] * 7),
    model_prefix=str(folder / 'model'),
    vocab_size=280,
    hard_vocab_limit=False,
    minloglevel=2,
    **options,
  )
  (folder / 'model.model').rename(folder / name)


def test_an_eos_token_of_a_sentencepiece_model(tmp_path):
  sentencepiece_model(tmp_path, 'tokenizer.model')
  config = {'tokenizer_class': 'LlamaTokenizer', 'eos_token': '<s>'}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
  found = vocabulary.read(str(tmp_path), 'llama')
  assert found is not None and found[1].eos_id == 1


@pytest.mark.parametrize(
  ('file', 'entries', 'options', 'words'),
  [
    (
      'tokenizer.model',
      {'add_prefix_space': False},
      {},
      'add_prefix_space=False: tokenizer.model has add_dummy_prefix=True',
    ),
    (
      'tokenizer.model',
      {},
      {'add_dummy_prefix': False},
      'add_prefix_space=None: tokenizer.model has add_dummy_prefix=False',
    ),
    (
      'tokenizer.model',
      {},
      {'normalization_rule_name': 'nfkc'},
      "tokenizer_class='LlamaTokenizer': this class does not read",
    ),
    *(
      ('spiece.model', {'tokenizer_class': name}, {}, 'this class does not read')
      for name in ('AlbertTokenizer', 'XLNetTokenizer', 'DebertaV2Tokenizer')
    ),
    ('spiece.model', {'tokenizer_class': 'T5Tokenizer'}, {}, 'this class does not read'),
  ],
)
def test_a_class_that_reads_otherwise_than_sentencepiece_is_refused(
  tmp_path, file, entries, options, words
):
  sentencepiece_model(tmp_path, file, **options)
  entries = {'tokenizer_class': 'LlamaTokenizer', **entries}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(entries))
  with pytest.raises(UsageError, match=words):
    vocabulary.read(str(tmp_path), 'llama')


@pytest.mark.parametrize(
  ('entries', 'words'),
  [
    ({'add_prefix_space': True}, 'add_prefix_space=True: a vocab.json with a'),
    ({'tokenizer_class': 'Qwen2Tokenizer'}, 'is read as GPT-2'),
  ],
)
def test_a_class_that_reads_otherwise_than_gpt2_is_refused(tmp_path, entries, words):
  copy(tmp_path, 'byte_bpe', vocab='vocab.json', merges='merges.txt')
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(entries))
  with pytest.raises(UsageError, match=words):
    vocabulary.read(str(tmp_path), 'roberta')


def test_robertas_vocabulary(tmp_path):
  copy(tmp_path, 'byte_bpe', vocab='vocab.json', merges='merges.txt')
  found = vocabulary.read(str(tmp_path), 'roberta')
  assert found is not None and found[0].startswith('byte_bpe_file(')
  roles = found[1].special
  assert (roles.cls_id, roles.sep_id, roles.mask_id) == (0, 2, 4)


@pytest.mark.parametrize(
  'name', ['tokenizer.json', 'tokenizer_config.json', 'config.json', 'vocab.txt']
)
@pytest.mark.parametrize('what', ['fifo', 'device', 'folder'])
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path, name, what):
  """A FIFO that nobody writes, or /dev/zero, would never end."""
  copy(tmp_path, 'wordpiece', vocab_uncased='vocab.txt')
  path = tmp_path / name
  path.unlink(missing_ok=True)
  if what == 'fifo':
    os.mkfifo(path)
  elif what == 'device':
    path.symlink_to('/dev/zero')
  else:
    path.mkdir()
  kind = 'a folder' if what == 'folder' else 'a device, FIFO or socket'
  with pytest.raises(UsageError, match=f'{name}: is {kind}, not a file; '):
    vocabulary.read(str(tmp_path), 'bert')
