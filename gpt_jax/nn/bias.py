# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which dense layers of a block have a bias."""

from typing import NamedTuple


class Biases(NamedTuple):
  """One answer for each place.

  Attributes:
    qkv: the projections to queries, keys and values.
    out: the projection after attention.
    ffn: the feed-forward layer.
  """

  qkv: bool
  out: bool
  ffn: bool


def where(qkv: bool = False, out: bool = False, ffn: bool = False) -> Biases:
  """In the places named only (GPT-Neo: out, ffn; GPT-J: ffn)."""
  return Biases(qkv, out, ffn)


BIASES = {
  'all': lambda: Biases(True, True, True),
  'none': lambda: Biases(False, False, False),
  'where': where,
}
