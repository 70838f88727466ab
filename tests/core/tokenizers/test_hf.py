# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files `tokenizer.json`: ids of the library, special tokens, the end."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, tokenizer
from gpt_jax.hf_tokenizers import in_library

TEXT = 'the cat sat on the mat; naïve <eos> 2026\n\n\t漢字 the cat'
TEXTS = [TEXT, '', ' ', '<eos>', 'a<eos>b<eos>', '\0\u2581', TEXT * 99]


def byte_level():
  """As GPT-2's and Llama 3's."""
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  trainer = trainers.BpeTrainer(vocab_size=283, initial_alphabet=alphabet, show_progress=False)
  made.train_from_iterator([TEXT.replace('<eos>', '')] * 5, trainer)
  return made


def unigram():
  """As T5's: the name of the special token is a piece as well."""
  pieces = [('<unk>', 0.0), ('<eos>', 0.0)]
  pieces += [(c, -9.0) for c in sorted({*TEXT, '\u2581', 'b'} - {' ', '\n'})]
  made = tokenizers.Tokenizer(models.Unigram([*pieces, ('\u2581the', -2.0)], 0))
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  return made


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes tokenizer.json, with all that must not reach a token store."""
  monkeypatch.chdir(tmp_path)

  def write(made, special=('<eos>',)):
    made.add_special_tokens([*special])
    made.enable_truncation(5)
    made.enable_padding(length=7, pad_id=0, pad_token='!')
    if special:
      ids = [(token, made.token_to_id(token)) for token in special]
      single = f'{special[0]} $A {special[0]}'
      made.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    made.save('tokenizer.json')

  return write


def test_bytes_come_back_and_ids_are_those_of_the_library(write):
  library, made = byte_level(), byte_level()
  write(made)
  made = tokenizer.build("hf_tokenizer('tokenizer.json')", [])
  assert (made.vocab_size, made.eos_id) == (284, 283)
  found = made.encode_batch(TEXTS)
  for text, ids in zip(TEXTS, found, strict=True):
    np.testing.assert_array_equal(ids, library.encode(text).ids)
    np.testing.assert_array_equal(ids, made.encode(text))
    assert made.decode([*ids, made.eos_id]) == text
  assert len(found[0]) > 7


def test_a_token_has_the_space_before_it_whatever_the_file_trims(write):
  made = byte_level()
  write(made)
  expected = tokenizer.build("hf_tokenizer('tokenizer.json')", [])
  made.post_processor = processors.ByteLevel(trim_offsets=True)
  made.save('tokenizer.json')
  found = tokenizer.build("hf_tokenizer('tokenizer.json')", [])
  for text in TEXTS:
    np.testing.assert_array_equal(found.offsets(text), expected.offsets(text))


def test_no_document_ends_itself(write):
  write(unigram())
  made = tokenizer.build("hf_tokenizer('tokenizer.json')", [])
  assert made.eos_id == 1
  for text, ids in zip(TEXTS, made.encode_batch(TEXTS), strict=True):
    assert 1 not in ids
    assert ('<eos>' in text) == ('eos>' in made.decode(ids))
    assert len(made.offsets(text)) == len(ids)
  where = made.offsets('a<eos>b').tolist()
  assert where[0] == [0, 1] and where[-1] == [6, 7]


def test_a_saved_tokenizer_needs_no_other_file(write, tmp_path):
  write(byte_level(), ['<a>', '<b>'])
  made = tokenizer.build("hf_tokenizer('tokenizer.json', eos='<b>')", [])
  made.save('saved')
  (tmp_path / 'tokenizer.json').unlink()
  loaded = tokenizer.load('saved')
  assert loaded.fingerprint == made.fingerprint
  assert loaded.eos_id == made.eos_id == 284
  np.testing.assert_array_equal(loaded.encode(TEXT), made.encode(TEXT))


@pytest.mark.parametrize(
  ('name', 'entries'),
  [
    ('tokenizer_config.json', {'eos_token': '<b>'}),
    ('special_tokens_map.json', {'eos_token': {'content': '<b>'}}),
    ('config.json', {'eos_token_id': 284}),
    ('config.json', {'eos_token_id': [284, 283]}),
  ],
)
def test_files_beside_name_the_end(write, tmp_path, name, entries):
  write(byte_level(), ['<a>', '<b>'])
  (tmp_path / name).write_text(json.dumps(entries))
  assert tokenizer.build("hf_tokenizer('tokenizer.json')", []).eos_id == 284


def test_a_missing_end_of_document_is_named(write):
  call = "hf_tokenizer('tokenizer.json')"
  write(byte_level(), ['<a>', '<b>'])
  with pytest.raises(UsageError, match=r"eos='</s>'\); its special .* <a>, <b>"):
    tokenizer.build(call, [])
  with pytest.raises(UsageError, match="has no token '<eot>'"):
    tokenizer.build("hf_tokenizer('tokenizer.json', eos='<eot>')", [])


def test_gpt2_is_that_of_openai(write, shared):
  files = [str(shared / 'tokenizers/gpt2' / n) for n in ('encoder.json', 'vocab.bpe')]
  openai = tokenizer.build(f'gpt2_bpe({files[0]!r}, {files[1]!r})', [])
  with open(files[0], encoding='utf-8') as file:
    vocabulary = json.load(file)
  with open(files[1], encoding='utf-8') as file:
    merges = [tuple(line.split()) for line in file.read().split('\n')[1:] if line]
  made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  write(made, ['<|endoftext|>'])
  made = tokenizer.build("hf_tokenizer('tokenizer.json')", [])
  assert (made.vocab_size, made.eos_id) == (50257, 50256)
  text = (shared / 'tinyshakespeare/input.txt').read_text()[:20_000]
  for part in (text, 'a <|endoftext|>\n\n \0'):
    np.testing.assert_array_equal(made.encode(part), openai.encode(part))


def test_dropout_and_cuts_are_turned_off(tmp_path, monkeypatch, caplog):
  """So that a text has the same ids each time, here and once exported."""
  monkeypatch.chdir(tmp_path)
  known = {'</s>': 0, 'a': 1, 'aa': 2}
  library = tokenizers.Tokenizer(models.BPE(known, [('a', 'a')], dropout=0.5))
  library.enable_truncation(3)
  library.save('tokenizer.json')
  made = tokenizer.build("hf_tokenizer('tokenizer.json', eos='</s>')", [])
  assert 'its dropout=0.5 is turned off' in caplog.text
  for _ in range(9):
    assert made.encode('a' * 64).tolist() == [2] * 32
  exported = made.contents['hf_tokenizer.json']
  assert json.loads(exported)['model']['dropout'] is None
  # One that was saved before, too.
  old = (tmp_path / 'tokenizer.json').read_bytes()
  made = tokenizer.of_kind('hf_tokenizer', made.contents | {hf.FILE: old})
  for library in (made, in_library.of(made)):
    ids = library.encode('a' * 64)
    assert list(getattr(ids, 'ids', ids)) == [2] * 32


@pytest.mark.parametrize('special', [True, False])
def test_a_panic_of_the_library_is_an_error(tmp_path, monkeypatch, special):
  """The library gives up on a pattern that can fail in very many ways."""
  monkeypatch.chdir(tmp_path)
  library = tokenizers.Tokenizer(models.BPE({'</s>': 0, 'a': 1}, []))
  pattern = tokenizers.Regex('(a+)+b')
  library.pre_tokenizer = pre_tokenizers.Split(pattern, 'isolated')
  library.save('tokenizer.json')
  made = tokenizer.build("hf_tokenizer('tokenizer.json', eos='</s>')", [])
  text = 'a' * 40
  calls = (made.encode_special, made.offsets_special) if special else (made.encode, made.offsets)
  for call in calls:
    with pytest.raises(UsageError, match=r'or fails on it .*retry-limit'):
      call(text)
