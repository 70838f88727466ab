# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layer of self-attention, among the tokens of a row or to a cache."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.core.nn import activations
from gpt_jax.core.nn.attend import Request, Scale
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.backends import Backend, attend_rows, backend_for, reference
from gpt_jax.core.nn.kv_cache import Cache, KVCache, attend_so_far
from gpt_jax.core.nn.layers import Dense, Initializers, Matmul, Projections, row_numbers
from gpt_jax.core.nn.masks import Pattern
from gpt_jax.core.nn.positions import Position, ScoreInputs
from gpt_jax.core.nn.row import Context


class Attention(nn.Module):
  """Projects to queries, keys and values, attends, projects back."""

  pattern: Pattern
  position: Position
  num_heads: int
  num_kv_heads: int
  head_size: int
  scale: Scale
  backend: Backend
  bias_in: bool
  bias_out: bool
  dropout: float
  inits: Initializers
  dtype: Any
  norm: Callable[..., nn.Module] | None = None  # of queries and keys
  qk_norm: str = 'none'  # of `block.QkNorm`
  bias_key: bool | None = None  # None: `bias_in`
  value_size: int = 0  # of values of a head; 0: `head_size`
  matmul: Matmul | None = None

  def setup(self):
    """Creates the projections, and the position's terms if it has any."""
    self.projections = Projections(
      num_heads=self.num_heads,
      num_kv_heads=self.num_kv_heads,
      head_size=self.head_size,
      value_size=self.value_size or self.head_size,
      bias=self.bias_in,
      key_bias=self.bias_in if self.bias_key is None else self.bias_key,
      inits=self.inits,
      dtype=self.dtype,
      norm=self.norm,
      qk_norm=self.qk_norm,
      matmul=self.matmul,
    )
    # Their parameters are direct children of this module.
    nn.share_scope(self, self.projections)
    if self.position.terms:
      self.terms = self.position.terms(self.projections)
      nn.share_scope(self, self.terms)

  def __call__(
    self, x_BLD: jax.Array, context: Context, cache: Cache | None = None, *, layer: jax.Array
  ) -> tuple[jax.Array, Cache | None]:
    """Attends within `x_BLD`, or to a cache.

    Args:
      cache: written at the positions, then read as a whole.
      layer: index of the layer, from 0.

    Returns:
      [B, L, D] and the cache with the new keys and values.
    """
    q_BLHK = self.projections.queries(x_BLD)
    y_BLHK, cache = self.within(q_BLHK, x_BLD, context, cache, layer)
    return self.project_out(y_BLHK, x_BLD), cache

  def within(
    self,
    q_BLHK: jax.Array,
    source_BMD: jax.Array,
    context: Context,
    cache: KVCache | None,
    layer: jax.Array,
    run: Callable[[Request], jax.Array] | None = None,
  ) -> tuple[jax.Array, KVCache | None]:
    """Attends from `q_BLHK` to the tokens of a row, or to those of the cache.

    Args:
      q_BLHK: queries.
      source_BMD: the input of keys and values, of which the last are the row's.
      run: computes the request; None: the backend.
    """
    k_BMGK = self.projections.keys(source_BMD)
    v_BMGK = self.projections.values(source_BMD)
    positions_BL = context.positions(q_BLHK.shape[1])
    rotate = self.position.rotation(self.pattern)
    if rotate is not None:
      q_BLHK = rotate(q_BLHK, positions_BL)
      k_BMGK = rotate(k_BMGK, positions_BL)
    if cache is not None:
      cache = cache.written(positions_BL, k_BMGK, v_BMGK)
    scale, bias = self.scale(self.head_size, layer), context.bias
    if self.position.terms:
      inputs = ScoreInputs(
        q_BLHK=q_BLHK,
        k_BMGK=k_BMGK,
        context=context,
        cache=cache,
        pattern=self.pattern,
        layer=layer,
        scale=scale,
        d_model=source_BMD.shape[-1],
      )
      q_BLHK, bias = self.terms(inputs)
    request = Request(
      q_BLHK=q_BLHK,
      k_BLGK=k_BMGK,
      v_BLGK=v_BMGK,
      pattern=self.pattern,
      visibility=context.visibility,
      scale=scale,
      bias=bias,
      dropout=self.drawn_dropout(len(q_BLHK)),
      softcap=self.scale.softcap,
      layer=layer,
    )
    if cache is not None:
      return attend_so_far(request, positions_BL, cache), cache
    return (run or self.attend)(request), None

  def attend(self, request: Request) -> jax.Array:
    """Has the backend compute a request: [B, L, H, K]."""
    # Initialisation uses rows of one token, which few backends serve.
    backend = reference() if self.is_initializing() else self.backend
    backend = backend_for(request, backend)
    if request.pattern.blocks is None:
      measure = functools.partial(activations.largest_logits, request)
      activations.sow(self, activations.LARGEST_LOGIT, measure)
    return attend_rows(request, backend=backend, layer=self.path)

  @nn.compact
  def project_out(self, y_BLHK: jax.Array, x_BLD: jax.Array) -> jax.Array:
    """Projects the heads back to the width of `x_BLD`."""
    out = Dense(
      x_BLD.shape[-1],
      ('heads', 'embed'),
      self.inits.residual,
      self.bias_out,
      self.dtype,
      self.matmul,
      name='out',
    )
    return out(y_BLHK.reshape(*x_BLD.shape[:2], -1))

  def drawn_dropout(self, num_rows: int) -> AttentionDropout | None:
    """The dropout of the probabilities, in training."""
    if not self.dropout or not self.has_rng('dropout'):
      return None
    seed = jax.random.bits(self.make_rng('dropout'), dtype=jnp.uint32)
    return AttentionDropout(self.dropout, seed, row_numbers(num_rows))
