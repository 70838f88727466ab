# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A bias on the scores from products with vectors of distances.

Transformer-XL, XLNet and DeBERTa have it. Some backends take it as it is: it is
much smaller than the scores.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.attend import Request, float32_einsum


class Products(NamedTuple):
  """Products with vectors of distances.

  Attributes:
    x_BLHK: a vector of each query, or of each key.
    table_NHK: a vector of each distance, the key's place minus the query's.
      Vector n is for the distance n + 1 - M, for M keys; N is M + L - 1, or M
      if no query sees a later key.
  """

  x_BLHK: jax.Array
  table_NHK: jax.Array

  def in_order(self, num_columns: int) -> jax.Array:
    """The products of each x with the distances to all others, [B, H, L, M].

    Args:
      num_columns: M. The x stand where the last L of them do.
    """
    products: jax.Array = float32_einsum('BLHK,NHK->BHLN', *self)
    return moved_left(products)[..., :num_columns]

  def at(self, places_BL: jax.Array, num_keys: int) -> jax.Array:
    """The products of each x at a place among the keys, [B, H, L, M]."""
    products: jax.Array = float32_einsum('BLHK,NHK->BHLN', *self)
    first_BL = num_keys - 1 - places_BL
    index_BLM = first_BL[..., None] + jnp.arange(num_keys)[None, None]
    return jnp.take_along_axis(products, index_BLM[:, None], axis=-1)


class ByKind(NamedTuple):
  """Numbers of a query for keys of its own kind and for all others.

  Attributes:
    numbers_BHLS: float32 [B, H, L, 2].
    of_queries_BL: int, the queries' kinds.
    of_keys_BM: int, the keys'.
  """

  numbers_BHLS: jax.Array
  of_queries_BL: jax.Array
  of_keys_BM: jax.Array

  def whole(self) -> jax.Array:
    """The number of each pair, [B, H, L, M]."""
    other_BLM = self.of_queries_BL[:, :, None] != self.of_keys_BM[:, None]
    same_BHL1, other_BHL1 = jnp.split(self.numbers_BHLS, 2, axis=-1)
    return jnp.where(other_BLM[:, None], other_BHL1, same_BHL1)

  def of_some(self, part: slice) -> 'ByKind':
    """The numbers of some queries."""
    return self._replace(
      numbers_BHLS=self.numbers_BHLS[:, :, part], of_queries_BL=self.of_queries_BL[:, part]
    )


class DistanceProducts(NamedTuple):
  """A bias on the scores: products with vectors of distances.

  Query i and key j have scale * (x_i r_(j - i) + y_j s_(j - i) + n_ij), with
  the scale of the scores. The queries stand where the last L keys do, or at the
  places of their request.

  Attributes:
    of_queries: x and r; None: zero.
    of_keys: y and s; None: zero.
    by_kind: n; None: zero.
  """

  of_queries: Products | None = None
  of_keys: Products | None = None
  by_kind: ByKind | None = None

  # What a backend calls it that takes it as it is: see `backends.WHY`.
  feature = 'products'

  def of_some(self, part: slice) -> 'DistanceProducts':
    """The bias of some queries, if keys have no products of their own."""
    given, kinds = self.of_queries, self.by_kind
    assert given is not None and self.of_keys is None
    return DistanceProducts(
      given._replace(x_BLHK=given.x_BLHK[:, part]),
      by_kind=None if kinds is None else kinds.of_some(part),
    )

  def whole(self, request: Request) -> jax.Array:
    """The bias of each pair of a request, [B, H, L, M]."""
    L, M = request.q_BLHK.shape[1], request.k_BLGK.shape[1]
    parts = []
    if self.of_queries is not None:
      if request.places_BL is None:
        parts.append(self.of_queries.in_order(M))
      else:
        parts.append(self.of_queries.at(request.places_BL, M))
    if self.of_keys is not None:
      x_BMHK, table_NHK = self.of_keys
      # From a key's side, distances have the opposite sign.
      of_keys = Products(x_BMHK, table_NHK[::-1]).in_order(L)
      parts.append(jnp.swapaxes(of_keys, -1, -2))
    if self.by_kind is not None:
      parts.append(self.by_kind.whole())
    return functools.reduce(jnp.add, parts) * request.scale


def moved_left(x_BHLN: jax.Array) -> jax.Array:
  """Shifts row i left by L - 1 - i: from distances to keys.

  Of N = M distances M - 1, ..., 1, 0 column j becomes that of key j from query
  M - L + i; what wraps around is later, and hidden. Of N = M + L - 1 distances
  M - 1, ..., 1 - L column j < M does, and nothing that is read wraps around.
  """
  B, H, L, N = x_BHLN.shape
  x = jnp.pad(x_BHLN, ((0, 0), (0, 0), (0, 0), (1, 0)))
  return x.reshape(B, H, N + 1, L)[:, :, 1:].reshape(B, H, L, N)
