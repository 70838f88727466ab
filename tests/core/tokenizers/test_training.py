# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trained SentencePiece: nothing is lost, nothing is random, errors help."""

import functools
import inspect
import textwrap
import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_jax.core.files.document import Document
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers import sentencepiece, special, tokenizer, training

# Code with indentation, at every machine the same kind of text.
CODE = Document('code', inspect.getsource(textwrap) + inspect.getsource(inspect))

# Favours what SentencePiece treats in a way of its own.
TRAPS = ['\u2581', '\u2585', '\u2047', '\0', '\t', '\n', '\r', ' ', '  ', '<0x41>']
TRAPS += ['<unk>', '</s>', '\ufeff', '\ufffd', 'def ', 'a\u0301', '٣', '\U0001f600']
TEXT = st.lists(st.sampled_from(TRAPS) | st.characters(exclude_categories=['Cs'])).map(''.join)


SYMBOLS = ['<mask>', '    ', 'a b', ' z', 'x,y', 'é']
TRAPS += SYMBOLS


@functools.cache
def trained(more='', vocab_size=400):
  call = f'sentencepiece(vocab_size={vocab_size}, {more})'
  return tokenizer.build(call, [CODE])


@pytest.mark.parametrize(
  'more',
  [
    "model='unigram'",
    "model='bpe'",
    f"symbols={SYMBOLS}, model='bpe'",
    f'symbols={SYMBOLS}, split_digits=False, character_coverage=1',
  ],
)
def test_every_text_comes_back(more):
  made = trained(more)
  assert (made.vocab_size, made.eos_id) == (400, 1)

  @settings(max_examples=100, deadline=None)
  @given(TEXT)
  def check(text):
    ids = made.encode(text)
    assert ids.dtype == np.int32
    assert made.decode(ids) == text
    assert made.decode([*ids, made.eos_id]) == text
    assert not {0, 1} & set(ids.tolist())  # neither unknown nor eos
    both = made.encode_batch([text, 'plain'])
    np.testing.assert_array_equal(both[0], ids)
    np.testing.assert_array_equal(both[1], made.encode('plain'))

  check()
  assert made.decode(made.encode(CODE.text)) == CODE.text


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_segments_give_the_ids_of_the_whole(model, monkeypatch):
  made = trained(f'model={model!r}')
  pieces = ['a', ' ', '\n', '\n\n', '\t', 'é', '\r\n', 'def ', '\u2581', '9']

  @settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
  )
  @given(st.lists(st.sampled_from(pieces), max_size=30).map(''.join))
  def check(text):
    monkeypatch.setattr(sentencepiece, '_SEGMENT', 10**9)
    whole = made.encode(text)
    monkeypatch.setattr(sentencepiece, '_SEGMENT', 1)
    np.testing.assert_array_equal(made.encode(text), whole)

  check()


def pieces(made, text):
  return [made.processor.id_to_piece(int(i)) for i in made.encode(text)]


def vocabulary(made):
  return [made.processor.id_to_piece(i) for i in range(made.vocab_size)]


NUMBERS = Document('numbers', 'pi 123.5 of 2026, x2026 ' * 500)


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_digits_are_split_as_palm_does(model):
  made = {
    split: tokenizer.build(
      f'sentencepiece(400, model={model!r}, split_digits={split})', [CODE, NUMBERS]
    )
    for split in (True, False)
  }
  # Section 2 of the paper.
  assert pieces(made[True], '123.5') == ['1', '2', '3', '.', '5']
  longer = [p for p in vocabulary(made[True]) if len(p) > 1 and p[:3] != '<0x']
  assert not [p for p in longer if any(c.isdigit() for c in p)]
  assert len(pieces(made[False], '2026')) < 4


def test_nfkc_is_that_of_unicode():
  made = trained("normalization='nfkc'")
  # Parts of Unicode that are full. SentencePiece has no rule for U+0344.
  points = [*range(0xA0, 0x344), *range(0x345, 0x3400), *range(0xF900, 0x10000)]
  text = '\n'.join(f'a{chr(point)}b' for point in points if point != 0x2581)
  expected = unicodedata.normalize('NFKC', text)
  assert expected != text
  assert made.decode(made.encode(text)) == expected
  # White space is kept.
  assert made.decode(made.encode('\n  ﬁ\t\n ')) == '\n  fi\t\n '


def test_without_bytes_what_is_unknown_is_lost():
  made = trained('byte_fallback=False', 200)
  assert 0 in made.encode('漢')
  assert not [p for p in vocabulary(made) if p.startswith('<0x')]
  assert made.decode(made.encode('some words')) == 'some words'


def test_symbols_are_one_piece():
  made = trained(f"symbols={SYMBOLS}, model='bpe'")
  assert pieces(made, '<mask>x,y a b') == ['<mask>', 'x,y', '▁', 'a▁b']
  assert len(pieces(made, ' ' * 8)) == 2
  assert len(pieces(trained("model='bpe'"), '<mask>')) > 1


def test_pieces_hold_indentation_and_not_newlines():
  made = trained("model='unigram'")
  assert len(made.encode('    return')) <= 4
  assert len(made.encode('\n\n\t')) == 3
  assert len(made.encode('2026')) == 4


def test_training_twice_gives_the_same_model():
  made = trained("model='unigram'")
  again = tokenizer.build("sentencepiece(400, 'unigram')", [CODE])
  assert again.fingerprint == made.fingerprint != trained("model='bpe'").fingerprint


def test_the_sample_is_seeded_and_does_not_depend_on_the_order():
  documents = [Document(str(i), f'líne {i}\n' * 4001) for i in range(13)]
  for size in (1, 100_000, 10**9):
    one = training.take(documents, size, 0)
    other = training.take(documents[::-1], size, 0)
    assert sorted(one) == sorted(other)
    held = sum(len(chunk.encode()) for chunk in one)
    longest = max(len(chunk.encode()) for chunk in one)
    assert size <= held < size + longest or size == 10**9
  whole = training.take(documents, 10**9, 0)
  assert ''.join(whole) == ''.join(d.text for d in documents)
  some = [training.take(documents, 100_000, seed) for seed in (0, 1)]
  assert some[0] != some[1]


def test_a_line_without_end_is_cut_and_trains():
  text = Document('long', 'ab cd ' * 90_000)
  chunks = list(training.cut([text]))
  assert len(chunks) > 5 and ''.join(c for _, c in chunks) == text.text
  made = trained("model='bpe'")
  assert made.decode(made.encode(text.text)) == text.text


def test_an_encoders_tokens_are_no_text():
  names = ['<pad>', '[CLS]', '[SEP]', '[MASK]']
  more = f"model='bpe', special={names}, normalization='nfkc_cf'"
  made = trained(more, 390)
  ids = [made.processor.piece_to_id(name) for name in names]
  found = made.special
  assert ids == [found.pad_id, found.cls_id, found.sep_id, found.mask_id]
  assert made.eos_id == found.sep_id == 1 and made.vocab_size == 390
  assert '</s>' not in vocabulary(made)
  text = 'Class [MASK] and [SEP]'
  plain = made.encode(text)
  assert not {*ids} & {*plain.tolist()}
  assert made.decode(plain) == text.lower()
  named = special.with_masks(made, text).tolist()
  assert named == [*made.encode('class'), found.mask_id, *made.encode(' and [SEP]')]


@pytest.mark.parametrize('model', ['unigram', 'bpe'])
def test_a_corpus_too_small_for_the_vocabulary(model):
  with pytest.raises(UsageError) as e:
    trained(f'model={model!r}', 50257)
  assert 'vocab_size=50257' in str(e.value) and 'at most' in str(e.value)
  assert str(e.value).endswith('or add text')
  with pytest.raises(UsageError, match='or raise sample_bytes above'):
    trained(f'model={model!r}, sample_bytes=17000', 50257)
  with pytest.raises(UsageError, match=r'at least 3[0-9]{2} pieces'):
    trained(f'model={model!r}', 270)


def test_sentinels():
  """Of no text; the first has the highest id, as T5's."""
  made = trained("special=['<pad>'], sentinels=3")
  names = made.special.names
  ids = [names[f'<extra_id_{i}>'] for i in range(3)]
  assert ids == sorted(ids, reverse=True) and len({*ids}) == 3
  assert made.special.pad_id == names['<pad>']
  assert not {*made.encode('<extra_id_0>').tolist()} & {*ids}
