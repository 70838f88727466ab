# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ring attention (Liu et al., 2023): keys and values go round the devices.

Each device has some of the tokens of each row. It adds up attention to its own
keys, then to those that its neighbour sends, while it sends on what it had. In
the backward pass the gradients of keys and values travel with them. With one
device it is `online` attention.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn import online
from gpt_jax.nn.online import How, Keys, Pairs, Queries
from gpt_jax.nn.seen import Tokens


class Ring(NamedTuple):
  """The devices, inside a `shard_map`.

  Attributes:
    how: see `online.How`.
    axes: of the mesh, in whose order the devices stand; (): there is one.
    hops: how far keys travel; all the way round they go one less than there
      are devices.
  """

  how: How
  axes: tuple[str, ...] = ()
  hops: int = 0


class Rest(NamedTuple):
  """What has no gradient; see `Queries`, `Keys` and `Pairs`."""

  query: Tokens
  key: Tokens
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  ring: Ring,
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  bias: jax.Array | None,
  rest: Rest,
) -> jax.Array:
  """softmax(q k^T + bias) v, [B, L, H, K], of the queries that are here.

  Args:
    ring: the devices.
    q_BLHK: of this device, already scaled.
    k_BMGK: of this device.
    v_BMGK: of this device.
    bias: of this device's queries and the keys of all devices in their order,
      [B or 1, H, L, all M]; None: there is none.
    rest: tokens of this device, `visible_BLM` as `bias` is.
  """
  return _forward(ring, q_BLHK, k_BMGK, v_BMGK, bias, rest)[0]


def _forward(ring, q_BLHK, k_BMGK, v_BMGK, bias, rest):
  # What follows from places alone is the same in each layer. JAX would take it
  # out of the loop over layers, and so keep masks as large as all scores.
  q_BLHK, rest = jax.lax.optimization_barrier((q_BLHK, rest))
  queries = _queries(q_BLHK, k_BMGK, rest)
  pairs = Pairs(bias, rest.visible_BLM)

  def add(sums, keys, hop):
    here = _of_keys(pairs, ring, hop, k_BMGK.shape[1])
    return online.add(ring.how, queries, keys, here, sums)

  def hop(carry, number):
    keys, sums = carry
    keys = _sent(keys, ring, 1)
    return (keys, add(sums, keys, number)), None

  keys = Keys(k_BMGK, v_BMGK, rest.key)
  sums = add(online.nothing(queries.q_BLGRK), keys, 0)
  if ring.hops:
    (_, sums), _ = jax.lax.scan(hop, (keys, sums), jnp.arange(1, ring.hops + 1))
  y_BLGRK, log_BGRL = online.finished(sums)
  y_BLHK = y_BLGRK.reshape(q_BLHK.shape).astype(q_BLHK.dtype)
  return y_BLHK, (q_BLHK, k_BMGK, v_BMGK, bias, rest, y_BLHK, log_BGRL)


def _backward(ring, saved, dy_BLHK):
  q_BLHK, k_BMGK, v_BMGK, bias, rest, y_BLHK, log_BGRL = saved
  queries = _queries(q_BLHK, k_BMGK, rest)
  pairs, M = Pairs(bias, rest.visible_BLM), k_BMGK.shape[1]
  shape = queries.q_BLGRK.shape

  def heads_first(x_BLHK):
    return jnp.einsum('BLGRK->BGRLK', x_BLHK.astype(jnp.float32).reshape(shape))

  dy_BGRLK = heads_first(dy_BLHK)
  dot_BGRL = jnp.sum(dy_BGRLK * heads_first(y_BLHK), axis=-1)
  given = online.Given(dy_BGRLK, dot_BGRL, log_BGRL)

  def of(keys, hop):
    here = _of_keys(pairs, ring, hop, M)
    return online.gradients(ring.how, queries, keys, here, given)

  def hop(carry, number):
    keys, dk, dv, dq = carry
    keys, dk, dv = _sent((keys, dk, dv), ring, 1)
    by = of(keys, number)
    carry = keys, dk + by.dk_BMGK, dv + by.dv_BMGK, dq + by.dq_BLGRK
    return carry, by.dbias

  keys = Keys(k_BMGK, v_BMGK, rest.key)
  dq, dk, dv, dbias = of(keys, 0)
  by_hop: Any = None if dbias is None else dbias[None]
  if ring.hops:
    carried: Any = jax.lax.scan(
      hop, (keys, dk, dv, dq), jnp.arange(1, ring.hops + 1)
    )
    (_, dk, dv, dq), more = carried
    dk, dv = _sent((dk, dv), ring, -ring.hops)
    if by_hop is not None:
      by_hop = jnp.concatenate([by_hop, more])
  if by_hop is not None and ring.axes:
    dbias = _in_order(ring, by_hop)
  return (
    dq.reshape(q_BLHK.shape).astype(q_BLHK.dtype),
    dk.astype(k_BMGK.dtype),
    dv.astype(v_BMGK.dtype),
    dbias,
    None,
  )


attend.defvjp(_forward, _backward)


def _queries(q_BLHK: jax.Array, k_BMGK: jax.Array, rest: Rest) -> Queries:
  B, L, H, K = q_BLHK.shape
  G = k_BMGK.shape[2]
  q_BLGRK = q_BLHK.reshape(B, L, G, H // G, K)
  return Queries(q_BLGRK, rest.query, rest.prefix_B)


def _sent(tree: Any, ring: Ring, hops: int) -> Any:
  """What the device `hops` before this one has."""
  number = jax.lax.axis_size(ring.axes)
  route = [(i, (i + hops) % number) for i in range(number)]
  return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axes, route), tree)


def _owner(ring: Ring, hop: jax.Array | int) -> jax.Array:
  """Whose keys are here after so many hops."""
  here, number = jax.lax.axis_index(ring.axes), jax.lax.axis_size(ring.axes)
  return (here - hop) % number


def _of_keys(
  pairs: Pairs, ring: Ring, hop: jax.Array | int, length: int
) -> Pairs:
  """The columns of the keys that are here."""
  if not ring.axes:
    return pairs

  def columns(x: jax.Array) -> jax.Array:
    first = _owner(ring, hop) * length
    return jax.lax.dynamic_slice_in_dim(x, first, length, axis=x.ndim - 1)

  return jax.tree.map(columns, pairs)


def _in_order(ring: Ring, dbiases: jax.Array) -> jax.Array:
  """Columns by hop, [hops + 1, B or 1, H, L, M], as those of all devices."""
  number = jax.lax.axis_size(ring.axes)
  zeros = jnp.zeros((number, *dbiases.shape[1:]), dbiases.dtype)
  x = zeros.at[_owner(ring, jnp.arange(ring.hops + 1))].set(dbiases)
  x = jnp.moveaxis(x, 0, -2)
  return x.reshape(*x.shape[:-2], -1)
