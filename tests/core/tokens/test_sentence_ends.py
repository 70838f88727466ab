# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the sentences of a store end, for each kind of tokenizer."""

import itertools
import json

import numpy as np
import pytest

from gpt_jax.core.files import files
from gpt_jax.core.spec import UsageError
from gpt_jax.core.text.sentences import spans
from gpt_jax.core.tokens import encode, eval_sets, manifest, prepare
from gpt_jax.core.tokens import store as token_store
from gpt_jax.core.tokens.store import TokenStore

TRAINED = 'sentencepiece(vocab_size=299)'
LOSSLESS = ['bytes', 'characters', TRAINED, "hf_tokenizer('tokenizer.json')"]

TEXTS = [
  'It rains. It pours!  "Why?" she said.\n\n漢字. é \u2581 δ? Yes.\n',
  'One line',
  '\n\n A.  B.\tC. 漢. 漢! \u2581. \u2581x. <eos>. It <eos> <eos>.',
  ' . ',
  'no end\nwhere a line ends. Or does it?\nyes',
]


def characters(text, splitter):
  """After each sentence but the last: what a splitter should find."""
  if splitter == 'lines':
    return [i + 1 for i, c in enumerate(text[:-1]) if c == '\n']
  return [stop for _, stop in spans(text) if stop < len(text)]


@pytest.mark.parametrize('name', LOSSLESS)
@pytest.mark.parametrize('splitter', ['terminal', 'lines'])
def test_a_sentence_begins_with_the_token_of_its_first_character(
  corpus, hf_tokenizer, make_config, name, splitter
):
  lines = [json.dumps({'text': text}) for text in TEXTS * 2]
  (corpus / 'texts.jsonl').write_text('\n'.join(lines))
  settings = {'source': "jsonl('texts.jsonl')", 'holdout': 'none'}
  settings['tokenizer'] = name
  plain = prepare.ensure(make_config(**settings), 'D')
  store = prepare.ensure(make_config(**settings, sentences=splitter), 'E')
  # The tokens are those of a store without sentences.
  assert store.manifest.tokens_crc32 == plain.manifest.tokens_crc32
  assert store.manifest.fingerprint != plain.manifest.fingerprint
  ends, made, start = store.sentence_ends, store.tokenizer(), 0
  assert store.manifest.num_sentences == len(ends)
  assert np.all(np.isin(store.document_ends, ends))
  for text, stop in zip(TEXTS * 2, store.document_ends, strict=True):
    found = ends[(ends > start) & (ends < stop)]
    # How many characters the first i + 1 tokens hold. What there is of one
    # that is spelled in several tokens decodes to one or more.
    held = [len(made.decode(store.tokens(start, i + 1))) for i in range(start, stop)]
    wanted = {start + sum(count <= c for count in held) for c in characters(text, splitter)}
    assert {*found} == wanted - {start, stop - 1}
    start = stop


@pytest.mark.parametrize('name', ['bytes', "hf_tokenizer('tokenizer.json')"])
def test_a_long_document_has_the_sentences_of_the_whole(
  corpus, hf_tokenizer, make_config, monkeypatch, name
):
  lines = [f'{i}. Line{" ab" * (i % 5)}' for i in range(101)]
  (corpus / 'long.txt').write_text('\n'.join(lines))
  settings = {'source': "text('long.txt')", 'holdout': 'none'}
  config = make_config(**settings, tokenizer=name, sentences='terminal')
  whole = prepare.ensure(config, 'D').sentence_ends
  monkeypatch.setattr(encode, '_LONGEST', 29)
  cut = prepare.ensure(config, 'E').sentence_ends
  np.testing.assert_array_equal(whole, cut)
  assert len(whole) == 202


def test_a_sentence_that_is_cut_goes_on(monkeypatch, make_config, corpus):
  (corpus / 'long.txt').write_text('a' * 37 + '. ' + 'b' * 37)
  monkeypatch.setattr(encode, '_LONGEST', 7)
  settings = {'source': "text('long.txt')", 'holdout': 'none'}
  store = prepare.ensure(make_config(**settings, sentences='lines'), 'D')
  np.testing.assert_array_equal(store.sentence_ends, [len(store)])


def test_a_store_on_disk_is_checked(corpus, make_config, monkeypatch):
  config = make_config(sentences='terminal')
  held = prepare.ensure(config, 'D').sentence_ends
  store = TokenStore.open('D', in_memory_bytes=0)
  np.testing.assert_array_equal(store.sentence_ends, held)
  store.verify()
  path = 'D/sentence_ends/c/0'
  with open(path, 'r+b') as file:
    file.seek(9)
    file.write(b'\xff')
  with pytest.raises(UsageError, match=r'sentence_ends: .*damaged'):
    TokenStore.open('D')
  files.delete('D', 'sentence_ends')
  with pytest.raises(UsageError, match=r'sentence_ends.* damaged'):
    TokenStore.open('D', in_memory_bytes=0)


def test_a_store_of_before_has_none_and_says_so(corpus, make_config):
  prepare.prepare(make_config(), 'D')
  # As it was written before there were sentences.
  entries = json.loads(files.read('D', 'manifest.json') or b'')
  written = manifest.read('D')
  for name in ('sentences', 'num_sentences', 'sentence_ends_crc32'):
    del entries[name]
  del entries[manifest._SEAL]
  entries[manifest._SEAL] = manifest._digest(entries)
  files.write('D', 'manifest.json', json.dumps(entries).encode())
  assert manifest.read('D') == written
  store = prepare.ensure(make_config(), 'D')
  with pytest.raises(UsageError, match=r"data.sentences='terminal' and name"):
    _ = store.sentence_ends
  with pytest.raises(UsageError, match=r"data.sentences='none' where .*'lines'"):
    prepare.ensure(make_config(sentences='lines'), 'D')


def test_the_splitters():
  for name, wanted in (
    ('terminal', ['A.  ', 'B? ', 'c\n\n', 'd']),
    ('lines', ['A.  B? c\n', '\n', 'd']),
  ):
    split = token_store.splitter(name)
    assert split is not None
    text = 'A.  B? c\n\nd'
    starts = np.arange(len(text))
    stops = [*itertools.accumulate(map(len, wanted))]
    ends = split(text, np.stack([starts, starts + 1], axis=1), True)
    assert [*ends, len(text)] == stops
  assert token_store.splitter('none') is None
  # It once took minutes to find no line end in many spaces.
  assert [*spans('a' + ' ' * 200_003 + 'b')] == [(0, 200_005)]


def test_other_held_out_sets_have_sentences_too(corpus, make_config):
  config = make_config(sentences='lines').unlock()
  (corpus / 'other.txt').write_text('one\ntwo\nthree')
  config.eval.sets.other = "text('other.txt')"
  store = prepare.ensure(config, 'D')
  sets = eval_sets.held_out(config, store)
  assert sets['other'].store.sentence_ends.tolist() == [4, 8, 14]
  for name, found in sets.items():
    ends = found.store.sentence_ends
    assert ends[-1] == len(found.store), name
    assert np.isin(found.store.document_ends, ends).all()
