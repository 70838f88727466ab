# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds of `Tokenizer.encode_located`, whatever the tokenizer."""

import re

import numpy as np


def check(made, texts):
  """Ids are those of `encode_batch`, and words stop where they stop.

  Args:
    made: a tokenizer.
    texts: some with several words.
  """
  found = made.encode_located(texts)
  compared = 0
  for text, (ids, stops), plain in zip(
    texts, found, made.encode_batch(texts), strict=True
  ):
    np.testing.assert_array_equal(ids, plain)
    assert stops.shape == ids.shape and np.all(np.diff(stops) >= 0)
    assert np.all((stops > 0) & (stops <= len(text)))
    for word in re.finditer(r'[a-z]+\b(?! ?[^a-z ])', text):
      alone = made.encode(text[: word.end()])
      if np.array_equal(alone, ids[: len(alone)]):
        assert np.sum(stops <= word.end()) == len(alone), word
        compared += 1
  assert compared > 2
