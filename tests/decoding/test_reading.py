# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows are kept, and what of a prompt they begin."""

import numpy as np
import pytest

from gpt_jax.core.nn.kv_cache import KVCache
from gpt_jax.decoding import programs
from gpt_jax.decoding.reading import PrefixCache


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(programs, 'BLOCK', 3)


def caches(name):
  """Told apart by a number."""
  return (KVCache(np.array([name]), np.array([name])),)


def found(kept, prompt):
  """The number of a prompt's beginning, and its length."""
  prefix = kept.find(prompt)
  if prefix is None:
    return None
  assert prefix.ids == prompt[: len(prefix.ids)]
  return int(prefix.caches[0].key_BGKM[0]), len(prefix.ids)


def test_the_longest_beginning_is_found():
  kept = PrefixCache(2)
  kept.add([1, 2, 3, 4, 5, 6, 7], caches(1))
  kept.add([1, 2, 3, 9, 9, 9], caches(2))
  assert found(kept, [1, 2, 3, 4, 5, 6, 8]) == (1, 6)
  assert found(kept, [1, 2, 3, 9, 9, 9, 9, 9]) == (2, 6)
  # Its last token is read anyhow: it gives the first draw.
  assert found(kept, [1, 2, 3, 4, 5, 6]) == (1, 3)
  assert found(kept, [1, 2, 3]) is None
  assert found(kept, [1, 2, 4, 4, 5, 6, 7]) is None


def test_the_oldest_goes_and_what_went_on():
  kept = PrefixCache(2)
  kept.add([1] * 4, caches(1))
  kept.add([2] * 4, caches(2))
  kept.add([1] * 7, caches(3))  # the first, a turn later
  assert found(kept, [1] * 9) == (3, 6)
  assert found(kept, [2] * 9) == (2, 3)
  kept.add([4] * 3, caches(4))
  assert found(kept, [2] * 9) is None
  assert found(kept, [1] * 9) == (3, 6)


@pytest.mark.parametrize('most, length, wanted', [(0, 9, False), (1, 2, False), (1, 3, True)])
def test_less_than_a_block_is_not_kept(most, length, wanted):
  assert PrefixCache(most).wants([5] * length) == wanted
