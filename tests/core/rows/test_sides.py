# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sources, targets and decoder inputs in ids."""

import numpy as np

from gpt_jax.core.rows import sides
from gpt_jax.core.tokenizers import special

NAMES = {'</s>': 2, '<s>': 0, '<pad>': 1, '<mask>': 9}


def test_of_a_tokenizer_of_ours():
  """The end of a document fills rows, and starts, where no token is for it."""
  found = special.of({}, 2, {})
  assert sides.source_ids([5, 6], found).tolist() == [5, 6, 2]
  assert sides.target_ids([5, 6, 2], found).tolist() == [5, 6, 2]
  assert sides.target_ids([], found).tolist() == [2]
  assert sides.start_id('pad', found) == sides.start_id('eos', found) == 2
  padded = special.of({}, 2, {'<pad>': 1})
  assert sides.start_id('pad', padded) == 1


def test_of_barts():
  contents = b'{"start": [0], "first": 0, "stop": [2], "pad": 1, "names": {}}'
  found = special.of({special.SPECIAL: contents}, 2, NAMES)
  assert sides.source_ids([5, 6], found).tolist() == [0, 5, 6, 2]
  assert sides.target_ids([5, 6], found).tolist() == [5, 6, 2]
  assert sides.start_id('eos', found) == 2
  assert sides.start_id('pad', found) == 1


def test_inputs_are_one_behind():
  targets = np.int32([[3, 4, 2, 5, 2, 0], [6, 2, 0, 0, 0, 0]])
  found = sides.decoder_inputs(targets, 9)
  assert found.tolist() == [[9, 3, 4, 2, 5, 2], [9, 6, 2, 0, 0, 0]]
  positions = np.int32([[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0]])
  found = sides.decoder_inputs(targets, 9, positions)
  assert found.tolist() == [[9, 3, 4, 9, 5, 9], [9, 6, 9, 9, 9, 9]]
