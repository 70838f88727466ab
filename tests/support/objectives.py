# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an objective makes its batches from: a tokenizer, and keys of rows."""

from types import SimpleNamespace

import numpy as np

from gpt_jax.core.rows.rows import Keys
from tests.support import tiny

PAD, EOS, MASK, CLS, SEP = range(5)


class Words:
  """A tokenizer, as far as objectives ask, of which odd ids begin a word."""

  special = SimpleNamespace(
    **{'pad_id': PAD, 'eos_id': EOS, 'mask_id': MASK, 'cls_id': CLS},
    **{'sep_id': SEP, 'prompt_start': ()},
  )

  def __init__(self, vocab_size: int = tiny.V):
    self.vocab_size = vocab_size

  def word_starts(self, ids: np.ndarray) -> np.ndarray:
    return ids % 2 == 1


def keys(count: int, first: int = 0, *, seed: int = 3, epoch: int = 0) -> Keys:
  """Keys of `count` rows of a store from `first` on, in epochs of `count`."""
  numbers = np.arange(first, first + count)
  return Keys(seed, numbers + epoch * count, numbers, np.full(count, epoch))
