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
    key: the projection to keys; None: as `qkv`.
  """

  qkv: bool
  out: bool
  ffn: bool
  key: bool | None = None


def where(
  qkv: bool = False, out: bool = False, ffn: bool = False, key: bool = True
) -> Biases:
  """In the places named only (GPT-Neo: out, ffn; GPT-J: ffn).

  key=False leaves keys out of qkv (DeBERTa).
  """
  return Biases(qkv, out, ffn, qkv and key)


BIASES = {
  'all': lambda: Biases(True, True, True),
  'none': lambda: Biases(False, False, False),
  'where': where,
}
