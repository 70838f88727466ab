# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Options of tokenizer_config.json: the same ids as AutoTokenizer's."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from gpt_jax.core.spec import UsageError
from gpt_jax.hf import vocabulary
from gpt_jax.hf_tokenizers import classes

TEXTS = (
  'hello world',
  ' hello',
  'Hello  World',
  'Café É',
  '日本 x',
  ' a\n\tb  ',
  '``x\'\' "y"',
  'e\u0301 ﬁ',
  'a,b.c!',
  'x\u3000y',
  '\u2581a \u2581',
  '😀 ab',
  '\uff21',
  '',
  '\n',
  'a\r\n\r\nb',
  'foo bar',
  "it's 1, 2",
)
SPECIAL = (
  # Some classes know the id of the unknown token: 0, 1, 2 (T5) or 3.
  '<cls>',
  '<sep>',
  '<unk>',
  '<mask>',
  '<s>',
  '</s>',
  '<pad>',
  '[UNK]',
  '[CLS]',
  '[SEP]',
  '[PAD]',
  '[MASK]',
  '<|endoftext|>',
  'en_XX',
)
LETTERS = 'abcdefghijklmnopqrstuvwxyzHWCÉé日本,.!"\'`'
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MARK = '\u2581'
ROLES = {
  'bert': ('[UNK]', '[CLS]', '[SEP]'),
  'roberta': ('<unk>', '<s>', '</s>'),
  'gpt': ('<|endoftext|>',) * 3,
}


def bpe(pieces, merges, **options):
  pieces = [*SPECIAL, *pieces, *(a + b for a, b in merges)]
  known = {piece: i for i, piece in enumerate(pieces)}
  return tokenizers.Tokenizer(models.BPE(known, merges, **options))


def byte_level():
  made = bpe(BYTES, [('h', 'e'), ('l', 'l'), ('Ġ', 'h'), ('Ġ', 'Ġ')])
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  return made


def marked():
  pieces = [*(f'<0x{i:02X}>' for i in range(256)), MARK, *LETTERS]
  merges = [('h', 'e'), ('l', 'l'), (MARK, 'h'), (MARK, MARK)]
  made = bpe(pieces, merges, unk_token='<unk>')
  made.normalizer = normalizers.Replace(' ', MARK)
  return made


def ended():
  pieces = [*LETTERS, *(f'{x}</w>' for x in LETTERS)]
  made = bpe(pieces, [('h', 'e')], unk_token='<unk>', end_of_word_suffix='</w>')
  made.pre_tokenizer = pre_tokenizers.Whitespace()
  return made


def wordpiece():
  pieces = [*SPECIAL, *LETTERS, *(f'##{x}' for x in LETTERS)]
  model = models.WordPiece(
    {p: i for i, p in enumerate(pieces)}, unk_token='[UNK]', max_input_chars_per_word=4
  )
  made = tokenizers.Tokenizer(model)
  made.normalizer = normalizers.BertNormalizer(lowercase=True)
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return made


def unigram():
  pieces = [(x, -5.0 - i / 100) for i, x in enumerate(f'{LETTERS}{MARK}\n')]
  pieces = [*((s, 0.0) for s in SPECIAL), *pieces, (f'{MARK}h', -2.0)]
  made = tokenizers.Tokenizer(models.Unigram(pieces, 0, True))
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  return made


CASES = [
  (byte_level, 'gpt', 'GPT2Tokenizer', [{}, {'add_prefix_space': True}]),
  (byte_level, 'gpt', 'GPTNeoXTokenizer', [{}, {'add_prefix_space': True}]),
  (byte_level, 'gpt', 'Qwen2Tokenizer', [{}, {'add_prefix_space': True}]),
  (
    byte_level,
    'roberta',
    'RobertaTokenizer',
    [{}, {'add_prefix_space': True, 'trim_offsets': False}],
  ),
  (byte_level, 'roberta', 'BartTokenizerFast', [{'add_prefix_space': True}]),
  (byte_level, 'bert', 'DebertaTokenizer', [{}, {'add_prefix_space': True}]),
  (byte_level, 'gpt', 'LlamaTokenizer', [{}, {'add_prefix_space': True}]),
  (byte_level, 'gpt', 'PreTrainedTokenizerFast', [{'add_prefix_space': True}]),
  (ended, 'roberta', 'OpenAIGPTTokenizer', [{}, {'do_lower_case': False}]),
  (
    marked,
    'roberta',
    'LlamaTokenizer',
    [
      {},
      {'legacy': True},
      {'legacy': False, 'add_prefix_space': None},
      {'add_prefix_space': False, 'add_bos_token': True},
    ],
  ),
  (marked, 'roberta', 'CodeLlamaTokenizer', [{}, {'add_prefix_space': False}]),
  (marked, 'roberta', 'GemmaTokenizer', [{'add_prefix_space': True}]),
  (
    wordpiece,
    'bert',
    'BertTokenizer',
    [
      {},
      {'do_lower_case': False},
      {'strip_accents': False},
      {'do_lower_case': False, 'strip_accents': True},
      {'tokenize_chinese_chars': False, 'strip_accents': None},
    ],
  ),
  (wordpiece, 'bert', 'DistilBertTokenizerFast', [{'do_lower_case': False}]),
  (wordpiece, 'bert', 'ElectraTokenizer', [{'strip_accents': False}]),
  (wordpiece, 'roberta', 'MPNetTokenizer', [{'do_lower_case': False}]),
  (
    unigram,
    'bert',
    'AlbertTokenizer',
    [{}, {'do_lower_case': False, 'keep_accents': True}, {'add_prefix_space': False}],
  ),
  (
    unigram,
    'roberta',
    'XLNetTokenizer',
    [{}, {'do_lower_case': True, 'keep_accents': True, 'unk_id': 3}],
  ),
  (unigram, 'roberta', 'T5Tokenizer', [{}, {'legacy': False}]),
  (unigram, 'roberta', 'XLMRobertaTokenizer', [{'add_prefix_space': False}]),
  (unigram, 'roberta', 'MBartTokenizer', [{}]),
  (
    unigram,
    'bert',
    'DebertaV2Tokenizer',
    [{}, {'do_lower_case': True, 'split_by_punct': True}, {'add_prefix_space': False, 'unk_id': 3}],
  ),
  (unigram, 'bert', 'BigBirdTokenizer', [{}, {'add_prefix_space': False}]),
]


def write(folder, made, roles, **entries):
  """A folder with a tokenizer.json that puts [CLS] before a text."""
  made.add_special_tokens([*SPECIAL])
  made.add_tokens([AddedToken('foo', normalized=False)])
  made.post_processor = processors.TemplateProcessing(
    single='[CLS] $A', special_tokens=[('[CLS]', SPECIAL.index('[CLS]'))]
  )
  made.save(str(folder / 'tokenizer.json'))
  unk, first, last = ROLES[roles]
  named = {
    **{'unk_token': unk, 'cls_token': first, 'bos_token': first},
    **{'sep_token': last, 'eos_token': last},
  }
  config = json.dumps({**named, **entries})
  (folder / 'tokenizer_config.json').write_text(config)
  (folder / 'config.json').write_text('{"model_type": "llama"}')


def compare(theirs, folder):
  found = vocabulary.read(str(folder), 'llama')
  assert found is not None
  for text in TEXTS:
    expected = theirs(text, add_special_tokens=False).input_ids
    assert found[1].encode(text).tolist() == expected, text
  alone = theirs('x', add_special_tokens=False).input_ids
  whole = theirs('x').input_ids
  starts = [i for i in range(len(whole)) if whole[i:][: len(alone)] == alone]
  assert [*found[1].special.prompt_start] == whole[: starts[0]]


@pytest.mark.parametrize(
  ('make', 'roles', 'name', 'options'),
  [(make, roles, name, options) for make, roles, name, several in CASES for options in several],
)
def test_a_class_reads_as_in_transformers(tmp_path, make, roles, name, options):
  transformers = pytest.importorskip('transformers')
  hand, saved = tmp_path / 'hand', tmp_path / 'saved'
  hand.mkdir()
  write(hand, make(), roles, tokenizer_class=name, **options)
  theirs = transformers.AutoTokenizer.from_pretrained(hand)
  compare(theirs, hand)
  theirs.save_pretrained(saved)
  (saved / 'config.json').write_text('{"model_type": "llama"}')
  compare(transformers.AutoTokenizer.from_pretrained(saved), saved)


def test_added_tokens_of_tokenizer_config(tmp_path):
  transformers = pytest.importorskip('transformers')
  more = {'900': AddedToken('hello', normalized=False).__getstate__()}
  for name in ('PreTrainedTokenizerFast', 'GPT2Tokenizer'):
    write(tmp_path, byte_level(), 'gpt', tokenizer_class=name, added_tokens_decoder=more)
    compare(transformers.AutoTokenizer.from_pretrained(tmp_path), tmp_path)


def test_the_class_of_a_model(tmp_path):
  """The tables agree with those of transformers."""
  auto = pytest.importorskip('transformers.models.auto.tokenization_auto')
  theirs = auto.TOKENIZER_MAPPING_NAMES
  assert {m: theirs[m] for m in classes.OF_MODELS} == classes.OF_MODELS | {
    'mobilebert': 'MobileBertTokenizer'
  }
  assert {theirs[m] for m in classes.PLAIN_MODELS} == {'TokenizersBackend'}
  for name in (*classes.CLASSES, *classes.ALIASES):
    made = auto.tokenizer_class_from_name(name).__name__
    aliased = {'DistilBertTokenizer': 'BertTokenizer'}.get(made, made)
    assert aliased == classes.ALIASES.get(name, name)
  write(tmp_path, byte_level(), 'gpt', add_prefix_space=True)
  beside = tmp_path / 'config.json'
  for kind, first in (('gpt2', 'Ġ'), ('olmo2', 'x'), ('falcon', 'x')):
    beside.write_text(json.dumps({'model_type': kind}))
    found = vocabulary.read(str(tmp_path), kind)
    assert found is not None
    assert found[1].token(found[1].encode('x')[0]) == first


@pytest.mark.parametrize(
  ('make', 'entries', 'words'),
  [
    (byte_level, {'tokenizer_class': 'WhisperTokenizer'}, 'rules of this class'),
    (byte_level, {'tokenizer_class': 'MarianTokenizer'}, 'rules of this class'),
    (unigram, {'tokenizer_class': 'GPT2Tokenizer'}, 'has a Unigram'),
    (
      byte_level,
      {'tokenizer_class': 'GPT2Tokenizer', 'add_prefix_space': 'yes'},
      "add_prefix_space='yes': give true or false",
    ),
    (byte_level, {'auto_map': {'AutoTokenizer': ['a', None]}}, 'auto_map='),
  ],
)
def test_refusals(tmp_path, make, entries, words):
  write(tmp_path, make(), 'gpt', **entries)
  with pytest.raises(UsageError, match=words):
    vocabulary.read(str(tmp_path), 'llama')


def test_a_refused_class_is_read_as_the_message_says(tmp_path):
  transformers = pytest.importorskip('transformers')
  write(tmp_path, byte_level(), 'gpt', tokenizer_class='WhisperTokenizer')
  made = transformers.AutoTokenizer.from_pretrained(tmp_path)
  new = tmp_path / 'new'
  transformers.PreTrainedTokenizerFast(
    tokenizer_object=made._tokenizer, **made.special_tokens_map
  ).save_pretrained(new)
  compare(made, new)
