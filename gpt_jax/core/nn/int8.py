# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matrix products in int8, in training: `quantized` has those of decoding.

Numbers are symmetric, x = scale * q with |q| <= 127, and sums of products are
int32. These are exact, so that no division over devices changes them. The
gradient of a kernel sums over tokens, of which an int32 holds `LONGEST`: of more,
each device sums its own in int32, and the devices add what these stand for in the
compute dtype, as they add those of plain products (`_by_device`).

Training, y = x W, with `rounded` to the nearest and one scale for each row of x
and each column of W:

  x ~ s xq, W ~ wq t                   s [N, 1], t [1, F]
  y = s (xq wq) t
  dx = r (gq wq^T), r gq ~ dy t        r [N, 1]
  dW = (xq^T hq) c, c hq ~ s dy        c [1, F]

The gradients are those of the product of the rounded numbers, as if rounding
were the identity; each scale along a sum is moved into dy first, so that x and
W are rounded only once. Both forms of dy are rounded at random, up with the
probability of the fraction (Gupta et al., 2015, section 3.1), so that their
mean is dy. `gradients='inputs'` leaves dW in the compute dtype (Wortsman et
al., 2023: SwitchBack).
"""

import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attention_dropout import hashed
from gpt_jax.core.nn.quantized import MOST, rounded
from gpt_jax.core.spec import UsageError

# The most products that an int32 can sum.
LONGEST = (2**31 - 1) // MOST**2


class Int8(NamedTuple):
  """Products in 8-bit integers, forward and in the gradients.

  Args:
    gradients: which of them: those of inputs and kernels, or of inputs only
      (SwitchBack, Wortsman et al., 2023).
    rounding: of gradients. Inputs and kernels are rounded to the nearest.
  """

  gradients: Literal['both', 'inputs'] = 'both'
  rounding: Literal['stochastic', 'nearest'] = 'stochastic'

  def product(
    self,
    x: jax.Array,
    kernel_DF: jax.Array,
    tokens: jax.Array,
    axes: tuple[str | None, str] | None = None,
  ) -> jax.Array:
    """The product of x and a kernel: see `layers.Matmul`."""
    D = x.shape[-1]
    if max(D, kernel_DF.shape[1]) > LONGEST:
      raise UsageError(
        f'model.matmul=int8: a kernel of {D} x {kernel_DF.shape[1]}: 32-bit sums '
        f'hold {LONGEST:,} products; take plain'
      )
    return _product(self, axes, x, kernel_DF, tokens)

  def check_tokens(self, count: int) -> None:
    """Refuses more tokens of a device than the gradient of a kernel can sum."""
    if self.gradients == 'both' and count > LONGEST:
      raise UsageError(
        f'model.matmul=int8: the gradient of a kernel sums {count:,} tokens of a '
        f'device at once, and 32-bit sums hold {LONGEST:,}; set a smaller '
        "batch.micro_rows, or int8(gradients='inputs')"
      )


def plain() -> None:
  """All products in `model.dtype`."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(
  how: Int8, axes: Any, x: jax.Array, kernel_DF: jax.Array, tokens: jax.Array
) -> jax.Array:
  return _forward(how, axes, x, kernel_DF, tokens)[0]


def _forward(how, axes, x, kernel_DF, tokens):
  if axes is not None:
    kernel_DF = layout.constrain(kernel_DF, axes)
  xq, by_row = rounded(x, (x.ndim - 1,))
  wq_DF, by_column = rounded(kernel_DF, (0,))
  if axes is not None:
    wq_DF = layout.weight(wq_DF, axes, jnp.int8)
  sums = _dot(xq, wq_DF, ((x.ndim - 1,), (0,)))
  y = (sums.astype(jnp.float32) * by_row * _over(by_column, x)).astype(x.dtype)
  kept = x if how.gradients == 'inputs' else xq
  # An empty array carries the kernel's dtype.
  of_kernel = jnp.zeros((0,), kernel_DF.dtype)
  saved = kept, by_row, wq_DF, by_column, tokens, of_kernel
  return y, saved


def _backward(how, axes, saved, dy):
  x, by_row, wq_DF, by_column, tokens, of_kernel = saved
  last, lead = dy.ndim - 1, tuple(range(dy.ndim - 1))
  dtype, noise = dy.dtype, None
  if how.rounding == 'stochastic':
    noise = _noise(tokens, dy.shape[-1])
  wide = dy.astype(jnp.float32)
  gq, scale = rounded(wide * _over(by_column, dy), (last,), noise)
  sums = _dot(gq, wq_DF, ((last,), (1,)))
  dx = (sums.astype(jnp.float32) * scale).astype(dtype)
  if how.gradients == 'inputs':
    dw_DF = _dot(x, dy, (lead, lead))
  else:
    hq, scale = rounded(wide * by_row, lead, noise)
    if tokens.size > LONGEST:
      how.check_tokens(tokens.size // math.prod(_parts(tokens.shape, axes)))
      dw_DF = _by_device(x, hq, scale, dtype, axes)
    else:
      dw_DF = _dot(x, hq, (lead, lead))
      if axes is not None:
        dw_DF = layout.constrain(dw_DF, axes)
      dw_DF = dw_DF.astype(jnp.float32) * scale.reshape(1, -1)
  if axes is not None:
    dw_DF = layout.constrain(dw_DF, axes)
  return dx, dw_DF.astype(of_kernel.dtype), None


_product.defvjp(_forward, _backward)


def _by_device(x: jax.Array, hq: jax.Array, scale: jax.Array, dtype: Any, axes: Any) -> jax.Array:
  """The gradient of a kernel [D, F] by more tokens than an int32 sums.

  A column has one scale for all tokens, so that sums of each device's may be
  multiplied by it before they are added.
  """
  parts = _parts(x.shape[:-1], axes)
  shape = [n for part, size in zip(parts, x.shape, strict=False) for n in (part, size // part)]
  names = [name for name in _TOKENS[: len(parts)] for name in (name, None)]

  def split(a: jax.Array, axis: str | None) -> jax.Array:
    return layout.constrain(a.reshape(*shape, a.shape[-1]), (*names, axis))

  # Weights are gathered over `embed`, which splits tokens too.
  of_kernel = tuple(None if axis == 'embed' else axis for axis in axes)
  each, summed = (tuple(range(i, len(shape), 2)) for i in (0, 1))
  sums = jax.lax.dot_general(
    split(x, of_kernel[0]),
    split(hq, of_kernel[1]),
    ((summed, summed), (each, each)),
    preferred_element_type=jnp.int32,
  )
  sums = layout.constrain(sums, (*_TOKENS[: len(parts)], *of_kernel))
  stand_for = (sums.astype(jnp.float32) * _over(scale, sums)).astype(dtype)
  # Not `jnp.sum`, which would have the devices exchange float32.
  return jax.lax.reduce(stand_for, jnp.zeros((), dtype), jax.lax.add, range(len(parts)))


# Logical axes of the dimensions of tokens: [B L, ...], or [B, L, ...] where rows
# are split too.
_TOKENS = ('batch', 'length')


def _parts(shape: tuple[int, ...], axes: Any) -> tuple[int, ...]:
  """In how many parts the devices split each dimension of the tokens.

  Those of experts, whose kernels have no `axes`, count as one.
  """
  if axes is None:
    return (1,) * len(shape)
  named = ((size, layout.num_parts(name)) for size, name in zip(shape, _TOKENS, strict=False))
  return tuple(1 if size % parts else parts for size, parts in named)


def _over(scale_1F: jax.Array, like: jax.Array) -> jax.Array:
  return scale_1F.reshape((1,) * (like.ndim - 1) + (-1,))


def _dot(a: jax.Array, b: jax.Array, contracted: Any) -> jax.Array:
  kind = jnp.int32 if a.dtype == jnp.int8 else a.dtype
  return jax.lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=kind)


# Random bits: a hash of (key, token, column), the same for every division of
# the tokens into micro-batches and over devices.


def _noise(tokens: jax.Array, columns: int) -> jax.Array:
  """16 random bits for each column of each token: int32 [..., columns]."""
  column = jnp.arange(columns, dtype=jnp.uint32)
  column = column.reshape((1,) * tokens.ndim + (-1,))
  return (hashed(tokens[..., None] ^ column) >> 16).astype(jnp.int32)
