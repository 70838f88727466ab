# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet's rows of two halves, read forwards and backwards."""

import functools

import numpy as np

from gpt_jax.core.rows import row_makers
from gpt_jax.core.rows.rows import Keys
from gpt_jax.core.tokens.mixture import Place
from tests.support.sentence_store import CLS, SEP, corpus, store_of

L = 23  # 11 reused tokens, and A and B of 9


@functools.cache
def store():
  """Tokens are numbered; a sentence ends where a gap would be of 1 only."""
  return store_of(corpus(60), 'halves')


def read(numbers, epoch=0):
  maker = row_makers.load(store(), L)
  rows = np.array(numbers)
  keys = Keys(3, rows + 1000 * epoch, rows, np.full(len(rows), epoch))
  return maker, maker.read([Place('', 0, n) for n in numbers], keys)


def pieces(tokens, types, back):
  """The first half, A and B, checked for what stands around them."""
  if back:
    tokens, types = tokens[::-1], types[::-1]
  assert tokens[-1] == CLS and types[-1] == 2
  ends = np.flatnonzero(tokens == SEP)
  assert len(ends) == 2 and ends[1] == L - 2
  a, b = tokens[11 : ends[0]], tokens[ends[0] + 1 : -2]
  expected = [0] * (ends[0] + 1) + [1] * (len(b) + 1) + [2]
  np.testing.assert_array_equal(types, expected)
  found = [tokens[:11], a, b]
  return [x[::-1] for x in found] if back else found


def test_rows():
  """[reused, A, SEP, B, SEP, CLS], or the same from the right to the left."""
  maker, rows = read(range(40))
  stored = store().tokens(0, len(store())).astype(np.int32)
  ends = {*store().sentence_ends.tolist()}
  assert maker.num_rows == (len(stored) - 9) // 11
  assert maker.tokens == {'': 23 * maker.num_rows}
  follows, cuts = 0, 0
  for n in range(40):
    back = n % 2 == 1
    first, a, b = pieces(rows.tokens[n], rows.token_types[n], back)
    assert len(a) + len(b) == 9 and len(a) and len(b)
    text = stored[11 * n : 11 * n + 20]
    joined = [b, a, first] if back else [first, a, b]
    if rows.pair[n]:
      # B is somewhere else; A is next to the first half all the same.
      at = slice(9 - len(a), None) if back else slice(0, 11 + len(a))
      whole = np.concatenate(joined[1:] if back else joined[:2])
      np.testing.assert_array_equal(whole, text[at])
    else:
      np.testing.assert_array_equal(np.concatenate(joined), text)
      follows += 1
    cut = 11 * n + (len(text) - 11 - len(a) if back else 11 + len(a))
    cuts += cut in ends
    reused = rows.reused[n][::-1] if back else rows.reused[n]
    np.testing.assert_array_equal(np.flatnonzero(reused), range(11))
  assert 10 <= follows <= 30  # of 40, a half of them
  assert cuts > 25  # where a sentence ends within A and B
  np.testing.assert_array_equal(rows.special, (rows.tokens == SEP) | (rows.tokens == CLS))
  assert rows.real.all()


def test_choices_are_a_function_of_the_row():
  _, rows = read(range(20))
  _, some = read([7, 4])
  np.testing.assert_array_equal(some.tokens, rows.tokens[[7, 4]])
  _, later = read(range(20), epoch=1)
  assert np.any(later.tokens != rows.tokens)
