# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention to the blocks that `blocks.Blocks` names (BigBird).

`gathered` multiplies only these: keys and values of the window and of random
blocks are gathered for each block of queries, so that time and memory grow
with the length of a row instead of its square. `dense` is what it must equal:
all scores, each counted as often as its key is listed. Suffixes beside those
of `nn/`: N blocks, L queries and M keys of a block, R query heads for each
key/value head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.blocks import Blocks, random_blocks
from gpt_jax.nn.dot_product import (
  Request,
  attend,
  attend_within,
)
from gpt_jax.nn.masks import bidirectional
from gpt_jax.nn.products import float32_einsum
from gpt_jax.nn.softmax import HIDDEN


def dense(request: Request) -> jax.Array:
  """The scores of all tokens, each as often as the blocks list its key.

  softmax over a list with repeats: exp(s) * count / sum(exp(s) * count).
  """
  blocks, L = _blocks(request), request.q_BLHK.shape[1]
  if blocks.between(L) is None:
    return _whole(request)
  (B, _, _, K), (G, H) = request.q_BLHK.shape, _heads(request)
  counts_HLM = listed(blocks, request.layer, H, L)
  counts = counts_HLM.reshape(1, G, H // G, L, L)
  visibility = request.visibility
  if visibility.key_mask_BM is not None:
    counts *= visibility.key_mask_BM[:, None, None, None]
  if visibility.visible_BLM is not None:
    counts *= visibility.visible_BLM[:, None, None]
  q_BLGRK = request.q_BLHK.reshape(B, L, G, H // G, K)
  products = float32_einsum('BLGRK,BMGK->BGRLM', q_BLGRK, request.k_BLGK)
  bias = request.bias
  if bias is not None:
    bias = bias.reshape(-1, G, H // G, L, L)
  probs = _probabilities(request, products, counts, bias)
  out = jnp.einsum('BGRLM,BMGK->BLGRK', probs, request.v_BLGK)
  return _real(request, out.reshape(B, L, H, -1))


def listed(
  blocks: Blocks, layer: jax.Array | int | None, num_heads: int, length: int
) -> jax.Array:
  """How often each query's list holds each key, int32 [H, L, L].

  Of a row whose tokens do not all see all.
  """
  ends = blocks.between(length)
  assert ends is not None
  start, stop = ends
  counts = jnp.ones((num_heads, length, length), jnp.int32)
  if blocks.first:
    counts = counts.at[:, start:stop, :start].add(blocks.random)
  number = -(-(stop - start) // blocks.size)
  block = jnp.arange(number)
  near = abs(block[:, None] - block[None]) <= blocks.window // 2
  shown = jnp.broadcast_to(near, (num_heads, number, number)).astype(jnp.int32)
  if blocks.random and not blocks.first:
    assert layer is not None
    drawn = random_blocks(blocks, layer, num_heads, number)
    shown += jax.nn.one_hot(drawn, number, dtype=jnp.int32).sum(axis=2)
  for axis in (1, 2):
    shown = jnp.repeat(shown, blocks.size, axis)
  shown = shown[:, : stop - start, : stop - start]
  return counts.at[:, start:stop, start:stop].set(shown)


def gathered(request: Request) -> jax.Array:
  """The blocks of keys that each block of queries sees, and no others."""
  blocks, L = _blocks(request), request.q_BLHK.shape[1]
  ends = blocks.between(L)
  if ends is None:
    return _whole(request)
  start, stop = ends
  mask_BM = request.visibility.key_mask_BM
  mask_BM = jnp.ones((1, L), bool) if mask_BM is None else jnp.asarray(mask_BM)
  q_BLHK = _outside(request.q_BLHK, start, stop)
  of_global = attend(
    q_BLHK,
    request.k_BLGK,
    request.v_BLGK,
    mask=jnp.broadcast_to(mask_BM[:, None], (len(mask_BM), q_BLHK.shape[1], L)),
    scale=request.scale,
    dropout=request.dropout,
    softcap=request.softcap,
  )
  others = _between(request, mask_BM, start, stop)
  parts = of_global[:, :start], others, of_global[:, start:]
  return _real(request, jnp.concatenate(parts, axis=1))


class _Keys(NamedTuple):
  """Some of the keys that blocks of queries see.

  Attributes:
    letters: dimensions of what `take` gives.
    take: these keys, or their values, of [B, L, G, K].
  """

  letters: str
  take: Callable[[jax.Array], jax.Array]


def _keys(request: Request, start: int, stop: int) -> list[_Keys]:
  """The global keys, those around each block, and the random ones."""
  blocks, (G, H) = _blocks(request), _heads(request)

  def cut(x: jax.Array) -> jax.Array:
    return _cut(x, start, stop, blocks.size)

  kinds = [
    _Keys('BMGK', lambda x: _outside(x, start, stop)),
    _Keys('BNMGK', lambda x: _around(cut(x), blocks.window)),
  ]
  if blocks.random and not blocks.first:
    assert request.layer is not None
    number = -(-(stop - start) // blocks.size)
    index = random_blocks(blocks, request.layer, H, number)
    index_GRNJ = index.reshape(G, H // G, number, -1)
    kinds.append(_Keys('GBRNMK', lambda x: _drawn(cut(x), index_GRNJ)))
  return kinds


def _between(
  request: Request, mask_BM: jax.Array, start: int, stop: int
) -> jax.Array:
  """What the tokens from `start` to `stop` get, [B, stop - start, H, K]."""
  blocks, (G, H) = _blocks(request), _heads(request)
  q_BNLHK = _cut(request.q_BLHK, start, stop, blocks.size)
  B, N, L, _, K = q_BNLHK.shape
  q_BNLGRK = q_BNLHK.reshape(B, N, L, G, H // G, K)
  times_BM = mask_BM.astype(jnp.int32)
  if blocks.first:
    times_BM = times_BM.at[:, :start].multiply(1 + blocks.random)
  # As keys of size one, which a query of a one counts; what is added to fill
  # blocks, or stands beside the row's ends, is zero.
  one = jnp.ones((len(times_BM), N, 1, G, H // G, 1), jnp.int32)
  times = jnp.broadcast_to(times_BM[:, :, None, None], (*times_BM.shape, G, 1))
  kinds = _keys(request, start, stop)
  products, counts = [], []
  for kind in kinds:
    product = f'BNLGRK,{kind.letters}->BGRNLM'
    k = kind.take(request.k_BLGK)
    products.append(float32_einsum(product, q_BNLGRK, k))
    counts.append(jnp.einsum(product, one, kind.take(times)))
  probs = _probabilities(
    request, jnp.concatenate(products, -1), jnp.concatenate(counts, -1)
  )
  cuts = np.cumsum([x.shape[-1] for x in products])[:-1].tolist()
  out = sum(
    jnp.einsum(
      f'BGRNLM,{kind.letters}->BNLGRK', part, kind.take(request.v_BLGK)
    )
    for kind, part in zip(kinds, jnp.split(probs, cuts, axis=-1), strict=True)
  )
  return jnp.reshape(out, (B, N * L, H, K))[:, : stop - start]


def _outside(x: jax.Array, start: int, stop: int) -> jax.Array:
  """The global tokens of [B, L, ...]."""
  return jnp.concatenate([x[:, :start], x[:, stop:]], axis=1)


def _cut(x: jax.Array, start: int, stop: int, size: int) -> jax.Array:
  """The others in blocks, the last one filled with zeros: [B, N, M, ...]."""
  more = -(stop - start) % size
  x = x[:, start:stop]
  if more:
    x = jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2))
  return x.reshape(len(x), -1, size, *x.shape[2:])


def _around(x_BNM: jax.Array, window: int) -> jax.Array:
  """For each block those around it, one after the other: [B, N, M * window].

  Where the row has none there are zeros, which a mask shows as hidden.
  """
  N, around = x_BNM.shape[1], window // 2
  widths = ((0, 0), (around, around)) + ((0, 0),) * (x_BNM.ndim - 2)
  padded = jnp.pad(x_BNM, widths)
  parts = [padded[:, i : i + N] for i in range(window)]
  return jnp.concatenate(parts, axis=2)


def _drawn(x_BNMGK: jax.Array, index_GRNJ: jax.Array) -> jax.Array:
  """For each head and block the random ones: [G, B, R, N, J * M, K]."""
  B, _, M, G, K = x_BNMGK.shape
  R, N, J = index_GRNJ.shape[1:]
  x_GBNMK = jnp.einsum('BNMGK->GBNMK', x_BNMGK)
  take = jax.vmap(lambda x_BNMK, index: x_BNMK[:, index])
  return take(x_GBNMK, index_GRNJ).reshape(G, B, R, N, J * M, K)


def _probabilities(
  request: Request,
  products: Any,
  counts: jax.Array,
  bias: jax.Array | None = None,
) -> jax.Array:
  """Softmax of the scores, each as often as it counts, after dropout.

  Computed in float32, as `dot_product.attend` does.
  """
  scores = request.scale * products
  if bias is not None:
    scores += bias.astype(jnp.float32)
  if request.softcap:
    scores = request.softcap * jnp.tanh(scores / request.softcap)
  counts = counts.astype(jnp.float32)
  scores += jnp.log(jnp.maximum(counts, 1))
  scores = jnp.where(counts > 0, scores, HIDDEN)
  probs = jax.nn.softmax(scores, axis=-1).astype(request.q_BLHK.dtype)
  return probs if request.dropout is None else request.dropout(probs)


def _real(request: Request, out_BLHK: jax.Array) -> jax.Array:
  """Without what padding sees: zeros there, as in transformers."""
  mask_BM = request.visibility.key_mask_BM
  if mask_BM is None:
    return out_BLHK
  return jnp.where(mask_BM[:, :, None, None], out_BLHK, 0)


def _whole(request: Request) -> jax.Array:
  """A row of a few blocks, in which all tokens see all."""
  return attend_within(request._replace(pattern=bidirectional()))


def _blocks(request: Request) -> Blocks:
  blocks = request.pattern.blocks
  assert blocks is not None
  return blocks


def _heads(request: Request) -> tuple[int, int]:
  """G and H."""
  return request.k_BLGK.shape[2], request.q_BLHK.shape[2]
