# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention among the tokens of rows that are split over devices.

Each device has a part of each row (mesh axis `context`): its queries need keys
that other devices have. Three ways to bring them together, with the blocks of
`online` or, within whole rows, with a kernel. What decides which keys are seen
is known by data that go along with the tokens, so that rows need not be in
order.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax import ring_order
from gpt_jax.nn import devices, kernels, ring, ring_kernel
from gpt_jax.nn.dot_product import Request, tokens_of
from gpt_jax.nn.online import How
from gpt_jax.nn.ring import Rest, Ring

# q, k, v, bias and the rest, as `ring.attend` takes them, to [B, L, H, K].
Local = Callable[..., Any]


def all_gather(request: Request, *, block: int) -> jax.Array:
  """Keys and values of the whole row come to each device.

  Their gradients go back as a reduce-scatter.
  """
  axes, how = devices.mesh_axes('length'), _how(request, block)

  def local(q_BLHK, k_BMGK, v_BMGK, bias, rest: Rest):
    k_BMGK, v_BMGK, key = _gathered((k_BMGK, v_BMGK, rest.key), axes)
    rest = rest._replace(key=key)
    return ring.attend(Ring(how), q_BLHK, k_BMGK, v_BMGK, bias, rest)

  return _per_device(local, request)


def around(
  request: Request, *, block: int, kernel: ring_kernel.Kernel | None
) -> jax.Array:
  """Keys and values go round the devices: see `ring`."""
  axes, hops = devices.mesh_axes('length'), _hops(request)
  # What goes not all the way round comes from devices before in the row.
  all_round = hops == devices.num_parts('length') - 1
  order = ring_order.order(axes) if all_round else None
  of_all = Ring(_how(request, block), axes, hops, order, kernel)

  def local(*args):
    return ring.attend(of_all, *args)

  return _per_device(local, request)


def ulysses(
  request: Request, *, block: int, kernel: kernels.Local | None
) -> jax.Array:
  """Parts of the rows become parts of the heads, and back.

  DeepSpeed-Ulysses (Jacobs et al., 2023, section 3): an all-to-all each way, so
  that each device attends within whole rows, with some of the heads.

  Args:
    request: what is asked.
    block: of queries and of keys, at most.
    kernel: computes it there in place of `online`; None: there is none.
  """
  axes, how = devices.mesh_axes('length'), _how(request, block)

  def swapped(x, split: int, joined: int):
    if not axes:
      return x
    return jax.lax.all_to_all(x, axes, split, joined, tiled=True)

  def local(q_BLHK, k_BMGK, v_BMGK, bias, rest: Rest):
    q_BLHK, k_BMGK, v_BMGK = (
      swapped(x, 2, 1) for x in (q_BLHK, k_BMGK, v_BMGK)
    )
    if bias is not None:
      bias = swapped(bias, 1, 2)
    prefix_B = rest.prefix_B
    rest = _gathered(rest._replace(prefix_B=None), axes)
    if kernel:
      ids_BL = kernels.documents(rest.key.real, rest.key.segments)
      y_BLHK = kernel(q_BLHK, k_BMGK, v_BMGK, ids_BL)
    else:
      rest = rest._replace(prefix_B=prefix_B)
      y_BLHK = ring.attend(Ring(how), q_BLHK, k_BMGK, v_BMGK, bias, rest)
    return swapped(y_BLHK, 1, 2)

  return _per_device(local, request, devices.num_parts('length'))


def obstacle(request: Request) -> str | None:
  """Why none of them can serve a request, or None."""
  if request.pattern.blocks is not None:
    return 'model.attention holds bigbird, which blocks and the reference have'
  if request.dropout is not None:
    return 'model.dropout drops attention probabilities'
  return None


def too_few_heads(number: int) -> str | None:
  """Why `ulysses` cannot split them, or None."""
  parts = devices.num_parts('heads') * devices.num_parts('length')
  if number % parts:
    return (
      f'model.num_heads={number} does not divide over the {parts} devices of '
      'mesh.rules.heads and mesh.rules.length'
    )
  return None


def _how(request: Request, block: int) -> How:
  return How(request.pattern, request.softcap, block)


def _hops(request: Request) -> int:
  """How far keys travel: of a window in ordered rows, as far as it reaches."""
  number = devices.num_parts('length')
  pattern, visibility = request.pattern, request.visibility
  ordered = visibility.places_1L is None and visibility.prefix_B is None
  if pattern.window is None or not pattern.causal or not ordered:
    return number - 1
  here = request.q_BLHK.shape[1] // number
  return min(number - 1, -(-(pattern.window - 1) // here))


def _gathered(tree: Any, axes: tuple[str, ...]) -> Any:
  """Of all devices that have a row, along its length."""
  if not axes:
    return tree
  return jax.tree.map(
    lambda x: jax.lax.all_gather(x, axes, axis=1, tiled=True), tree
  )


def _per_device(
  local: Local, request: Request, parts_of_heads: int = 1
) -> jax.Array:
  """`local` on what each device has, the queries scaled before.

  Args:
    local: see `Local`.
    request: what is asked.
    parts_of_heads: how many times key/value heads are split further.
  """
  q_BLHK, k_BLGK, v_BLGK = request.q_BLHK, request.k_BLGK, request.v_BLGK
  q_BLHK = (q_BLHK * request.scale).astype(q_BLHK.dtype)
  # Each device needs the key/value heads of its query heads. With fewer of
  # them than devices they are repeated, as often as it takes.
  G, parts = k_BLGK.shape[2], devices.num_parts('heads') * parts_of_heads
  copies = math.lcm(G, parts) // G
  if copies > 1:
    k_BLGK, v_BLGK = (jnp.repeat(x, copies, 2) for x in (k_BLGK, v_BLGK))
  tokens, visibility = tokens_of(request), request.visibility
  rest = Rest(tokens, tokens, visibility.prefix_B, visibility.visible_BLM)
  bias = request.bias

  def batch(x: jax.Array) -> str | None:
    return None if len(x) == 1 else 'batch'

  heads = ('batch', 'length', 'heads', None)
  of_tokens = jax.tree.map(lambda x: (batch(x), 'length'), tokens)
  of_prefix: Any = None if rest.prefix_B is None else ('batch',)
  of_visible: Any = ('batch', 'length', None)
  if rest.visible_BLM is None:
    of_visible = None
  of_rest = Rest(of_tokens, of_tokens, of_prefix, of_visible)
  of_bias = None
  if bias is not None:
    of_bias = (batch(bias), 'heads', 'length', None)
  axes = (heads, heads, heads, of_bias, of_rest)
  run = devices.per_device(local, axes, heads)
  return run(q_BLHK, k_BLGK, v_BLGK, bias, rest)
