# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text appears token by token, whole characters only, and ends at stops."""

import hypothesis
import pytest
import tokenizers
from hypothesis import strategies as st

from gpt_jax.core.files.document import Document
from gpt_jax.core.tokenizers.hf import HfTokenizer
from gpt_jax.core.tokenizers.simple import Bytes, FrequentBytes
from gpt_jax.core.tokenizers.training import sentencepiece as sentencepiece_of
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.texts import TextStream
from gpt_jax.papers.bert.byte_bpe import byte_bpe

BYTES = Bytes()


def stream_of(tokenizer, prompt_ids, stop=()):
  return TextStream(tokenizer, Request(prompt_ids, 1), stop)


def shown(stream, ids):
  """What each token shows, until a stop, and the rest."""
  pieces = []
  for token in ids:
    pieces.append(stream.push(token))
    if stream.stopped:
      break
  return [*pieces, stream.finish()]


def metaspace(strip=True):
  """LLaMA's kind: a space before the first word, bytes for what is unknown.

  Without `strip` it is Gemma's, which puts no space there.
  """
  vocab = {'</s>': 0, '<unk>': 1, '▁a': 2, '▁b': 3, 'c': 4}
  vocab |= {f'<0x{byte:02X}>': 5 + byte for byte in range(256)}
  vocab |= {'▁': 261, 'a': 262, 'b': 263}
  made = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab, [('▁', 'a'), ('▁', 'b')], unk_token='<unk>', byte_fallback=True)
  )
  made.decoder = tokenizers.decoders.Sequence(
    [
      tokenizers.decoders.Replace('▁', ' '),
      tokenizers.decoders.ByteFallback(),
      tokenizers.decoders.Fuse(),
      *[tokenizers.decoders.Strip(' ', 1, 0)] * strip,
    ]
  )
  made.normalizer = tokenizers.normalizers.Replace(' ', '▁')
  return HfTokenizer({'hf_tokenizer.json': made.to_str().encode(), 'eos.json': b'"</s>"'})


def byte_level():
  documents = [Document('d', 'a b the then a b of the a\n' * 40)]
  return byte_bpe(vocab_size=264)(documents)


@hypothesis.given(st.text(max_size=17), st.text(max_size=7))
def test_characters_are_never_cut(text, prompt):
  stream = stream_of(BYTES, BYTES.encode(prompt).tolist())
  pieces = shown(stream, BYTES.encode(text))
  assert ''.join(pieces) == text
  # Each character with its last byte; U+FFFD is what a cut one would be.
  if '\ufffd' not in text:
    assert '\ufffd' not in ''.join(pieces)
    assert [p for p in pieces if p] == list(text)


def sentencepiece():
  """Ours, with few pieces: most characters are bytes."""
  lines = [Document('d', 'a b the then a b of the a\n' * 40)]
  return sentencepiece_of(vocab_size=270)(lines)


TOKENIZERS = {
  'bytes': lambda: BYTES,
  'frequent_bytes': lambda: FrequentBytes([*b'ab \xc3\xa9\xe2\x82\xac']),
  'llama': metaspace,
  'gemma': lambda: metaspace(strip=False),
  'byte_level': byte_level,
  'sentencepiece': sentencepiece,
}
# Spaces, characters of two to four bytes, and the mark of what is none.
TEXTS = st.text('ab \n\u2581é€ñ\ufffd😀\u200d', max_size=13)


@pytest.mark.parametrize('name', TOKENIZERS)
def test_all_pieces_are_what_the_tokenizer_decodes(name):
  """Of any text or ids, parted anywhere into prompt and answer, ended anywhere.

  Bytes at the end of a prompt are decoded anew with those of its answer.
  """
  tokenizer = TOKENIZERS[name]()
  ids_of = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=13)

  @hypothesis.settings(max_examples=150, deadline=None)
  @hypothesis.given(st.one_of(TEXTS.map(tokenizer.encode), ids_of), st.data())
  def check(ids, data):
    ids = [int(i) for i in ids]
    cut = data.draw(st.integers(0, len(ids)))
    before, whole = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
    stream, text = stream_of(tokenizer, ids[:cut]), ''
    known = before
    while not whole.startswith(known):
      known = known[:-1]
    for token in ids[cut:]:
      text += stream.push(token)
      assert whole.startswith(known + text)
    assert known + text + stream.finish() == whole

  check()


def test_neighbours_without_a_piece_are_whole():
  tokenizer = metaspace()
  ids = [4, *(5 + byte for byte in 'éñ😀'.encode()), 2]
  pieces = shown(stream_of(tokenizer, [2]), ids)
  assert [p for p in pieces if p] == ['c', 'éñ😀 a']


@pytest.mark.parametrize('make', TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_mark_at_the_end_of_a_prompt_is_not_repeated(make):
  tokenizer = make()
  prompt, whole = tokenizer.encode('a\ufffd'), tokenizer.encode('a\ufffd b')
  answer = whole[len(prompt) :].tolist()
  assert ''.join(shown(stream_of(tokenizer, prompt.tolist()), answer)) == ' b'


def test_a_stop_within_a_run_of_bytes_ends_at_once():
  """No token is drawn to see whether the run goes on."""
  tokenizer = metaspace()
  stream = stream_of(tokenizer, [2], ['\n'])
  assert stream.push(4) == 'c' and stream.push(5 + 10) == ''
  assert stream.stopped and stream.finish() == ''


def test_characters_of_several_tokens():
  assert shown(stream_of(BYTES, [65]), '€b'.encode()) == ['', '', '€', 'b', '']
  # Half of a character is all that came.
  assert shown(stream_of(BYTES, [65]), '€'.encode()[:2]) == ['', '', '\ufffd']
  # Four bytes that are no character are shown when they cannot become one.
  pieces = shown(stream_of(BYTES, [65]), b'\xff\xff\xff\xff\xffb')
  assert ''.join(pieces) == '\ufffd' * 5 + 'b'
  assert pieces[:4] == ['', '', '', '\ufffd']


def test_a_prompt_may_end_within_a_character():
  ids = list('x€y'.encode())
  assert shown(stream_of(BYTES, ids[:3]), ids[3:]) == ['€', 'y', '']


def test_spaces_between_tokens_are_kept():
  """Alone, each token would be decoded without its space."""
  tokenizer = metaspace()
  assert tokenizer.decode([2]) == 'a'
  euro = [5 + byte for byte in '€'.encode()]
  ids = [3, 4, 2, *euro, 2, 3, 0, 3]
  pieces = shown(stream_of(tokenizer, [2]), ids)
  assert pieces == [
    # The bytes with what ends their run: one more would make marks of all.
    ' b',
    'c',
    ' a',
    '',
    '',
    '',
    '€ a',
    ' b',
    '',
    ' b',
    '',
  ]
  assert 'a' + ''.join(pieces) == tokenizer.decode([2, *ids])


@pytest.mark.parametrize(
  'stops, text, expected',
  [
    (['the end'], 'it is the end of', 'it is '),
    (['end', 'the end'], 'it is the end of', 'it is '),
    (['aab'], 'aaab', 'a'),
    (['€€'], 'a€b€€c', 'a€b'),
    (['\n\n', 'Q:'], 'yes\nno\n\nQ:', 'yes\nno'),
    (['never'], 'nevne', 'nevne'),
    (['x'], 'x', ''),
  ],
)
def test_stops_end_the_text_before_them(stops, text, expected):
  """One that is in the prompt, or begins there, does not count."""
  prompt = BYTES.encode(stops[0] + stops[0][:1]).tolist()
  stream = stream_of(BYTES, prompt, stops)
  pieces = shown(stream, BYTES.encode(text))
  assert ''.join(pieces) == expected
  assert stream.stopped == (expected != text)


def test_the_beginning_of_a_stop_is_held_back():
  stream = stream_of(BYTES, [65], ['end', 'never'])
  pieces = shown(stream, BYTES.encode('anenx'))
  # After 'anen' it is 'en' that may go on.
  assert pieces == ['a', '', '', 'n', 'enx', '']
  assert shown(stream_of(BYTES, [65], ['end']), b'xen') == ['x', '', '', 'en']
