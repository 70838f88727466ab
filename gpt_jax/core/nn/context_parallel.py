# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: ring attention, all-gather and Ulysses.

In ring attention (Liu et al., 2023) keys and values go round the devices. Each
device has some of the tokens of each row. It accumulates attention to its own
keys, then to those that its neighbour sends, while it passes its own on. In the
backward pass the gradients of keys and values travel with them. With one device
it is attention by `online_softmax`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import ring_order
from gpt_jax.core.nn import kernels, layout, online_softmax, ring_kernel
from gpt_jax.core.nn.attend import Request, tokens_of
from gpt_jax.core.nn.masks import Tokens
from gpt_jax.core.nn.online_softmax import Keys, Pairs, Queries, Settings


class Ring(NamedTuple):
  """The devices, inside a `shard_map`.

  Attributes:
    axes: of the mesh, which order the devices; (): there is one device.
    hops: how far keys travel; at most the number of devices - 1.
    order: of the devices, if not that of the axes: see `ring_order`.
    kernel: computes attention to one device's keys instead of `online_softmax`,
      without biases and the like; None: there is none.
  """

  settings: Settings
  axes: tuple[str, ...] = ()
  hops: int = 0
  order: ring_order.Order = None
  kernel: ring_kernel.Kernel | None = None


class TokenInfo(NamedTuple):
  """The inputs without a gradient; see `Queries`, `Keys` and `Pairs`."""

  query: Tokens
  key: Tokens
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None
  hashes_BH: jax.Array | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
  ring: Ring,
  q_BLHK: jax.Array,
  k_BMGK: jax.Array,
  v_BMGK: jax.Array,
  bias: jax.Array | None,
  info: TokenInfo,
) -> jax.Array:
  """softmax(q k^T + bias) v, [B, L, H, K], of this device's queries.

  Args:
    q_BLHK: of this device, already scaled.
    bias: of this device's queries and the keys of all devices in their order,
      [B or 1, H, L, all M]; None: there is none.
    info: of this device's tokens; `visible_BLM` has all keys, as `bias`.
  """
  return _forward(ring, q_BLHK, k_BMGK, v_BMGK, bias, info)[0]


def _forward(ring, q_BLHK, k_BMGK, v_BMGK, bias, info):
  # Masks that follow from places alone are the same in each layer. JAX would
  # hoist them out of the loop over layers, and store all of them.
  q_BLHK, info = jax.lax.optimization_barrier((q_BLHK, info))
  queries = _queries(q_BLHK, k_BMGK, info)
  pairs = Pairs(bias, info.visible_BLM)

  def visit(sums, keys, hop):
    if ring.kernel:
      return ring_kernel.add(ring.kernel, queries, keys, sums), None
    if sums is None:
      sums = online_softmax.nothing(queries.q_BLGRK)
    here = _of_keys(pairs, ring, hop, k_BMGK.shape[1])
    return online_softmax.add(ring.settings, queries, keys, here, sums), None

  sums, _ = _round(ring, Keys(k_BMGK, v_BMGK, info.key), visit)
  y_BGRLK, log_BGRL = sums if ring.kernel else online_softmax.finished(ring.settings, sums)
  y_BLGRK = jnp.einsum('BGRLK->BLGRK', y_BGRLK)
  y_BLHK = y_BLGRK.reshape(q_BLHK.shape).astype(q_BLHK.dtype)
  return y_BLHK, (q_BLHK, k_BMGK, v_BMGK, bias, info, y_BLHK, log_BGRL)


def _backward(ring, saved, dy_BLHK):
  q_BLHK, k_BMGK, v_BMGK, bias, info, y_BLHK, log_BGRL = saved
  queries = _queries(q_BLHK, k_BMGK, info)
  pairs, M = Pairs(bias, info.visible_BLM), k_BMGK.shape[1]
  shape = queries.q_BLGRK.shape

  def heads_first(x_BLHK):
    return jnp.einsum('BLGRK->BGRLK', x_BLHK.astype(jnp.float32).reshape(shape))

  dy_BGRLK = heads_first(dy_BLHK)
  dot_BGRL = jnp.sum(dy_BGRLK * heads_first(y_BLHK), axis=-1)
  residuals = online_softmax.Residuals(dy_BGRLK, dot_BGRL, log_BGRL)

  def visit(before, keys, hop):
    if ring.kernel:
      of_kernel = ring_kernel.Residuals(y_BLHK, dy_BLHK, log_BGRL)
      by = ring_kernel.gradients(ring.kernel, queries, keys, of_kernel, own=before is None)
    else:
      here = _of_keys(pairs, ring, hop, M)
      by = online_softmax.gradients(ring.settings, queries, keys, here, residuals)
    if before is None:
      return by[:3], by.dbias
    dq, dk, dv = before
    dk, dv = _sent((dk, dv), ring, 1)
    return (dq + by.dq_BLGRK, dk + by.dk_BMGK, dv + by.dv_BMGK), by.dbias

  keys = Keys(k_BMGK, v_BMGK, info.key)
  (dq, dk, dv), dbias = _round(ring, keys, visit)
  if ring.hops:
    dk, dv = _sent((dk, dv), ring, -ring.hops)
  if bias is not None:
    dbias = _in_order(ring, dbias) if ring.axes else dbias[0]
  return (
    dq.reshape(q_BLHK.shape).astype(q_BLHK.dtype),
    dk.astype(k_BMGK.dtype),
    dv.astype(v_BMGK.dtype),
    dbias,
    None,
  )


attend.defvjp(_forward, _backward)


def _round(
  ring: Ring, keys: Keys, visit: Callable[[Any, Keys, Any], tuple[Any, Any]]
) -> tuple[Any, Any]:
  """Visits the keys of one device after the other, its own first.

  The next keys are in transit during each visit.

  Args:
    visit: from a carry (None at first), keys and the number of hops they have
      travelled, to the next carry and a result.

  Returns:
    The last carry, and the results, [hops + 1, ...].
  """

  def hop(carry, number):
    keys, state = carry
    following = _sent(keys, ring, 1)
    state, result = visit(state, keys, number)
    return (following, state), result

  if not ring.hops:
    state, result = visit(None, keys, 0)
    return state, jax.tree.map(lambda x: x[None], result)
  carry, first = hop((keys, None), 0)
  results = [jax.tree.map(lambda x: x[None], first)]
  if ring.hops > 1:
    carry, more = jax.lax.scan(hop, carry, jnp.arange(1, ring.hops))
    results.append(more)
  keys, state = carry
  state, last = visit(state, keys, ring.hops)
  results.append(jax.tree.map(lambda x: x[None], last))
  return state, jax.tree.map(lambda *x: jnp.concatenate(x), *results)


def _queries(q_BLHK: jax.Array, k_BMGK: jax.Array, info: TokenInfo) -> Queries:
  B, L, H, K = q_BLHK.shape
  G = k_BMGK.shape[2]
  q_BLGRK, hashes_BGR = q_BLHK.reshape(B, L, G, H // G, K), info.hashes_BH
  if hashes_BGR is not None:
    hashes_BGR = hashes_BGR.reshape(B, G, H // G)
  return Queries(q_BLGRK, info.query, info.prefix_B, hashes_BGR)


def _sent(tree: Any, ring: Ring, hops: int) -> Any:
  """Receives the tree of the device `hops` before this one."""
  order = _order(ring)
  route = [*zip(order, np.roll(order, -hops).tolist(), strict=True)]
  return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.axes, route), tree)


def _order(ring: Ring) -> list[int]:
  return [*(ring.order or range(jax.lax.axis_size(ring.axes)))]


def _owner(ring: Ring, hop: jax.Array | int) -> jax.Array:
  """The device whose keys are here after `hop` hops."""
  order = _order(ring)
  here = jnp.asarray(np.argsort(order))[jax.lax.axis_index(ring.axes)]
  return jnp.asarray(order)[(here - hop) % len(order)]


def _of_keys(pairs: Pairs, ring: Ring, hop: jax.Array | int, length: int) -> Pairs:
  """The columns of the keys that are here after `hop` hops."""
  if not ring.axes:
    return pairs

  def columns(x: jax.Array) -> jax.Array:
    first = _owner(ring, hop) * length
    return jax.lax.dynamic_slice_in_dim(x, first, length, axis=x.ndim - 1)

  return jax.tree.map(columns, pairs)


def _in_order(ring: Ring, dbiases: jax.Array) -> jax.Array:
  """Orders columns by hop, [hops + 1, B or 1, H, L, M], by device."""
  number = jax.lax.axis_size(ring.axes)
  zeros = jnp.zeros((number, *dbiases.shape[1:]), dbiases.dtype)
  x = zeros.at[_owner(ring, jnp.arange(ring.hops + 1))].set(dbiases)
  x = jnp.moveaxis(x, 0, -2)
  return x.reshape(*x.shape[:-2], -1)


# Three ways to attend within rows that are split over devices.
#
# Each device has a part of each row (mesh axis `context`), and its queries need
# keys of other devices. Attention is computed in blocks by `online_softmax` or,
# within whole rows, by a kernel. The data that decide which keys a query sees
# travel with the tokens, so rows need not be in order.


# q, k, v, bias and token info, as in `attend`, to [B, L, H, K].
Local = Callable[..., Any]


def all_gather(
  request: Request, *, block: int, kernel: Callable[..., jax.Array] | None
) -> jax.Array:
  """Gathers keys and values of the whole row on each device.

  Their gradients are reduce-scattered.

  Args:
    block: size of blocks of queries and of keys, at most.
    kernel: of `flash.in_parts`, instead of `online_softmax`; None: there is
      none.
  """
  axes, settings = layout.mesh_axes('length'), _settings(request, block)

  def local(q_BLHK, k_BMGK, v_BMGK, bias, info: TokenInfo):
    k_BMGK, v_BMGK, key = _gathered((k_BMGK, v_BMGK, info.key), axes)
    if kernel:
      of_rows = info.prefix_B, info.hashes_BH
      return kernel(q_BLHK, k_BMGK, v_BMGK, *of_rows, info.query, key)
    info = info._replace(key=key)
    return attend(Ring(settings), q_BLHK, k_BMGK, v_BMGK, bias, info)

  return _per_device(local, request)


def around(request: Request, *, block: int, kernel: ring_kernel.Kernel | None) -> jax.Array:
  """Ring attention: see `Ring`."""
  axes, hops = layout.mesh_axes('length'), _hops(request)
  # Keys that do not go all the way round come from earlier parts of the row.
  all_round = hops == layout.num_parts('length') - 1
  order = ring_order.order(axes) if all_round else None
  of_all = Ring(_settings(request, block), axes, hops, order, kernel)

  def local(*args):
    return attend(of_all, *args)

  return _per_device(local, request)


def ulysses(request: Request, *, block: int, kernel: kernels.Local | None) -> jax.Array:
  """DeepSpeed-Ulysses: splits heads instead of rows during attention.

  An all-to-all each way lets each device attend within whole rows, with some of
  the heads (Jacobs et al., 2023, section 3).

  Args:
    block: size of blocks of queries and of keys, at most.
    kernel: computes attention instead of `online_softmax`; None: there is none.
  """
  axes, settings = layout.mesh_axes('length'), _settings(request, block)

  def swapped(x, split: int, joined: int):
    if not axes:
      return x
    return jax.lax.all_to_all(x, axes, split, joined, tiled=True)

  def local(q_BLHK, k_BMGK, v_BMGK, bias, info: TokenInfo):
    q_BLHK, k_BMGK, v_BMGK = (swapped(x, 2, 1) for x in (q_BLHK, k_BMGK, v_BMGK))
    if bias is not None:
      bias = swapped(bias, 1, 2)
    of_rows = {'prefix_B': info.prefix_B, 'hashes_BH': info.hashes_BH}
    info = _gathered(info._replace(prefix_B=None, hashes_BH=None), axes)
    if kernel:
      ids_BL = kernels.documents(info.key.real, info.key.segments)
      y_BLHK = kernel(q_BLHK, k_BMGK, v_BMGK, ids_BL)
    else:
      info = info._replace(**of_rows)
      y_BLHK = attend(Ring(settings), q_BLHK, k_BMGK, v_BMGK, bias, info)
    return swapped(y_BLHK, 1, 2)

  return _per_device(local, request, layout.num_parts('length'))


def too_few_heads(number: int) -> str | None:
  """Why `ulysses` cannot split this number of heads, or None."""
  parts = layout.num_parts('heads') * layout.num_parts('length')
  if number % parts:
    return (
      f'model.num_heads={number} does not divide over the {parts} devices of '
      'mesh.rules.heads and mesh.rules.length'
    )
  return None


def _settings(request: Request, block: int) -> Settings:
  rate = 0.0 if request.dropout is None else request.dropout.rate
  return Settings(request.pattern, request.softcap, block, rate)


def _hops(request: Request) -> int:
  """How far keys travel: with a window and ordered rows, only its reach."""
  number = layout.num_parts('length')
  pattern, visibility = request.pattern, request.visibility
  ordered = visibility.places_1L is None and visibility.prefix_B is None
  if pattern.window is None or not pattern.causal or not ordered:
    return number - 1
  here = request.q_BLHK.shape[1] // number
  return min(number - 1, -(-(pattern.window - 1) // here))


def _gathered(tree: Any, axes: tuple[str, ...]) -> Any:
  """Gathers the parts of each row along its length."""
  if not axes:
    return tree
  return jax.tree.map(lambda x: jax.lax.all_gather(x, axes, axis=1, tiled=True), tree)


def _per_device(local: Local, request: Request, parts_of_heads: int = 1) -> jax.Array:
  """Runs `local` on each device, with scaled queries.

  `parts_of_heads`: parts of a device's heads that `local` splits them into.
  """
  parts = layout.num_parts('heads') * parts_of_heads
  q_BLHK, k_BLGK, v_BLGK = kernels.for_devices(request, parts)
  tokens, visibility = tokens_of(request), request.visibility
  hashes = of_hashes = None
  if request.dropout is not None:
    # Of the heads of each device, and of each of its parts of them.
    hashes = request.dropout.of_heads(q_BLHK.shape[2])
    devices = layout.num_parts('heads')
    hashes = hashes.reshape(len(hashes), devices, parts_of_heads, -1)
    split = 'length' if parts_of_heads > 1 else None
    of_hashes: Any = ('batch', 'heads', split, None)
  info = TokenInfo(tokens, tokens, visibility.prefix_B, visibility.mask_BLM, hashes)
  bias = request.bias
  assert not hasattr(bias, 'feature')

  def batch(x: jax.Array) -> str | None:
    return None if len(x) == 1 else 'batch'

  heads = ('batch', 'length', 'heads', None)
  of_tokens = jax.tree.map(lambda x: (batch(x), 'length'), tokens)
  of_prefix: Any = None if info.prefix_B is None else ('batch',)
  of_visible: Any = ('batch', 'length', None)
  if info.visible_BLM is None:
    of_visible = None
  of_info = TokenInfo(of_tokens, of_tokens, of_prefix, of_visible, of_hashes)
  of_bias = None
  if bias is not None:
    of_bias = (batch(bias), 'heads', 'length', None)

  def run_local(q_BLHK, k_BMGK, v_BMGK, bias, info: TokenInfo):
    if info.hashes_BH is not None:
      hashes_BH = info.hashes_BH.reshape(len(q_BLHK), -1)
      info = info._replace(hashes_BH=hashes_BH)
    return local(q_BLHK, k_BMGK, v_BMGK, bias, info)

  axes = (heads, heads, heads, of_bias, of_info)
  run = layout.per_device(run_local, axes, heads)
  return run(q_BLHK, k_BLGK, v_BLGK, bias, info)
