# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that cannot be made: the call, the files and what is said."""

import json
import re

import pytest

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import tokenizer

WORDS = 'b a <unk> b c\n a b, \n b\n'
# Each is a call, its files, the corpus, and a pattern of the message.
BPE = "gpt2_bpe('encoder.json', 'vocab.bpe')"
EOT = '{"a": 0, "<|endoftext|>": 1}'
ROBERTA = "byte_bpe_file('vocab.json', 'merges.txt')"
BERT = "wordpiece_file('vocab.txt')"
PIECES = '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]'
HF = "hf_tokenizer('tokenizer.json')"
HF_END = "hf_tokenizer('tokenizer.json', eos='</s>')"
MODEL = "sentencepiece_file('x.model')"


def bpe(encoder, merges):
  return {'encoder.json': encoder, 'vocab.bpe': merges}


def roberta(vocabulary):
  return {'vocab.json': vocabulary, 'merges.txt': '#version\n'}


def gaps(last, **parts):
  """A tokenizer.json of two words, the second of id `last`."""
  words = {'type': 'WordLevel', 'vocab': {'</s>': 0, 'x': last}}
  model = {'version': '1.0', 'model': {**words, 'unk_token': '</s>'}}
  return {'tokenizer.json': json.dumps({**model, **parts})}


REFUSED = [
  ('letters', {}, '', r'tokenizer.name=.*gpt1_bpe, gpt2_bpe'),
  ('words(count=9)', {}, WORDS, 'keeps none of the 5 words'),
  ('frequent_bytes(2)', {}, 'aa', 'keeps none of the 1 byte values'),
  ("saved('x')", {}, '', r'saved\(.*there is no such folder'),
  ("sides('characters', source='words')", {}, '', 'learns both, and reads'),
  ("sides('bytes', source=\"sides('bytes', 'bytes')\")", {}, '', 'is a pair itself'),
  (BPE, {}, '', r"tokenizer.name: .*'encoder.json'"),
  (BPE, bpe('{', ''), '', 'do not fit gpt2_bpe'),
  (BPE, bpe(EOT, '#version\na b\n'), '', 'out of vocabulary'),
  (BPE, bpe(EOT, '#version\na\n'), '', 'line 2 of the merges'),
  (BPE, bpe('{"a": 0}', '#version\n'), '', r"no '<\|endoftext\|>'"),
  (ROBERTA, {}, '', r"cannot read 'vocab\.json'"),
  (ROBERTA, roberta('{'), '', 'do not fit'),
  (ROBERTA, roberta('{"a": 0}'), '', r'has no <s>, <pad>, </s>, <unk>, <mask>; .*gpt2_bpe'),
  ('byte_bpe(260)', {}, '', 'there are 261 pieces'),
  ('byte_bpe(999)', {}, 'ab ab', r'at most 2.. pieces; .* add text'),
  (BERT, {}, '', r"cannot read 'vocab.txt'"),
  (BERT, {'vocab.txt': ''}, '', 'vocab.txt. is empty'),
  (BERT, {'vocab.txt': '\n\n'}, '', 'vocab.txt. is empty'),
  (BERT, {'vocab.txt': '[PAD]\n[UNK]\n[SEP]\n[MASK]'}, '', r'has no \[CLS\]'),
  (BERT, {'vocab.txt': f'{PIECES}\na\nb\na'}, '', "'a' on lines 6 and 8"),
  (BERT, {'vocab.txt': b'\xff'}, '', 'vocab.txt: is not UTF-8'),
  ('wordpiece(5000)', {}, WORDS, r'at most .* pieces; .* add text'),
  ('wordpiece(5000, sample_bytes=9)', {}, WORDS, 'or raise sample_bytes above'),
  ('wordpiece(9)', {}, WORDS, r'needs at least .* alphabet=1000'),
  (HF, {}, '', r"cannot read 'tokenizer.json'"),
  *((HF, {'tokenizer.json': x}, '', r'tokenizer\.json') for x in ('', '[]')),
  (HF, {'tokenizer.json': '{}'}, '', r'tokenizer\.json'),
  (HF, {'tokenizer.json': '{"a": ' * 100_000}, '', r'tokenizer\.json'),
  (HF_END, gaps(30_000_000), '', 'has 2 tokens, and one of id 30,000,000'),
  (
    HF,
    {**gaps(1), 'tokenizer_config.json': '[]'},
    '',
    'tokenizer_config.json: is damaged, not a JSON object',
  ),
  (
    "words_file('v.txt', 2, vocab_size=2)",
    {'v.txt': 'a 0 1\n'},
    '',
    r'vocab_size=2\) has no word; give at least 3',
  ),
  (HF, {'tokenizer.json': '{"added_tokens": [1]}'}, '', r'tokenizer\.json'),
  (
    HF_END,  # the library panics
    gaps(1, normalizer={'type': 'Precompiled', 'precompiled_charsmap': 'AA=='}),
    '',
    "tokenizer.json': is not a tokenizer.json: ",
  ),
  (MODEL, {}, '', 'cannot read'),
  *((MODEL, {'x.model': x}, '', 'is not a SentencePiece') for x in ('', 'x')),
  *(
    (f'sentencepiece(300, {arguments})', {}, '', re.escape(words))
    for arguments, words in (
      ("symbols='<mask>'", 'must be a list of texts'),
      ("symbols=['a', 'a']", 'must differ'),
      ("symbols=['</s>']", "holds '</s>': newline and tab are"),
      ("symbols=['a\\n']", 'newline and tab are'),
      ("special='[SEP]'", "special='[SEP]' must be a list of texts"),
      ("special=['<s>']", "holds '<s>'"),
      ("symbols=['a'], special=['a']", "has 'a', one of symbols"),
      ("special=['<extra_id_0>'], sentinels=1", 'sentinels=1 are in special or symbols'),
    )
  ),
]


@pytest.mark.parametrize(('call', 'files', 'corpus', 'words'), REFUSED)
def test_what_cannot_be_made_is_refused(tmp_path, monkeypatch, call, files, corpus, words):
  monkeypatch.chdir(tmp_path)
  for name, data in files.items():
    data = data.encode() if isinstance(data, str) else data
    (tmp_path / name).write_bytes(data)
  with pytest.raises(UsageError, match=words) as e:
    tokenizer.build(call, [Document('a', corpus)] if corpus else [])
  assert '\n' not in str(e.value)
  if not files:
    assert str(e.value).startswith('tokenizer.name')
