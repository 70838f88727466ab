# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Special tokens of imports, against what transformers recorded."""

import json
import pathlib
import shutil

import pytest
import sentencepiece

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf, special, tokenizer
from gpt_jax.hf_tokenizers import special_files

GOLDEN = pathlib.Path(__file__).parent / 'golden'
RECORDED = json.loads((GOLDEN / 'golden.json').read_text())
NAMES = ('llama', 'gpt2', 'smollm2', 'llama3')


def call(folder):
  return f'hf_tokenizer({str(folder / "tokenizer.json")!r})'


def imported(name):
  return special_files.tokenizer(call(GOLDEN / name), str(GOLDEN / name))


@pytest.mark.parametrize('name', NAMES)
def test_a_text_gets_what_transformers_puts_before_it(name):
  made, recorded = imported(name), RECORDED[name]
  for case in recorded['texts']:
    ids = made.encode(case['text']).tolist()
    start = made.special.before(first_scored=False)
    assert [*start, *ids] == case['ids']
    assert made.special.prompt(ids) == (case['ids'] or [recorded['bos']])
  assert made.eos_id == recorded['eos']
  assert made.special.first_id == recorded['bos']
  assert made.special.pad_id == (recorded['pad'] or recorded['eos'])
  one = made.special.before(first_scored=True)
  assert one == (recorded['bos'],)


def test_every_end_that_is_named_ends_an_answer():
  assert imported('llama3').special.stop_ids == {284, 287}
  assert imported('smollm2').special.stop_ids == {285}


def test_a_model_trained_here_keeps_its_own():
  made = tokenizer.build(call(GOLDEN / 'llama'), [])
  assert made.special.before(first_scored=False) == (made.eos_id,)
  assert made.special.prompt([7, 11]) == [7, 11]
  theirs = imported('llama')
  # The ids of a text are the same, hence a store of tokens serves both.
  assert made.fingerprint == theirs.fingerprint
  assert tokenizer.build('bytes', []).special.before(first_scored=True) == (256,)


@pytest.mark.parametrize('name', NAMES)
def test_a_saved_one_is_the_same(tmp_path, name):
  made = imported(name)
  made.save(str(tmp_path))
  loaded = tokenizer.load(str(tmp_path))
  assert loaded.special == made.special
  assert loaded.fingerprint == made.fingerprint
  for file in (GOLDEN / name).iterdir():
    kept = tmp_path / file.name
    if file.name == 'tokenizer.json':
      if name == 'smollm2':  # the class leaves out its splitting of numbers
        continue
      kept = tmp_path / 'hf_tokenizer.json'
    assert kept.read_bytes() == file.read_bytes()
  (tmp_path / 'tokenizer_config.json').write_text('{}')
  with pytest.raises(UsageError, match=r'tokenizer_config\.json: was changed'):
    tokenizer.load(str(tmp_path))


@pytest.mark.parametrize('name', ['llama', 'smollm2', 'llama3'])
def test_a_template_names_tokens_and_a_text_does_not(name):
  made = imported(name)
  for case in RECORDED[name]['chats']:
    assert made.encode_special(case['text']).tolist() == case['ids']
  names = made.special.names
  text = RECORDED['names']
  specials = {*names.values()}
  assert specials & {*made.encode_special(text).tolist()}
  safe = special.guarded(text, names)
  ids = made.encode_special(safe)
  assert not specials & {*ids.tolist()}
  assert made.decode(ids) == text
  assert not specials & {*made.encode(text).tolist()}
  # Nor does one that holds the mark itself.
  forged = special.guarded(f'{special.BREAK}<{special.BREAK}s>', {'<s>': 1})
  assert forged == f'<{special.BREAK}s>'


def test_damaged_files_are_named(tmp_path):
  folder = tmp_path / 'hf'
  shutil.copytree(GOLDEN / 'llama', folder)
  (folder / 'special_tokens_map.json').write_text('[1')
  with pytest.raises(UsageError, match=r'special_tokens_map\.json: is damaged'):
    special_files.tokenizer(call(folder), str(folder))


def test_a_sentencepiece_model_of_llama(tmp_path):
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(['the cat sat on the mat'] * 7),
    model_prefix=str(tmp_path / 'tokenizer'),
    vocab_size=17,
    model_type='bpe',
    minloglevel=2,
  )
  name = f'sentencepiece_file({str(tmp_path / "tokenizer.model")!r})'
  config = {'tokenizer_class': 'LlamaTokenizer', 'bos_token': '<s>'}

  def made(**entries):
    path = tmp_path / 'tokenizer_config.json'
    path.write_text(json.dumps(config | entries))
    return special_files.tokenizer(name, str(tmp_path))

  ids = made().encode('the cat').tolist()
  assert made().special.prompt(ids) == [1, *ids]
  assert made(add_bos_token=False).special.prompt(ids) == ids
  assert made(tokenizer_class='T5Tokenizer').special.prompt(ids) == ids
  assert made().decode([1, *ids, 2]) == 'the cat'
  found = made().encode_special('<s>the cat</s>').tolist()
  assert found == [1, *ids, 2]
  safe = special.guarded('the </s>', made().special.names)
  assert 2 not in made().encode_special(safe)


def letters(folder):
  """Writes GPT-2's two files, of letters; returns the call that reads them."""
  tokens = [*map(chr, range(33, 127)), 'Ġ', '<|endoftext|>']
  vocabulary = {token: i for i, token in enumerate(tokens)}
  (folder / 'vocab.json').write_text(json.dumps(vocabulary))
  (folder / 'merges.txt').write_text('#version: 0.2\n')
  name = f'gpt2_bpe({str(folder / "vocab.json")!r}, '
  name += f'{str(folder / "merges.txt")!r})'
  return name


def test_tokens_that_only_a_file_beside_has_are_named(tmp_path, caplog):
  name = letters(tmp_path)
  added = {'<|im_start|>': 96, '<|endoftext|>': 95}
  (tmp_path / 'added_tokens.json').write_text(json.dumps(added))
  special_files.tokenizer(name, str(tmp_path))
  assert 'has no token <|im_start|>, so texts spell' in caplog.text
  config = {'added_tokens_decoder': {'0': '!'}}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
  with pytest.raises(UsageError, match='added_tokens_decoder is damaged'):
    special_files.tokenizer(name, str(tmp_path))


def test_two_vocabulary_files_put_nothing_before_a_text(tmp_path):
  name = letters(tmp_path)
  made = special_files.tokenizer(name, str(tmp_path))
  assert made.special.prompt([3]) == [3]
  assert made.special.before(first_scored=True) == (95,)
  (tmp_path / 'tokenizer_config.json').write_text(
    json.dumps({'add_bos_token': True, 'bos_token': '<|endoftext|>'})
  )
  made = special_files.tokenizer(name, str(tmp_path))
  assert made.special.prompt([3]) == [95, 3]


def test_the_tokens_of_an_encoder_are_known_by_role(tmp_path):
  corpus = [Document('a', 'the cat sat on the mat ' * 3)]
  for name, cls, before in (
    ('wordpiece(30)', '[CLS]', ['[PAD]', '[CLS]', '[SEP]', '[MASK]']),
    ('byte_bpe(270)', '<s>', ['<pad>', '<s>', '</s>', '<mask>']),
  ):
    mine = tokenizer.build(name, corpus)
    assert isinstance(mine, hf.HfTokenizer)
    folder = tmp_path / cls.strip('<>')
    folder.mkdir()
    for file, data in mine.contents.items():
      kept = 'tokenizer.json' if file == hf.FILE else file
      (folder / kept).write_bytes(data)
    expected = [mine.id_of(token) for token in before]
    # As trained; as read again; as imported, by the config's names or not.
    found = [mine, tokenizer.build(call(folder), [])]
    found += [special_files.tokenizer(call(folder), str(folder))]
    (folder / 'tokenizer_config.json').write_text('{}')
    found += [special_files.tokenizer(call(folder), str(folder))]
    for made in found:
      roles = made.special
      ids = [roles.pad_id, roles.cls_id, roles.sep_id, roles.mask_id]
      assert ids == expected
      assert made.eos_id == roles.sep_id
      assert made.fingerprint == mine.fingerprint
    assert found[0].special.prompt_start == ()
    assert found[2].special.prompt_start == (mine.id_of(cls),)


def test_other_tokens_have_no_role():
  for name in NAMES:
    roles = imported(name).special
    assert (roles.cls_id, roles.sep_id, roles.mask_id) == (None, None, None)


def test_a_config_names_unusual_tokens(tmp_path):
  corpus = [Document('a', 'the cat sat on the mat')]
  mine = tokenizer.build('byte_bpe(261)', corpus)
  assert isinstance(mine, hf.HfTokenizer)
  text = mine.contents[hf.FILE].decode()
  (tmp_path / 'tokenizer.json').write_text(text.replace('<mask>', '<hole>'))
  config = {'mask_token': '<hole>', 'cls_token': {'content': '</s>'}}
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config))
  roles = special_files.tokenizer(call(tmp_path), str(tmp_path)).special
  assert (roles.cls_id, roles.mask_id) == (2, 4)
  # An import of before there were roles: by the names that it kept.
  older = json.loads(special_files.special_files(str(tmp_path), mine)[special.SPECIAL])
  older = {k: v for k, v in older.items() if k not in ('cls', 'sep', 'mask')}
  contents = {special.SPECIAL: json.dumps(older).encode()}
  roles = special.of(contents, 2, {})
  assert (roles.cls_id, roles.sep_id, roles.mask_id) == (0, 2, 4)
