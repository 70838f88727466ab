# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa's attention by content and by distance, apart from each other.

He et al. 2020, section 3.1, equations 2 to 4; with buckets and shared
projections as released as version 2.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from gpt_jax.nn.dense import Projections, dense, parameter
from gpt_jax.nn.dot_product import float32_einsum
from gpt_jax.nn.init import Initializer
from gpt_jax.nn.relative import Asked, moved_left
from gpt_jax.spec import UsageError


class DistanceTable(nn.Module):
  """P: a vector for each distance or bucket, which all layers share."""

  num_rows: int
  normed: bool
  d_model: int
  norm: Callable[..., nn.Module]
  initializer: Initializer
  dtype: Any

  @nn.compact
  def __call__(self) -> jax.Array:
    """[N, D]."""
    shape, axes = (self.num_rows, self.d_model), ('buckets', 'embed')
    table = parameter(self, 'embedding', self.initializer, shape, axes)
    table = table.astype(self.dtype)
    return self.norm(name='norm')(table) if self.normed else table


class Disentangled(nn.Module):
  """Content to content, content to position, position to content.

  score_ij = (Qc_i Kc_j + Qc_i Kr_d(i, j) + Kc_j Qr_d(i, j)) / sqrt(K n), where
  n of the terms are on, Kr = P W_kr and Qr = P W_qr. The paper's third term
  has d(j, i) for a product that belongs to key j and query i; released code
  takes the row of P that is here. A module of `Position.terms`.

  Attributes:
    max_distance: k; longer distances count as the longest.
    buckets: see `row_of`.
    c2c: whether the first term is on; the others likewise.
    c2p: see above.
    p2c: see above.
    shared: whether W_kr and W_qr are the layer's projections of content.
    projections: the layer's.
  """

  max_distance: int
  buckets: int
  c2c: bool
  c2p: bool
  p2c: bool
  shared: bool
  projections: Projections

  def setup(self):
    """Creates W_kr and W_qr where they are not shared."""
    to = self.projections
    if self.c2p and not self.shared:
      self.relative_key = dense(to, to.num_heads, 'heads', bias=to.key_bias)
    if self.p2c and not self.shared:
      self.relative_query = dense(to, to.num_heads, 'heads')

  def __call__(self, asked: Asked) -> tuple[jax.Array, jax.Array | None]:
    """See `Asked`."""
    table_ND = asked.context.table_ND
    if asked.cache is not None or table_ND is None:
      raise UsageError(
        'model.position=deberta: knows whole rows only; it has no caches, and '
        'no encoder-decoders: set model.num_encoder_layers=0'
      )
    terms = self.c2c + self.c2p + self.p2c
    q_BLHK, L = asked.q_BLHK * terms**-0.5, asked.q_BLHK.shape[1]
    distances = np.arange(L - 1, -L, -1)
    row = row_of(distances, self.max_distance, self.buckets)
    rows_1ND = jnp.take(table_ND, row, axis=0)[None]
    bias = None
    if self.c2p:
      r_NHK = self._keys(rows_1ND)[0]
      c2p_BHLN: Any = float32_einsum('BLHK,NHK->BHLN', q_BLHK, r_NHK)
      bias = moved_left(c2p_BHLN)[..., :L]
    if self.p2c:
      r_NHK = self._queries(rows_1ND)[0] * terms**-0.5
      # Of a key, the distances from queries count the other way.
      k_BLHK = self._all_heads(asked.k_BMGK)
      p2c_BHLN: Any = float32_einsum('BLHK,NHK->BHLN', k_BLHK, r_NHK[::-1])
      p2c = jnp.swapaxes(moved_left(p2c_BHLN)[..., :L], -1, -2)
      bias = p2c if bias is None else bias + p2c
    if not self.c2c:
      q_BLHK = jnp.zeros_like(q_BLHK)
    return q_BLHK, None if bias is None else bias * asked.scale

  def _keys(self, rows_1ND: jax.Array) -> jax.Array:
    """Kr, [1, N, H, K]."""
    if self.shared:
      return self._all_heads(self.projections.keys(rows_1ND))
    return self.projections.heads(self.relative_key(rows_1ND))

  def _queries(self, rows_1ND: jax.Array) -> jax.Array:
    """Qr, [1, N, H, K]."""
    if self.shared:
      return self.projections.queries(rows_1ND)
    return self.projections.heads(self.relative_query(rows_1ND))

  def _all_heads(self, k_BMGK: jax.Array) -> jax.Array:
    """Keys for each head of the queries."""
    to = self.projections
    return jnp.repeat(k_BMGK, to.num_heads // to.num_kv_heads, axis=2)


def num_rows(max_distance: int, buckets: int) -> int:
  """Of P."""
  return 2 * (buckets or max_distance)


def row_of(distance: np.ndarray, max_distance: int, buckets: int) -> np.ndarray:
  """The row of P for distances i - j from query i to key j.

  0 for i - j <= -k, 2 k - 1 for i - j >= k, else i - j + k (equation 3), where
  k is `max_distance`. With buckets above 0 there are so many on each side: half
  of them hold one distance each, the others grow logarithmically up to
  `max_distance` (released as version 2).
  """
  span = buckets or max_distance
  if buckets:
    distance = _bucketed(distance, max_distance, buckets // 2)
  return np.clip(distance + span, 0, 2 * span - 1)


def _bucketed(
  distance: np.ndarray, max_distance: int, middle: int
) -> np.ndarray:
  """Distances above `middle`, as they are counted."""
  # In float32, as what was trained with them.
  far = np.float32(np.maximum(np.abs(distance), middle)) / np.float32(middle)
  longest = np.float32(math.log((max_distance - 1) / middle))
  far = np.ceil(np.log(far) / longest * (middle - 1)) + middle
  far = np.sign(distance) * far.astype(np.int64)
  return np.where(np.abs(distance) <= middle, distance, far)
