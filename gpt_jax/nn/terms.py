# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Positions that score by the queries and keys themselves.

Transformer-XL, XLNet and DeBERTa add products of queries or keys with vectors
of distances (or of segments) to the scores. `Position.terms` makes a module
for each layer, from its `Projections`, that is called with what is below:
`relative.TransformerXL`, `disentangled.Disentangled`. Its parameters stand
beside the projections'.
"""

from typing import NamedTuple

import jax

from gpt_jax.nn.context import Cache, Context, KVCache
from gpt_jax.nn.masks import Pattern


class Asked(NamedTuple):
  """Queries [B, L, H, K] and keys [B, M, G, K], and where they stand.

  A module of `Position.terms` is called with an `Asked` alone and returns the
  queries, changed or not, and a bias on the scores [B or 1, H, L, M] or None:
  score = scale * queries' keys + bias, so that the bias is already scaled.

  Attributes:
    q_BLHK: queries.
    k_BMGK: keys, those of a memory first; of the new tokens alone where the
      others are in a `KVCache`.
    context: positions, visibility, whatever else the layers share.
    cache: a `KVCache`'s slots, M of them, are the positions 0, 1, 2, ...;
      otherwise the queries stand where the last L keys do.
    pattern: which keys are seen.
    layer: index of the layer, from 0.
    scale: of the products of queries and keys.
    d_model: width of the hidden states.
  """

  q_BLHK: jax.Array
  k_BMGK: jax.Array
  context: Context
  cache: Cache | None
  pattern: Pattern
  layer: jax.Array
  scale: float | jax.Array
  d_model: int

  @property
  def num_keys(self) -> int:
    """M."""
    if isinstance(self.cache, KVCache):
      return self.cache.num_slots
    return self.k_BMGK.shape[1]
