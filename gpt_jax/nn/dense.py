# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kernels that are stored transposed, for decoding on a CPU.

XLA on CPU rearranges the right side of a matrix product in each call. In
decoding that is the kernel, which is far larger than the tokens: transposed, it
is the left side, and a product of 2 to 64 tokens takes two thirds of the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from gpt_jax.nn import layout
from gpt_jax.nn.init import Initializer, Initializers

Layer = dict[str, Any]


def transpose(params: Any) -> Any:
  """Has each dense layer's `kernel`, [D, F], as `transposed`, [F, D]."""

  def change(layer: Layer) -> Layer:
    out = {**layer, 'transposed': layer['kernel'].T}
    del out['kernel']
    return out

  return change_dense(params, change)


def change_dense(params: Any, change: Callable[[Layer], Layer]) -> Any:
  """Changes the parameters of each dense layer.

  Those of routers stay as they are, and those of experts, which are no
  matrices; so do embeddings and the output.

  Args:
    params: of a model whose layers are separate.
    change: from a layer's `kernel`, and what else it has, to what it gets.
  """
  out = dict(params)
  for name in ('decoder', 'encoder', 'source'):
    if name in out:
      out[name] = _changed(out[name], change)
  return out


def _changed(tree: Any, change: Callable[[Layer], Layer]) -> Any:
  out = {}
  for name, value in tree.items():
    if not isinstance(value, dict):
      out[name] = value
    elif name == 'router' or getattr(value.get('kernel'), 'ndim', 0) != 2:
      out[name] = _changed(value, change)
    else:
      out[name] = change(value)
  return out


def dot(x_ND: jax.Array, kernel_FD: jax.Array) -> jax.Array:
  """Multiplies x and the kernel: [N, F]."""
  # Without the barriers XLA would exchange the sides again.
  x_DN = jax.lax.optimization_barrier(x_ND.T)
  y_FN = jax.lax.optimization_barrier(kernel_FD @ x_DN)
  return y_FN.T


# Matrix products in int8, for decoding: 8-bit weights, 8-bit activations.
#
# Both are symmetric, x = scale * round(x / scale), |round(x / scale)| <= 127: a
# scale for each column of a kernel, made once, and one for each token, made
# when it is multiplied (as W8A8 with dynamic quantization is). The sums are
# exact, so that a token's result depends on no other token. On CPUs with 8-bit
# dot products this is faster than float32; weights alone in 8 bits are not, as
# they would be widened first.


MOST = 127


def quantize(params: Any) -> Any:
  """Replaces the kernels of dense layers; they get a `scale` each.

  Args:
    params: of a model whose layers are separate.
  """

  def change(layer: Layer) -> Layer:
    kernel_DF, scale_1F = _rounded(layer['kernel'], axis=0)
    return {**layer, 'kernel': kernel_DF, 'scale': scale_1F[0]}

  return change_dense(params, change)


def _rounded(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
  """int8 numbers and what they are multiples of, float32."""
  x = x.astype(jnp.float32)
  largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
  scale = jnp.where(largest > 0, largest, 1) / MOST
  return jnp.round(x / scale).astype(jnp.int8), scale


def int8_dot(
  x_ND: jax.Array, kernel_DF: jax.Array, scale_F: jax.Array
) -> jax.Array:
  """Multiplies x and the kernel: float32 [N, F]."""
  N = len(x_ND)
  if N == 1:
    # XLA on CPU has no fast product of 8-bit numbers for a single row.
    x_ND = jnp.concatenate([x_ND, x_ND])
  rounded_ND, scale_N1 = _rounded(x_ND, axis=1)
  y_NF = jnp.dot(rounded_ND, kernel_DF, preferred_element_type=jnp.int32)
  return (y_NF.astype(jnp.float32) * scale_N1 * scale_F[None])[:N]


# The dense layer, and how a parameter gets its logical axes.


def parameter(
  module: nn.Module,
  name: str,
  init: Initializer,
  shape: tuple[int, ...],
  axes: tuple[str, ...],
) -> jax.Array:
  """A parameter of `module` whose dimensions are named by `axes`.

  It starts in float32; `optim.precision` says in what it is kept.
  """
  if module.has_variable('params', name):
    # Flax traces the initializer again, only to compare the shape.
    init = nn.initializers.zeros
  boxed: Any = nn.with_logical_partitioning(init, axes)
  return module.param(name, boxed, shape, jnp.float32)


class Dense(nn.Module):
  """y = x @ kernel + bias, over the last axis.

  The kernel is stored as a matrix even where its columns are heads times head
  size: XLA forms the gradient reduce-scatter for two-dimensional weights only.
  In decoding it may be one of `int8.quantize` or of `transposed.transpose`.
  """

  features: int
  axes: tuple[str, str]
  initializer: Initializer
  bias: bool
  dtype: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., in] -> [..., features]."""
    # As one matrix: XLA on CPU would transpose a [B, L, D] input to contract
    # two axes at once for the kernel's gradient. But of parts of rows no matrix
    # can be made without the other parts.
    rows = x
    if layout.num_parts('length') == 1:
      rows = x.reshape(-1, x.shape[-1])
    if self.has_variable('params', 'transposed'):
      kernel_FD = self.get_variable('params', 'transposed')
      y = dot(rows, kernel_FD.astype(self.dtype))
    else:
      shape = (x.shape[-1], self.features)
      kernel = parameter(self, 'kernel', self.initializer, shape, self.axes)
      if kernel.dtype == jnp.int8:
        scale = self.get_variable('params', 'scale')
        y = int8_dot(rows, kernel, scale).astype(self.dtype)
      else:
        y = jnp.dot(rows, layout.weight(kernel, self.axes, self.dtype))
    if self.bias:
      zeros, shape = nn.initializers.zeros, (self.features,)
      bias = parameter(self, 'bias', zeros, shape, self.axes[1:])
      y += bias.astype(self.dtype)[(None,) * (y.ndim - 1)]
    return y.reshape(*x.shape[:-1], self.features)


# Attention's projections to the queries, keys and values of its heads.


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
  qk_norm: str  # of `block.QkNorm`

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
