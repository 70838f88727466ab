# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Detokenizers, which lose nothing."""

import pathlib

import numpy as np
import pytest

from gpt_jax.tasks.detokenize import RULES, detokenize, tokenize

SHARED = pathlib.Path(__file__).parents[3] / 'shared/data'


@pytest.mark.parametrize(
  ('style', 'text', 'expected'),
  [
    (
      'wikitext',
      ' = = War = = \n \n He paid 1 @,@ 000 @.@ 5 ( " half @-@ price " ) ; '
      "don 't , at 9 : 30 / 10 , the Smiths ' : 50 % . \n",
      '== War ==\n\nHe paid 1,000.5 ("half-price"); don\'t, at 9: 30/10, the Smiths\': 50%.\n',
    ),
    (
      'ptb',
      "`` Well , '' he said , `` I did n't -LRB- quite -RRB- see Mr. Bob 's dogs ' XXXXX ... ''",
      '"Well," he said, "I didn\'t (quite) see Mr. Bob\'s dogs\' XXXXX..."',
    ),
    (
      'ptb',
      " the u.s. said it was n't $ N billion for <unk> 's \n",
      "the u.s. said it wasn't $N billion for <unk>'s\n",
    ),
  ],
)
def test_texts_as_they_were_written(style, text, expected):
  assert detokenize(style, text).text == expected


MIXED = """
a B 's ' '' `` ` " n't N't can't U.S. . .. ... , @-@ @,@ @.@ - --
a-b 1 1.5 1,5 = == === ( ) -LRB- -RRB- [ ] ; : $ % / a/b Mr.
's, (a) "a {x} don't 'Tis #
"""


@pytest.mark.parametrize('style', RULES)
def test_whatever_is_joined_is_split_again(style):
  """Also where words and artefacts are mixed at will."""
  words = MIXED.split()
  rng = np.random.default_rng(0)
  lines = [' '.join(rng.choice(words, n)) for n in rng.integers(0, 13, 499)]
  # In small parts, too: what a text keeps depends on all of its words.
  for text in ('\n'.join(lines), *lines, '=' * 4999, '.' * 4999):
    found = detokenize(style, text)
    expected = [line.split() for line in text.split('\n')]
    assert tokenize(style, found.text, found.kept) == expected


def test_wikitext_comes_back():
  path = SHARED / 'wikitext2' / 'test.raw.txt'
  if not path.exists():
    pytest.skip(f'{path} is not there')
  text = path.read_text(encoding='utf-8')
  found = detokenize('wikitext', text)
  expected = [line.split() for line in text.split('\n')]
  assert tokenize('wikitext', found.text, found.kept) == expected
  assert sum(map(len, expected)) + text.count('\n') == 245_569
  assert len(found.kept) < 120  # nearly all of them abbreviations
  for artefact in (' , ', ' . ', ' @-@ ', ' @,@ ', " 's "):
    assert found.text.count(artefact) < text.count(artefact) / 100
