# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranges of tokens, against the bytes that each token spells."""

import json
import unicodedata

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import hf
from gpt_jax.core.tokenizers.words import SPACE_MARK

BYTES = [f'<0x{byte:02X}>' for byte in range(256)]
LETTERS = 'abcdefghijklmnopqrstuvwxyz|'
TEXT = 'ab\n日本 é\u4e00x  😀가나|\n\nßq'
END = '</s>'


def unigram(pieces=(), byte_fallback=True):
  names = ['<unk>', END, *BYTES * byte_fallback, SPACE_MARK, *LETTERS, *pieces]
  scores = [(name, -i / 100) for i, name in enumerate(names)]
  return tokenizers.Tokenizer(models.Unigram(scores, 0, byte_fallback))


def bpe():
  names = ['<unk>', END, *BYTES, SPACE_MARK, *LETTERS]
  known = {name: i for i, name in enumerate(names)}
  model = models.BPE(known, [], unk_token='<unk>', byte_fallback=True)
  return tokenizers.Tokenizer(model)


def byte_level():
  names = ['<unk>', END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
  made = tokenizers.Tokenizer(models.BPE({x: i for i, x in enumerate(names)}, []))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  return made


def made(library, *special, roles=()):
  library.add_special_tokens([*special])
  return hf.HfTokenizer({hf.FILE: library.to_str().encode(), 'eos.json': json.dumps(END).encode()})


def of_bytes(token):
  if token in BYTES:
    return bytes([int(token[3:5], 16)])
  return token.replace(SPACE_MARK, ' ').encode()


def assert_spells(tokenizer, text, parts):
  """Tokens of each range spell that part, as `parts` says it is spelled."""
  found, start = [], 0
  for part, spelled in parts:
    found.append((start, start + len(part), spelled.encode()))
    start += len(part)
  spelled = {}
  ids = tokenizer.encode(text).tolist()
  ranges = tokenizer.offsets(text).tolist()
  assert len(ids) == len(ranges)
  for i, (first, last) in zip(ids, ranges, strict=True):
    old = spelled.get((first, last), b'')
    spelled[first, last] = old + of_bytes(tokenizer.token(i))
  assert [(*bounds, part) for bounds, part in spelled.items()] == found


@pytest.mark.parametrize('make', [unigram, bpe])
@pytest.mark.parametrize('spaces', ['kept', 'replaced'])
def test_each_byte_has_its_character(make, spaces):
  library = make()
  if spaces == 'replaced':
    library.normalizer = normalizers.Replace(' ', SPACE_MARK)
  assert_spells(made(library), TEXT, [(c, c) for c in TEXT])


def test_a_mark_before_a_text_belongs_to_its_first_character():
  library = unigram()
  library.normalizer = normalizers.Sequence(
    [normalizers.Prepend(SPACE_MARK), normalizers.Replace(' ', SPACE_MARK)]
  )
  text = '日本 日'
  parts = [('日', ' 日'), ('本', '本'), (' ', ' '), ('日', '日')]
  assert_spells(made(library), text, parts)
  library.normalizer = None
  library.pre_tokenizer = pre_tokenizers.Metaspace()
  assert_spells(made(library), text, parts)


@pytest.mark.parametrize('make', [unigram, bpe])
@pytest.mark.parametrize('form', ['NFC', 'NFD', 'NFKC', 'NFKD'])
def test_normal_forms(make, form):
  library = make()
  library.normalizer = getattr(normalizers, form)()
  clusters = ['日', 'e\u0301', 'ﬁ', '㍿', 'a\u0323', '\u1100\u1161', '½', 'é', 'x']
  parts = []
  for cluster in clusters:
    whole = unicodedata.normalize(form, cluster)
    alone = [unicodedata.normalize(form, c) for c in cluster]
    parts += [*zip(cluster, alone, strict=True)] if whole == ''.join(alone) else [(cluster, whole)]
  assert_spells(made(library), ''.join(clusters), parts)


def test_replacements():
  library = unigram()
  library.normalizer = normalizers.Sequence(
    [
      normalizers.Replace('``', '日'),
      normalizers.Replace(Regex('q'), 'xyz'),
      normalizers.Lowercase(),
    ]
  )
  parts = [('``', '日'), ('本', '本'), ('q', 'xyz'), ('Ä', 'ä'), ('İ', 'i\u0307')]
  parts += [('Ö', 'ö')]
  assert_spells(made(library), '``本qÄİÖ', parts)


def test_what_a_normalizer_drops_is_in_no_token():
  library = unigram()
  library.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace('q', '')])
  tokenizer = made(library)
  ranges = [[2, 3]] * 3 + [[4, 5]] * 3
  assert tokenizer.offsets('  日q本 ').tolist() == ranges


def test_parts_of_a_character_have_all_of_it():
  tokenizer = made(byte_level())
  text = 'a日é'
  expected = [[0, 1], *[[1, 2]] * 3, *[[2, 3]] * 2]
  assert tokenizer.offsets(text).tolist() == expected


def test_a_long_run_is_aligned_in_time_that_grows_with_it():
  tokenizer = made(unigram())
  ranges = tokenizer.offsets('日' * 100_000)
  assert ranges[-1].tolist() == [99_999, 100_000] and len(ranges) == 300_000


# Special tokens that a normalizer makes of other characters.

WIDE = ''.join(chr(ord(c) + 0xFEE0) for c in '<pad>')


@pytest.mark.parametrize('name', ['<pad>', WIDE, f'a{WIDE}{WIDE}b', '</s>'])
def test_no_document_names_a_special_token(name):
  library = unigram(['<pad>', '/', '<', '>'])
  library.normalizer = normalizers.NFKC()
  tokenizer = made(library, '<pad>')
  special = {*tokenizer.special_names.values(), tokenizer.eos_id}
  ids = tokenizer.encode(name).tolist()
  assert not special.intersection(ids)
  spelled = b''.join(of_bytes(tokenizer.token(i)) for i in ids).decode()
  assert spelled == unicodedata.normalize('NFKC', name)
  ranges = tokenizer.offsets(name)
  assert len(ranges) == len(ids) and ranges[-1, 1] == len(name)


@pytest.mark.parametrize('normalized', [True, False])
def test_a_template_names_a_token_only_as_it_is_written(normalized):
  library = unigram(['/', '<', '>'])
  library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
  token = AddedToken('<pad>', normalized=normalized, special=True)
  tokenizer = made(library, token)
  pad = tokenizer.id_of('<pad>')
  text = f'<pad>a{WIDE}b<PAD>日<pad>'
  ids = tokenizer.encode_special(text).tolist()
  assert [i for i, x in enumerate(ids) if x == pad] == [0, len(ids) - 1]
  inner = ids[1:-1]
  spelled = b''.join(of_bytes(tokenizer.token(i)) for i in inner).decode()
  assert spelled == 'a<pad>b<pad>日'
  ranges = tokenizer.offsets_special(text).tolist()
  assert ranges[0] == [0, 5] and ranges[-1] == [len(text) - 5, len(text)]
  bounds = [[i, i + 1] for i in range(5, len(text) - 5)]
  assert [x for i, x in enumerate(ranges) if x not in ranges[:i]][1:-1] == bounds


def test_one_character_that_is_a_special_token_is_refused():
  library = tokenizers.Tokenizer(models.WordLevel({'x': 0, END: 1}, END))
  tokenizer = made(library)
  with pytest.raises(UsageError, match="reads 'y' as its special token '</s>'"):
    tokenizer.encode('y')
