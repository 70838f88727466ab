# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Text appears token by token, whole characters only, and ends at stops."""

import hypothesis
import pytest
import tokenizers
from hypothesis import strategies as st

from gpt_jax.data.tokenizers.hf import HfTokenizer
from gpt_jax.data.tokenizers.tokenizer import Bytes
from gpt_jax.decoding.text import Stream

BYTES = Bytes()


def shown(stream, ids):
  """What each token shows, until a stop, and the rest."""
  pieces = []
  for token in ids:
    pieces.append(stream.push(token))
    if stream.stopped:
      break
  return [*pieces, stream.finish()]


def metaspace():
  """LLaMA's kind: a space before the first word, bytes for what is unknown."""
  vocab = {'</s>': 0, '<unk>': 1, '▁a': 2, '▁b': 3, 'c': 4}
  vocab |= {f'<0x{byte:02X}>': 5 + byte for byte in range(256)}
  made = tokenizers.Tokenizer(
    tokenizers.models.BPE(vocab, [], unk_token='<unk>', byte_fallback=True)
  )
  made.decoder = tokenizers.decoders.Sequence(
    [
      tokenizers.decoders.Replace('▁', ' '),
      tokenizers.decoders.ByteFallback(),
      tokenizers.decoders.Fuse(),
      tokenizers.decoders.Strip(' ', 1, 0),
    ]
  )
  return HfTokenizer(
    {'hf_tokenizer.json': made.to_str().encode(), 'eos.json': b'"</s>"'}
  )


@hypothesis.given(st.text(max_size=17), st.text(max_size=7))
def test_characters_are_never_cut(text, prompt):
  stream = Stream(BYTES, BYTES.encode(prompt).tolist())
  pieces = shown(stream, BYTES.encode(text))
  assert ''.join(pieces) == text
  # Each character with its last byte; U+FFFD is what a cut one would be.
  if '\ufffd' not in text:
    assert '\ufffd' not in ''.join(pieces)
    assert [p for p in pieces if p] == list(text)


def test_characters_of_several_tokens():
  assert shown(Stream(BYTES, [65]), '€b'.encode()) == ['', '', '€', 'b', '']
  # Half of a character is all that came.
  assert shown(Stream(BYTES, [65]), '€'.encode()[:2]) == ['', '', '\ufffd']
  # Four bytes that are no character are shown when they cannot become one.
  pieces = shown(Stream(BYTES, [65]), b'\xff\xff\xff\xff\xffb')
  assert ''.join(pieces) == '\ufffd' * 5 + 'b'
  assert pieces[:4] == ['', '', '', '\ufffd']


def test_a_prompt_may_end_within_a_character():
  ids = list('x€y'.encode())
  assert shown(Stream(BYTES, ids[:3]), ids[3:]) == ['€', 'y', '']


def test_spaces_between_tokens_are_kept():
  """Alone, each token would be decoded without its space."""
  tokenizer = metaspace()
  assert tokenizer.decode([2]) == 'a'
  euro = [5 + byte for byte in '€'.encode()]
  ids = [3, 4, 2, *euro, 2, 3, 0, 3]
  pieces = shown(Stream(tokenizer, [2]), ids)
  assert pieces == [
    *(' b', 'c', ' a', '', '', '€', ' a', ' b', '', ' b', ''),
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
  stream = Stream(BYTES, prompt, stops)
  pieces = shown(stream, BYTES.encode(text))
  assert ''.join(pieces) == expected
  assert stream.stopped == (expected != text)


def test_the_beginning_of_a_stop_is_held_back():
  stream = Stream(BYTES, [65], ['end', 'never'])
  pieces = shown(stream, BYTES.encode('anenx'))
  # After 'anen' it is 'en' that may go on.
  assert pieces == ['a', '', '', 'n', 'enx', '']
  assert shown(Stream(BYTES, [65], ['end']), b'xen') == ['x', '', '', 'en']
