# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of rows in plain Python is that of Grain's cipher, which is written in C++."""

import random

import pytest

from gpt_jax.core.tokens.mixture import Order, Phase, Shuffle
from gpt_jax.plain import order


@pytest.mark.parametrize(
  'size',
  [1, 2, 31, 9973, 2**15, 2**15 + 1, 2**16, 2**16 + 1, 2**16 + 2, 2**18 + 1, 70_001, 2**31 + 11],
)
def test_any_place_of_a_permutation(size):
  rng = random.Random(size)
  expected = Shuffle(size, 5)
  for index in (0, size - 1, size, *(rng.randrange(3 * size) for _ in range(17))):
    assert order.shuffled(index, size, '5') == expected[index]


def test_a_permutation_has_every_row_once_and_each_epoch_another():
  first, second = ([order.shuffled(e * 97 + i, 97, '0') for i in range(97)] for e in range(2))
  assert sorted(first) == sorted(second) == [*range(97)]
  assert first != second


@pytest.mark.parametrize('of_tokens', [False, True])
def test_a_mixture(of_tokens, monkeypatch):
  weights, sizes = {'b': 0.7, 'a': 0.2, 'c': 0.1}, {'a': 4_001, 'b': 2_999, 'c': 12_007}
  tokens = {'a': 30_011, 'b': 20_011, 'c': 130_003}
  monkeypatch.setattr(order, 'WEIGHTS', weights)
  monkeypatch.setattr(order, 'SHARES_OF_TOKENS', of_tokens)
  shares = 'tokens' if of_tokens else 'rows'
  phase = Phase(weights, 0, 'without_replacement', shares)
  expected = Order([phase], sizes, length=11, seed=order.SEED, tokens=tokens)
  for index in (*range(53), 9_999, 10_000, 25_003):
    place = expected.place(index)
    assert order.mixture({'row_tokens': tokens}, sizes, index) == (place.source, place.row)
