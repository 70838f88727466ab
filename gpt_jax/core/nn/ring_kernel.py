# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Splash, JAX's Pallas kernel for TPU, within ring attention.

Causal rows need only two masks. A device's queries see its own keys as in a
whole row. A chunk of queries sees all of another device's keys if it comes
after them, else none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from gpt_jax.core.nn import kernels, layout
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.masks import Pattern, bidirectional, may_see
from gpt_jax.core.nn.online_softmax import Gradients, Keys, Queries


class Kernel(NamedTuple):
  """The static settings of the kernel.

  Attributes:
    pattern: which keys are seen; without a window.
    zigzag: whether each device has an early and a late chunk (see
      `zigzag.zigzag`) instead of rows in order.
    softcap: bound of the scores; None: there is none.
    interpret: runs on any device, slowly: for tests.
  """

  pattern: Pattern
  zigzag: bool
  blocks: splash_attention.BlockSizes
  softcap: float | None
  interpret: bool


class Partial(NamedTuple):
  """The result of attention to some of the keys, float32.

  Attributes:
    log_BGRL: log(sum exp(s)).
  """

  y_BGRLK: jax.Array
  log_BGRL: jax.Array


class Residuals(NamedTuple):
  """Inputs of the backward pass for the queries.

  Attributes:
    dy_BLHK: its gradient.
    log_BGRL: as in `Partial`, of all keys.
  """

  y_BLHK: jax.Array
  dy_BLHK: jax.Array
  log_BGRL: jax.Array


def make(request: Request, *, block: int, fused_until: int, interpret: bool) -> Kernel:
  """The kernel of a request without `obstacle`; see `backends.splash`."""
  here, chunk = _lengths(request)
  return Kernel(
    request.pattern,
    chunk < here,
    kernels.blocks(chunk, block, request.q_BLHK.shape[3], fused=here <= fused_until),
    request.softcap or None,
    interpret,
  )


def obstacle(request: Request, block: int) -> str | None:
  """Why splash cannot serve the pattern, the rows or the heads, or None."""
  if request.pattern.window is not None:
    return 'model.attention holds a window'
  here, chunk = _lengths(request)
  why = kernels.splash_obstacle(chunk, request.q_BLHK.shape[3], block)
  if why:
    return f'of each chunk of a row, {why}'
  size = kernels.block_size(chunk, block)
  if size is not None and here > kernels.MOST_BLOCKS * size:
    return f'{here} tokens on a device are more than {kernels.MOST_BLOCKS} blocks of {size}'
  return None


def _lengths(request: Request) -> tuple[int, int]:
  """The number of tokens of a row on each device, and in a chunk."""
  here = request.q_BLHK.shape[1] // layout.num_parts('length')
  zigzag = request.visibility.places_1L is not None
  return here, here // 2 if zigzag else here


def add(kernel: Kernel, queries: Queries, keys: Keys, before: Partial | None) -> Partial:
  """Attention to more keys.

  Args:
    kernel: its settings.
    before: result for the keys so far; None: these are the device's own, first.
  """
  if before is None:
    return _attend(kernel, queries, keys, own=True)

  def visit(before: Partial, query: slice, key: slice) -> Partial:
    old = jax.tree.map(lambda x: x[:, :, :, query], before)
    new = _attend(kernel, _some(queries, query), _some(keys, key))
    log_BGRL = jnp.logaddexp(old.log_BGRL, new.log_BGRL)

    def part(x: Partial) -> jax.Array:
      # 0 for keys of other documents, which a query does not see.
      return x.y_BGRLK * jnp.exp(x.log_BGRL - log_BGRL)[..., None]

    both = Partial(part(old) + part(new), log_BGRL)
    return jax.tree.map(lambda x, y: x.at[:, :, :, query].set(y), before, both)

  return _seen(kernel, queries, keys, visit, before)


def gradients(
  kernel: Kernel, queries: Queries, keys: Keys, residuals: Residuals, *, own: bool
) -> Gradients:
  """`online_softmax.gradients`; `own`: the keys are of this device."""
  if own:
    return _differentiate(kernel, queries, keys, residuals, own=True)
  of = queries.q_BLGRK, keys.k_BMGK, keys.v_BMGK
  dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in of)

  def visit(before: Gradients, query: slice, key: slice) -> Gradients:
    y_BLHK, dy_BLHK, log_BGRL = residuals
    of_some = Residuals(y_BLHK[:, query], dy_BLHK[:, query], log_BGRL[..., query])
    by = _differentiate(kernel, _some(queries, query), _some(keys, key), of_some)
    return Gradients(
      before.dq_BLGRK.at[:, query].add(by.dq_BLGRK),
      before.dk_BMGK.at[:, key].add(by.dk_BMGK),
      before.dv_BMGK.at[:, key].add(by.dv_BMGK),
      None,
    )

  return _seen(kernel, queries, keys, visit, Gradients(dq, dk, dv, None))


def _seen(
  kernel: Kernel,
  queries: Queries,
  keys: Keys,
  visit: Callable[[Any, slice, slice], Any],
  before: Any,
) -> Any:
  """Visits pairs of queries and another device's keys that see each other.

  Packed rows are visited by chunks; those without a common document are
  skipped.
  """
  everything, half = slice(None), keys.k_BMGK.shape[1] // 2
  early, late = slice(half), slice(half, None)
  packed = keys.tokens.segments is not None

  def all_of(*pairs: tuple[slice, slice]) -> Any:
    result = before
    for query, key in pairs:

      def call(result: Any, query: slice = query, key: slice = key) -> Any:
        return visit(result, query, key)

      tokens = queries.tokens.at(query), keys.tokens.at(key)
      wanted = may_see(kernel.pattern, *tokens) if packed else None
      if wanted is None:
        result = call(result)
      else:
        result = jax.lax.cond(wanted, call, lambda result: result, result)
    return result

  if not kernel.pattern.causal:
    return all_of((everything, everything))
  # In a zigzag, all queries come after the early chunk of an earlier device,
  # and the late chunk of queries comes after all keys of a later device.
  before_this, after_this = [(everything, everything)], []
  if kernel.zigzag and packed:
    before_this = [(early, early), (late, early)]
    after_this = [(late, early), (late, late)]
  elif kernel.zigzag:
    before_this, after_this = [(everything, early)], [(late, everything)]
  # By data, not by device numbers: JAX would hoist values that follow from
  # those out of the loop over layers, which Shardy refuses.
  return jax.lax.cond(
    keys.tokens.places[0, 0] < queries.tokens.places[0, 0],
    lambda: all_of(*before_this),
    lambda: all_of(*after_this),
  )


def _some(x: Any, part: slice) -> Any:
  """The queries or keys of a part of the tokens."""
  return jax.tree.map(lambda x: x[:, part], x)


def _attend(kernel: Kernel, queries: Queries, keys: Keys, *, own: bool = False) -> Partial:
  B, L, G, R, K = queries.q_BLGRK.shape
  splash = _splash(kernel, L, G * R, own)
  y_BHLK, (log_BHL,) = jax.vmap(splash)(*_heads_first(queries, keys), _documents(queries, keys))
  y_BGRLK = y_BHLK.astype(jnp.float32).reshape(B, G, R, L, K)
  return Partial(y_BGRLK, log_BHL.reshape(B, G, R, L))


def _differentiate(
  kernel: Kernel, queries: Queries, keys: Keys, residuals: Residuals, *, own: bool = False
) -> Gradients:
  B, L, G, R, K = queries.q_BLGRK.shape
  splash = _splash(kernel, L, G * R, own)
  masks = splash.dq_mask_info, splash.dkv_mask_info

  def of_row(q_HLK, k_GMK, v_GMK, ids, y_HLK, log_HL, dy_HLK):
    saved = (q_HLK, k_GMK, v_GMK, ids, None, y_HLK, log_HL, *masks)
    # With output and sums over all keys; the kernel's own derivative would use
    # those over these keys only.
    by = splash_attention_kernel._splash_attention_bwd(**splash.kwargs, res=saved, do=dy_HLK)
    return by[3:6]

  y_BHLK, dy_BHLK = (x.swapaxes(1, 2).astype(queries.q_BLGRK.dtype) for x in residuals[:2])
  dq_BHLK, dk_BGMK, dv_BGMK = jax.vmap(of_row)(
    *_heads_first(queries, keys),
    _documents(queries, keys),
    y_BHLK,
    residuals.log_BGRL.reshape(B, G * R, L),
    dy_BHLK,
  )
  dq, dk, dv = (x.swapaxes(1, 2).astype(jnp.float32) for x in (dq_BHLK, dk_BGMK, dv_BGMK))
  return Gradients(dq.reshape(B, L, G, R, K), dk, dv, None)


def _splash(
  kernel: Kernel, length: int, num_heads: int, own: bool
) -> splash_attention_kernel.SplashAttentionKernel:
  return kernels.make(
    kernel.pattern if own else bidirectional(),
    length,
    num_heads,
    blocks=kernel.blocks,
    softcap=kernel.softcap,
    interpret=kernel.interpret,
    save_residuals=True,
  )


def _heads_first(queries: Queries, keys: Keys) -> tuple[jax.Array, jax.Array, jax.Array]:
  B, L, G, R, K = queries.q_BLGRK.shape
  q_BLHK = queries.q_BLGRK.reshape(B, L, G * R, K)
  q, k, v = (x.swapaxes(1, 2) for x in (q_BLHK, keys.k_BMGK, keys.v_BMGK))
  return q, k, v


def _documents(queries: Queries, keys: Keys) -> splash_attention.SegmentIds | None:
  of_queries, of_keys = (
    kernels.documents(x.tokens.real, x.tokens.segments) for x in (queries, keys)
  )
  if of_queries is None or of_keys is None:
    return None
  return splash_attention.SegmentIds(of_queries, of_keys)
