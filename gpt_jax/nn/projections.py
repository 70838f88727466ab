# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention's projections to the queries, keys and values of its heads."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from gpt_jax.nn.dense import Dense
from gpt_jax.nn.init import Initializer, Initializers


class Projections(nn.Module):
  """From vectors [B, L, D] to heads [B, L, H, K], or G of them.

  K of the values may be another than that of queries and keys (Vaswani et al.,
  2017, section 3.2.2: d_v and d_k).

  A module of `Position.terms` has these, too: for what it takes the same ways,
  and for the sizes of its own.
  """

  num_heads: int
  num_kv_heads: int
  head_size: int
  value_size: int
  bias: bool
  key_bias: bool
  inits: Initializers
  dtype: Any
  norm: Callable[..., nn.Module] | None  # that of queries and keys
  qk_norm: str  # of `block.QK_NORMS`

  def setup(self):
    """Creates the dense layers, and the norms that there are."""
    self.query = dense(self, self.num_heads, 'heads', kernel=self.inits.query)
    self.key = dense(self, self.num_kv_heads, 'kv_heads', bias=self.key_bias)
    self.value = dense(
      self, self.num_kv_heads, 'kv_heads', size=self.value_size
    )
    if self.qk_norm != 'none':
      assert self.norm is not None
      self.query_norm, self.key_norm = self.norm(), self.norm()

  def queries(self, x_BLD: jax.Array) -> jax.Array:
    """[B, L, H, K]."""
    return self._normalize('query_norm', self.heads(self.query(x_BLD)))

  def keys(self, x_BMD: jax.Array) -> jax.Array:
    """[B, M, G, K]."""
    return self._normalize('key_norm', self.heads(self.key(x_BMD)))

  def values(self, x_BMD: jax.Array) -> jax.Array:
    """[B, M, G, K]."""
    x = self.value(x_BMD)
    return x.reshape(*x.shape[:2], -1, self.value_size)

  def heads(self, x: jax.Array) -> jax.Array:
    """[B, L, H * K] to [B, L, H, K]."""
    return x.reshape(*x.shape[:2], -1, self.head_size)

  def _normalize(self, name: str, x_BLHK: jax.Array) -> jax.Array:
    """Each head by itself or all of a token together."""
    if self.qk_norm == 'none':
      return x_BLHK
    x = x_BLHK
    if self.qk_norm == 'all_heads':
      x = x.reshape(*x.shape[:2], -1)
    return getattr(self, name)(x).reshape(x_BLHK.shape)


def dense(
  like: Projections,
  num_heads: int,
  axis: str,
  *,
  size: int | None = None,
  bias: bool | None = None,
  kernel: Initializer | None = None,
) -> Dense:
  """To so many heads, whose logical axis has that name; a part of its caller.

  What is not given is that of the projections `like`.
  """
  return Dense(
    num_heads * (size or like.head_size),
    ('embed', axis),
    kernel or like.inits.kernel,
    like.bias if bias is None else bias,
    like.dtype,
  )
