# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece: nothing is lost, training is deterministic, errors help."""

import functools
import inspect
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_jax.data import tokenizer, tokenizer_training
from gpt_jax.data.sources import Document
from gpt_jax.spec import UsageError

# Code with indentation, at every machine the same kind of text.
CODE = Document(
  'code', inspect.getsource(textwrap) + inspect.getsource(inspect)
)

# Favours what SentencePiece treats in a way of its own.
TRAPS = [
  '\u2581',
  '\u2585',
  '\u2047',
  '\0',
  '\t',
  '\n',
  '\r',
  ' ',
  '  ',
  '<0x41>',
]
TRAPS += [
  '<unk>',
  '</s>',
  '\ufeff',
  '\ufffd',
  'def ',
  'a\u0301',
  '٣',
  '\U0001f600',
]
TEXT = st.lists(
  st.sampled_from(TRAPS) | st.characters(exclude_categories=['Cs'])
).map(''.join)


@functools.cache
def trained(model, vocab_size=400):
  call = f'sentencepiece(vocab_size={vocab_size}, model={model!r})'
  return tokenizer.build(call, [CODE])


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_every_text_comes_back(model):
  made = trained(model)
  assert (made.vocab_size, made.eos_id) == (400, 1)

  @settings(max_examples=150, deadline=None)
  @given(TEXT)
  def check(text):
    ids = made.encode(text)
    assert made.decode(ids) == text
    assert made.decode([*ids, made.eos_id]) == text
    assert not {0, 1} & set(ids.tolist())  # neither unknown nor eos
    both = made.encode_batch([text, 'plain'])
    np.testing.assert_array_equal(both[0], ids)
    np.testing.assert_array_equal(both[1], made.encode('plain'))

  check()
  assert made.decode(made.encode(CODE.text)) == CODE.text


def test_pieces_hold_indentation_and_not_newlines():
  made = trained('unigram')
  assert len(made.encode('    return')) <= 4
  assert len(made.encode('\n\n\t')) == 3
  assert len(made.encode('2026')) == 4


def test_training_twice_gives_the_same_model(tmp_path):
  made = trained('unigram')
  again = tokenizer.build("sentencepiece(400, 'unigram')", [CODE])
  assert again.fingerprint == made.fingerprint != trained('bpe').fingerprint
  made.save(str(tmp_path))
  loaded = tokenizer.load(str(tmp_path))
  assert loaded.fingerprint == made.fingerprint
  assert loaded.decode(loaded.encode('x\u2581y')) == 'x\u2581y'


def test_a_model_file_is_used_as_it_is(tmp_path):
  trained('bpe').save(str(tmp_path))
  path = str(tmp_path / 'sentencepiece.model')
  made = tokenizer.build(f'sentencepiece_file({path!r})', [])
  np.testing.assert_array_equal(
    made.encode('def f():'), trained('bpe').encode('def f():')
  )
  made.save(str(tmp_path / 'again'))
  loaded = tokenizer.load(str(tmp_path / 'again'))
  assert loaded.fingerprint == made.fingerprint


def test_the_sample_does_not_depend_on_the_order():
  documents = [Document(str(i), f'line {i}\n' * 4001) for i in range(13)]
  sample = tokenizer_training._sample
  for size in (1, 100_000, 10**9):
    one, other = sample(documents, size), sample(documents[::-1], size)
    assert sorted(one) == sorted(other)
    held = sum(map(len, one))
    longest = max(map(len, one))
    assert size <= held < size + longest or size == 10**9
  assert ''.join(sample(documents, 10**9)) == ''.join(d.text for d in documents)


def test_a_line_without_end_is_cut_and_trains():
  text = Document('long', 'ab cd ' * 90_000)
  chunks = list(tokenizer_training._chunks([text]))
  assert len(chunks) > 5 and ''.join(c for _, c in chunks) == text.text
  assert trained('bpe').decode(trained('bpe').encode(text.text)) == text.text


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_a_corpus_too_small_for_the_vocabulary(model):
  with pytest.raises(UsageError) as e:
    trained(model, 50257)
  assert 'vocab_size=50257' in str(e.value) and 'at most' in str(e.value)
  with pytest.raises(UsageError, match=r'at least 3[0-9]{2} pieces'):
    trained(model, 270)


def test_bad_arguments_are_named(tmp_path):
  with pytest.raises(
    UsageError, match=r"model='words' is none of unigram, bpe"
  ):
    tokenizer.build("sentencepiece(vocab_size=300, model='words')", [])
  with pytest.raises(UsageError, match='vocab_size=0 must be positive'):
    tokenizer.build('sentencepiece(vocab_size=0)', [])
  for data in (b'', b'junk'):
    path = tmp_path / 'x.model'
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r'x.model. is not a SentencePiece'):
      tokenizer.build(f'sentencepiece_file({str(path)!r})', [])
  with pytest.raises(UsageError, match='cannot read'):
    tokenizer.build("sentencepiece_file('gone.model')", [])
