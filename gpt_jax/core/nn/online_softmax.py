# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks with an online softmax, without storing the scores.

For the keys so far, each query has the largest score m, the sum
l = sum exp(s - m), and sum exp(s - m) v (Milakov & Gimelshein, 2018). The
backward pass recomputes the probabilities from m + log(l) (FlashAttention, Dao
et al. 2022, section 3.1 and appendix B). All is float32 but the inputs of the
products. Blocks of queries and keys that see nothing of each other are skipped.

More suffixes: R heads for each key/value head, X blocks of queries, Y blocks
of keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.attend import HIDDEN
from gpt_jax.core.nn.attention_dropout import hashed, kept
from gpt_jax.core.nn.masks import Pattern, Tokens, may_see, visible


class Settings(NamedTuple):
  """The static settings.

  Attributes:
    pattern: which keys are seen.
    softcap: bound of the scores.
    block: the most queries, and keys, of a block.
    rate: of dropout: see `attention_dropout`.
  """

  pattern: Pattern
  softcap: float
  block: int
  rate: float = 0.0


class Queries(NamedTuple):
  """Scaled queries, with the data that decide which keys they see.

  Attributes:
    q_BLGRK: query heads grouped by their key/value head.
    hashes_BGR: uint32, of `AttentionDropout.of_heads`; None: without dropout.
  """

  q_BLGRK: jax.Array
  tokens: Tokens
  prefix_B: jax.Array | None
  hashes_BGR: jax.Array | None = None


class Keys(NamedTuple):
  """Keys, values and their tokens: these travel from device to device."""

  k_BMGK: jax.Array
  v_BMGK: jax.Array
  tokens: Tokens


class Pairs(NamedTuple):
  """Bias [B or 1, H, L, M] and mask [B, L, M] of each query and key."""

  bias: jax.Array | None
  visible: jax.Array | None


class Sums(NamedTuple):
  """Sums over the keys so far, float32; `out` is that of exp(s - top) v."""

  out_BGRLK: jax.Array
  total_BGRL: jax.Array
  top_BGRL: jax.Array


def nothing(q_BLGRK: jax.Array) -> Sums:
  """The sums over no keys."""
  B, L, G, R, K = q_BLGRK.shape
  zeros = jnp.zeros((B, G, R, L), jnp.float32)
  return Sums(jnp.zeros((B, G, R, L, K), jnp.float32), zeros, jnp.full_like(zeros, HIDDEN))


def add(settings: Settings, queries: Queries, keys: Keys, pairs: Pairs, sums: Sums) -> Sums:
  """The sums with more keys."""

  def of_queries(_, x):
    query, sums, pairs = x

    def of_keys(sums, x):
      key, pair = x

      def more() -> Sums:
        return _add_block(settings, query, key, pair, sums)

      wanted = may_see(settings.pattern, query.tokens, key.tokens, query.prefix_B)
      return _where(wanted, more, lambda: sums), None

    return None, jax.lax.scan(of_keys, sums, (keys_Y, pairs))[0]

  queries_X = _query_blocks(settings, queries)
  keys_Y = _key_blocks(settings, keys)
  sums_X = jax.tree.map(lambda x: _blocks(settings, x, 3), sums)
  pairs_XY = _pair_blocks(settings, pairs)
  out_X = jax.lax.scan(of_queries, None, (queries_X, sums_X, pairs_XY))[1]
  return jax.tree.map(lambda x: _joined(x, 3), out_X)


def finished(settings: Settings, sums: Sums) -> tuple[jax.Array, jax.Array]:
  """The output [B, G, R, L, K], and log(sum exp(s)) [B, G, R, L].

  The output of queries that saw no key is 0.
  """
  total_BGRL = jnp.where(sums.total_BGRL > 0, sums.total_BGRL, 1)
  out_BGRLK = sums.out_BGRLK / (total_BGRL * (1 - settings.rate))[..., None]
  return out_BGRLK, sums.top_BGRL + jnp.log(total_BGRL)


class Residuals(NamedTuple):
  """Inputs of the backward pass for the queries, float32.

  Attributes:
    dy_BGRLK: gradient of the output.
    dot_BGRL: its product with the output.
  """

  dy_BGRLK: jax.Array
  dot_BGRL: jax.Array
  log_BGRL: jax.Array


class Gradients(NamedTuple):
  """Float32 gradients of the values named without the d."""

  dq_BLGRK: jax.Array
  dk_BMGK: jax.Array
  dv_BMGK: jax.Array
  dbias: jax.Array | None


def gradients(
  settings: Settings, queries: Queries, keys: Keys, pairs: Pairs, residuals: Residuals
) -> Gradients:
  """The gradients through these keys, which may be a part of all keys."""
  queries_X = _query_blocks(settings, queries)
  keys_Y = _key_blocks(settings, keys)
  residuals_X = jax.tree.map(lambda x: _blocks(settings, x, 3), residuals)
  pairs_XY = _pair_blocks(settings, pairs)

  def of_queries(dkv_Y, x):
    query, residuals, pairs = x

    def of_keys(dq, x):
      key, pair, dkv = x
      dbias = None if pair.bias is None else jnp.zeros_like(pair.bias)

      def more():
        by = _gradient_block(settings, query, key, pair, residuals)
        new = (dkv[0] + by.dk_BMGK, dkv[1] + by.dv_BMGK)
        return dq + by.dq_BLGRK, (new, by.dbias)

      wanted = may_see(settings.pattern, query.tokens, key.tokens, query.prefix_B)
      return _where(wanted, more, lambda: (dq, (dkv, dbias)))

    start = jnp.zeros(query.q_BLGRK.shape, jnp.float32)
    dq, (dkv_Y, dbias_Y) = jax.lax.scan(of_keys, start, (keys_Y, pairs, dkv_Y))
    return dkv_Y, (dq, dbias_Y)

  start = tuple(jnp.zeros(x.shape, jnp.float32) for x in keys_Y[:2])
  (dk_Y, dv_Y), (dq_X, dbias_XY) = jax.lax.scan(
    of_queries, start, (queries_X, residuals_X, pairs_XY)
  )
  dbias = None
  if dbias_XY is not None:
    dbias = _joined(jax.vmap(lambda x: _joined(x, 3))(dbias_XY), 2)
  return Gradients(_joined(dq_X, 1), _joined(dk_Y, 1), _joined(dv_Y, 1), dbias)


def _scores(
  settings: Settings, query: Queries, key: Keys, pair: Pairs
) -> tuple[jax.Array, jax.Array]:
  """The scores, float32 [B, G, R, L, M], and their mask."""
  scores_BGRLM = jnp.einsum(
    'BLGRK,BMGK->BGRLM', query.q_BLGRK, key.k_BMGK, preferred_element_type=jnp.float32
  )
  if pair.bias is not None:
    shape = (-1, *scores_BGRLM.shape[1:])
    scores_BGRLM += pair.bias.reshape(shape).astype(jnp.float32)
  if settings.softcap:
    scores_BGRLM = settings.softcap * jnp.tanh(scores_BGRLM / settings.softcap)
  mask_BLM = visible(settings.pattern, query.tokens, key.tokens, query.prefix_B, pair.visible)
  return scores_BGRLM, mask_BLM[:, None, None]


def _add_block(settings: Settings, query: Queries, key: Keys, pair: Pairs, sums: Sums) -> Sums:
  scores_BGRLM, mask = _scores(settings, query, key, pair)
  scores_BGRLM = jnp.where(mask, scores_BGRLM, HIDDEN)
  top_BGRL = jnp.maximum(sums.top_BGRL, jnp.max(scores_BGRLM, axis=-1))
  exp_BGRLM = jnp.exp(scores_BGRLM - top_BGRL[..., None])
  # For a query that has seen no key yet, all are exp(0).
  exp_BGRLM = jnp.where(mask, exp_BGRLM, 0)
  less_BGRL = jnp.exp(sums.top_BGRL - top_BGRL)
  kept_BGRLM = _where_kept(settings, query, key, exp_BGRLM)
  more_BGRLK = jnp.einsum(
    'BGRLM,BMGK->BGRLK',
    kept_BGRLM.astype(key.v_BMGK.dtype),
    key.v_BMGK,
    preferred_element_type=jnp.float32,
  )
  return Sums(
    sums.out_BGRLK * less_BGRL[..., None] + more_BGRLK,
    sums.total_BGRL * less_BGRL + jnp.sum(exp_BGRLM, axis=-1),
    top_BGRL,
  )


def _gradient_block(
  settings: Settings, query: Queries, key: Keys, pair: Pairs, residuals: Residuals
) -> Gradients:
  """The gradients of one block: ds = p (m dy v - dy y).

  With dropout m is 1 / keep where a probability is kept, else 0.
  """
  dtype = query.q_BLGRK.dtype
  scores_BGRLM, mask = _scores(settings, query, key, pair)
  probs_BGRLM = jnp.exp(scores_BGRLM - residuals.log_BGRL[..., None])
  probs_BGRLM = jnp.where(mask, probs_BGRLM, 0)
  dy_BGRLK = residuals.dy_BGRLK.astype(dtype)

  def product(subscripts: str, *x: jax.Array) -> Any:
    return jnp.einsum(subscripts, *x, preferred_element_type=jnp.float32)

  kept_BGRLM = _where_kept(settings, query, key, probs_BGRLM)
  kept_BGRLM /= 1 - settings.rate
  dv_BMGK = product('BGRLM,BGRLK->BMGK', kept_BGRLM.astype(dtype), dy_BGRLK)
  dp_BGRLM = product('BGRLK,BMGK->BGRLM', dy_BGRLK, key.v_BMGK)
  dp_BGRLM = _where_kept(settings, query, key, dp_BGRLM) / (1 - settings.rate)
  ds_BGRLM = probs_BGRLM * (dp_BGRLM - residuals.dot_BGRL[..., None])
  if settings.softcap:
    ds_BGRLM *= 1 - jnp.square(scores_BGRLM / settings.softcap)
  dbias = None
  if pair.bias is not None:
    B, G, R, L, M = ds_BGRLM.shape
    dbias = ds_BGRLM.reshape(B, G * R, L, M)
    if len(pair.bias) == 1:
      dbias = jnp.sum(dbias, axis=0, keepdims=True)
    dbias = dbias.astype(pair.bias.dtype)
  ds_BGRLM = ds_BGRLM.astype(dtype)
  return Gradients(
    product('BGRLM,BMGK->BLGRK', ds_BGRLM, key.k_BMGK),
    product('BGRLM,BLGRK->BMGK', ds_BGRLM, query.q_BLGRK),
    dv_BMGK,
    dbias,
  )


def _where_kept(settings: Settings, query: Queries, key: Keys, x_BGRLM: jax.Array) -> jax.Array:
  """Zero where dropout drops the probability."""
  if query.hashes_BGR is None:
    return x_BGRLM
  key_1M, query_1L = (x.tokens.places.astype(jnp.uint32) for x in (key, query))
  hashes_BGR1M = query.hashes_BGR[..., None, None] ^ key_1M[None, None, None]
  query_L1 = query_1L[0, :, None]
  hashes_BGRLM = hashed(hashed(hashes_BGR1M) ^ query_L1[None, None, None])
  return jnp.where(kept(hashes_BGRLM, settings.rate), x_BGRLM, 0)


def _where(wanted: jax.Array | None, do: Callable, leave: Callable) -> Any:
  return do() if wanted is None else jax.lax.cond(wanted, do, leave)


def _query_blocks(settings: Settings, queries: Queries) -> Queries:
  q_X, tokens_X = (jax.tree.map(lambda x: _blocks(settings, x, 1), x) for x in queries[:2])
  of_rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (len(q_X), *x.shape)), queries[2:])
  return Queries(q_X, tokens_X, *of_rows)


def _key_blocks(settings: Settings, keys: Keys) -> Keys:
  return jax.tree.map(lambda x: _blocks(settings, x, 1), keys)


def _pair_blocks(settings: Settings, pairs: Pairs) -> Pairs:
  """Cuts bias and mask into blocks [X, Y, ...]."""

  def blocks(x: jax.Array) -> jax.Array:
    x_X = _blocks(settings, x, x.ndim - 2)
    return jax.vmap(lambda x: _blocks(settings, x, x.ndim - 1))(x_X)

  return jax.tree.map(blocks, pairs)


def _blocks(settings: Settings, x: jax.Array, dim: int) -> jax.Array:
  """Cuts a dimension into blocks, along a new first axis.

  No block spans both chunks of a device in a zigzag: see `zigzag.zigzag`.
  """
  length = x.shape[dim]
  half = length // 2 if length % 2 == 0 else length
  size = max(s for s in range(1, min(half, settings.block) + 1) if half % s == 0)
  shape = (*x.shape[:dim], length // size, size, *x.shape[dim + 1 :])
  return jnp.moveaxis(x.reshape(shape), dim, 0)


def _joined(blocks: jax.Array, dim: int) -> jax.Array:
  """The inverse of `_blocks`."""
  x = jnp.moveaxis(blocks, 0, dim)
  return x.reshape(*x.shape[:dim], -1, *x.shape[dim + 2 :])
