# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests to the flash kernel: which it serves, and rows as it reads them.

On each device rows and heads are filled up to whole blocks, heads come first,
and queries at places of their own become a row.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import ByDistance, Request
from gpt_jax.core.nn.distance_products import ByKind, DistanceProducts, Products
from gpt_jax.core.nn.flash_distances import SUBLANES, strips, table
from gpt_jax.core.nn.flash_kernel import PADDING, Operands, Static, attend_blocks, may_see
from gpt_jax.core.nn.kernels import LANES, for_devices

# The largest block of queries and of keys.
BLOCK = 512
# Queries of a row whose gradient fits in the vector memory, of heads of 128 in
# bfloat16.
LONGEST = 8192
# The same with a table of vectors of distances, and keys of a memory counted.
LONGEST_PRODUCTS = 2048
# Shorter rows are filled up to LANES: XLA computes fewer scores.
SHORTEST = 64


def obstacle(request: Request, parts: int = 1) -> str | None:
  """Why the kernel cannot serve the rows and heads, or None.

  Args:
    parts: of the queries of each row, on different devices.
  """
  length, _, head_size = request.q_BLHK.shape[1:]
  length //= parts
  num_keys = request.k_BLGK.shape[1]
  if request.places_BL is not None:
    if request.visibility.order is None:  # places may not differ
      return 'the rows of a second stream have no order'
    length = num_keys
  if min(length, num_keys) < SHORTEST:
    return f'rows of {min(length, num_keys)} tokens are shorter than {SHORTEST}'
  size = request.q_BLHK.dtype.itemsize // 2 or 1
  longest, most, what = LONGEST, length, 'the gradient of a head'
  if isinstance(request.bias, DistanceProducts):
    tables = sum(x is not None for x in request.bias[:2])
    longest, most = LONGEST_PRODUCTS // tables, max(length, num_keys)
    what = 'the vectors of their distances'
  longest //= -(-head_size // LANES) * size
  if most > longest:
    return (
      f'rows of {most} tokens are longer than {longest}: {what} would not fit in the vector memory'
    )
  return None


def attend(request: Request, *, block: int, interpret: bool) -> jax.Array:
  """Attention of a request without `obstacle`: [B, L, H, K]."""
  if request.places_BL is not None:
    return _from_places(request, block=block, interpret=interpret)
  return _in_order(request, None, block=block, interpret=interpret)


def _from_places(request: Request, **how: Any) -> jax.Array:
  """`attend` for queries at places of their own.

  They become rows with a query at each key, of which others see nothing: the
  kernel knows distances by where a query is in its row.
  """
  places_BL, seen, bias = request.places_BL, request.visibility, request.bias
  assert places_BL is not None and seen.order is not None
  assert isinstance(bias, DistanceProducts) and bias.of_queries is not None
  (B, L), M = places_BL.shape, request.k_BLGK.shape[1]

  def spread(x, blank=0):
    def of_row(x, places_L):
      row = jnp.full((M, *x.shape[1:]), blank, x.dtype)
      return row.at[places_L].set(x, unique_indices=True)

    return jax.vmap(of_row)(x, places_BL)

  lowest = jnp.iinfo(jnp.int32).min
  order = seen.order._replace(bounds_BL=spread(seen.order.bounds_BL, lowest))
  x_BLHK, kinds = bias.of_queries.x_BLHK, bias.by_kind
  if kinds is not None:
    numbers = spread(kinds.numbers_BHLS.swapaxes(1, 2)).swapaxes(1, 2)
    kinds = ByKind(numbers, spread(kinds.of_queries_BL), kinds.of_keys_BM)
  bias = bias._replace(of_queries=bias.of_queries._replace(x_BLHK=spread(x_BLHK)), by_kind=kinds)
  numbers_BL = jnp.broadcast_to(request.first + jnp.arange(L), (B, L))
  whole = request._replace(
    q_BLHK=spread(request.q_BLHK), visibility=seen._replace(order=order), bias=bias, places_BL=None
  )
  numbers_BL = spread(numbers_BL) if request.dropout is not None else None
  y_BMHK = _in_order(whole, numbers_BL, **how)
  return jax.vmap(lambda y, places_L: y[places_L])(y_BMHK, places_BL)


def _in_order(
  request: Request, numbers_BL: jax.Array | None, *, block: int, interpret: bool
) -> jax.Array:
  """`attend` for queries where the last keys are; numbers as in `Operands`."""
  q_BLHK, k_BLGK, v_BLGK = for_devices(request, layout.num_parts('heads'))
  pattern, seen, dropout = request.pattern, request.visibility, request.dropout
  strip_HD = of_queries = of_keys = by_kind = None
  if isinstance(request.bias, ByDistance):
    strip_HD = request.bias.strip_HD
  elif isinstance(request.bias, DistanceProducts):
    of_queries, of_keys = (
      x and Products((x.x_BLHK * request.scale).astype(x.x_BLHK.dtype), x[1])
      for x in request.bias[:2]
    )
    if request.bias.by_kind is not None:
      by_kind = request.bias.by_kind
      numbers_BH2L = (by_kind[0] * request.scale).swapaxes(2, 3)
      by_kind = by_kind._replace(numbers_BHLS=numbers_BH2L)
  else:
    assert request.bias is None
  hashes_BH = None
  if dropout is not None:
    hashes_BH = dropout.of_heads(q_BLHK.shape[2])
    hashes_BH = jax.lax.bitcast_convert_type(hashes_BH, jnp.int32)
  if request.keys is None:
    segments_BM, real_BM = seen.segments_BL, seen.key_mask_BM
  else:
    segments_BM, real_BM = request.keys.segments, request.keys.real
  of_queries_BL = None if segments_BM is None else seen.segments_BL
  if seen.order is not None:
    of_queries_BL, segments_BM = seen.order
  run = functools.partial(
    _per_device,
    causal=pattern.causal and request.keys is None,
    window=pattern.window,
    softcap=request.softcap,
    before=request.num_before,
    ordered=seen.order is not None,
    rate=0.0 if dropout is None else dropout.rate,
    block=block,
    interpret=interpret,
  )
  heads, tokens = ('batch', None, 'heads', None), ('batch', None)
  products: Any = Products(heads, (None, 'heads', None))  # pyright: ignore
  axes = (
    heads,
    heads,
    heads,
    ('heads', None),
    ('batch', 'heads'),
    ('batch',),
    tokens,
    tokens,
    tokens,
    *(x and products for x in (of_queries, of_keys)),
    by_kind and ByKind(('batch', 'heads', None, None), tokens, tokens),  # pyright: ignore
    tokens,
  )
  return layout.per_device(run, axes, heads)(
    q_BLHK,
    k_BLGK,
    v_BLGK,
    strip_HD,
    hashes_BH,
    seen.prefix_B,
    of_queries_BL,
    segments_BM,
    real_BM,
    of_queries,
    of_keys,
    by_kind,
    numbers_BL,
  )


def in_parts(request: Request, *, block: int, interpret: bool) -> Any:
  """Attention on a device that has a part of the queries, and all keys.

  A function of queries, keys, values, prefixes, hashes of rows and heads, and
  the tokens of queries and keys (`masks.Tokens`), which are in order.
  """
  pattern, dropout = request.pattern, request.dropout

  def local(q_BLHK, k_BMGK, v_BMGK, prefix_B, hashes_BH, query, key):
    if hashes_BH is not None:
      hashes_BH = jax.lax.bitcast_convert_type(hashes_BH, jnp.int32)
    return _per_device(
      q_BLHK,
      k_BMGK,
      v_BMGK,
      None,
      hashes_BH,
      prefix_B,
      query.segments,
      key.segments,
      key.real,
      None,
      None,
      None,
      None,
      jnp.stack([query.places[0, 0], key.places[0, 0]]),
      causal=pattern.causal,
      window=pattern.window,
      softcap=request.softcap,
      before=0,
      ordered=False,
      rate=0.0 if dropout is None else dropout.rate,
      block=block,
      interpret=interpret,
    )

  return local


def _per_device(
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  strip_HD: jax.Array | None,
  hashes_BH: jax.Array | None,
  prefix_B: jax.Array | None,
  query_ids_BL: jax.Array | None,
  key_ids_BM: jax.Array | None,
  real_BM: jax.Array | None,
  of_queries: Products | None,
  of_keys: Products | None,
  by_kind: ByKind | None,
  numbers_BL: jax.Array | None,
  firsts: jax.Array | None = None,
  *,
  block: int,
  **static: Any,
) -> jax.Array:
  """Fills rows and heads up to whole blocks, heads first: [B, L, H, K]."""
  (B, L), M = q_BLHK.shape[:2], k_BMGK.shape[1]
  blocks = block_size(L, block), block_size(M, block)
  more = tuple(-n % size for n, size in zip((L, M), blocks, strict=True))
  if real_BM is not None or more[1]:
    if key_ids_BM is None:
      key_ids_BM = jnp.zeros((B, M), jnp.int32)
    if real_BM is not None:
      key_ids_BM = jnp.where(real_BM, key_ids_BM, PADDING)
    key_ids_BM = jnp.pad(key_ids_BM, ((0, 0), (0, more[1])), constant_values=PADDING)

  def filled(x_BL: Any, more: int) -> Any:
    return x_BL if x_BL is None else jnp.pad(x_BL, ((0, 0), (0, more)))

  query_ids_BL = filled(query_ids_BL, more[0])
  numbers_BL = filled(numbers_BL, more[0])
  if by_kind is not None:
    widths = ((0, 0), (0, 0), (0, 0), (0, more[0]))
    by_kind = ByKind(
      jnp.pad(by_kind.numbers_BHLS, widths),
      filled(by_kind.of_queries_BL, more[0]),
      filled(by_kind.of_keys_BM, more[1]),
    )

  def heads_first(x, more):
    of_heads = -x.shape[3] % SUBLANES
    x = jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, of_heads)))
    return x.swapaxes(1, 2)

  strips_HNW = None
  if strip_HD is not None:
    strips_HNW = strips(strip_HD, blocks[0])
  given = Static(**static, blocks=blocks)
  if of_queries is not None:
    # No query of a causal row needs the vectors of keys in later blocks.
    seen = given._replace(causal=given.causal and prefix_B is None)
    last = max(
      j - i
      for i in range(0, L, blocks[0])
      for j in range(0, M, blocks[1])
      if may_see(seen, seen.before + i, j)
    )
    of_queries = Products(
      heads_first(of_queries.x_BLHK, more[0]),
      table(of_queries.table_NHK, L, L + more[0], last + blocks[1]),
    )
  if of_keys is not None:
    of_keys = Products(
      heads_first(of_keys.x_BLHK, more[1]),
      table(of_keys.table_NHK[::-1], M, M + more[1], L + more[0]),
    )
  operands = Operands(
    heads_first(q_BLHK, more[0]),
    heads_first(k_BMGK, more[1]),
    heads_first(v_BMGK, more[1]),
    strips_HNW,
    hashes_BH,
    prefix_B,
    query_ids_BL,
    key_ids_BM,
    of_queries,
    of_keys,
    by_kind,
    numbers_BL,
    firsts,
  )
  out_BHLK: Any = attend_blocks(given, operands)
  return out_BHLK.swapaxes(1, 2)[:, :L, :, : v_BMGK.shape[3]]


def block_size(length: int, most: int) -> int:
  """The smallest size, in whole lanes, with which the fewest blocks suffice."""
  number = -(-length // most)
  return -(-length // (number * LANES)) * LANES
