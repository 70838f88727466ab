# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matrix products in int8, in training: `quantized` has those of decoding.

Numbers are symmetric, x = scale * q with |q| <= 127, and sums of products are
int32. If devices split a sum, each sums its part exactly, multiplies it by the
scale, and they add the results in the compute dtype, as in plain products
(`_multiply`). Sending int32 takes twice the bytes, and the gradients by way of
queries, keys and values could not be added before they are sent, as their scales
differ. The gradient of a kernel sums over tokens, of which an int32 holds
`LONGEST`. Up to that number devices add it in int32 too, so that no division of
the tokens changes a bit.

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
from collections.abc import Callable, Sequence
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

  def stand_for(sums):
    return (sums.astype(jnp.float32) * _rows(by_row, sums) * _over(by_column, sums)).astype(x.dtype)

  names, D, F = _names(x, axes)
  contracted = (x.ndim - 1,), (0,)
  y = _multiply(xq, (*names, D), wq_DF, (D, F), contracted, stand_for)
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
  gq, of_row = rounded(wide * _over(by_column, dy), (last,), noise)
  names, D, F = _names(x, axes)

  def inputs(sums):
    return (sums.astype(jnp.float32) * _rows(of_row, sums)).astype(dtype)

  dx = _multiply(gq, (*names, F), wq_DF, (D, F), ((last,), (1,)), inputs)
  if how.gradients == 'inputs':
    dw_DF = jax.lax.dot_general(x, dy, ((lead, lead), ((), ())), preferred_element_type=x.dtype)
  else:
    hq, of_column = rounded(wide * by_row, lead, noise)
    if tokens.size > LONGEST:
      how.check_tokens(tokens.size // math.prod(_parts(tokens.shape, names)))

      def kernels(sums):
        return (sums.astype(jnp.float32) * _over(of_column, sums)).astype(dtype)

      dw_DF = _multiply(x, (*names, D), hq, (*names, F), (lead, lead), kernels)
    else:
      dw_DF = _dot(x, hq, (lead, lead))
      if axes is not None:
        dw_DF = layout.constrain(dw_DF, axes)
      dw_DF = dw_DF.astype(jnp.float32) * of_column.reshape(1, -1)
  if axes is not None:
    dw_DF = layout.constrain(dw_DF, axes)
  return dx, dw_DF.astype(of_kernel.dtype), None


_product.defvjp(_forward, _backward)


Names = tuple[str | None, ...]


def _multiply(
  a: jax.Array,
  a_axes: Names,
  b: jax.Array,
  b_axes: Names,
  contracted: tuple[tuple[int, ...], tuple[int, ...]],
  stand_for: Callable[[jax.Array], jax.Array],
) -> jax.Array:
  """The product of two int8 arrays, in floats.

  Each device sums its part in int32 and converts the sum by `stand_for`; the
  devices add the floats. This is allowed because all parts of a sum have one scale.

  Args:
    a_axes: the logical axis of each dimension.
    contracted: the dimensions of a and of b that are summed.
    stand_for: from sums [..., *rest of a, *rest of b] to floats.
  """
  count = len(contracted[0])
  summed = [a_axes[i] for i in contracted[0]]
  parts = _parts([a.shape[i] for i in contracted[0]], summed)
  if math.prod(parts) == 1:
    return stand_for(_dot(a, b, contracted))

  def split(x: jax.Array, axes: Names, where: tuple[int, ...]) -> tuple[jax.Array, Names]:
    """[*parts, *rest, *what a device sums], and the axes of the rest."""
    rest = tuple(i for i in range(x.ndim) if i not in where)
    x = jnp.moveaxis(x, where, range(-count, 0))
    kept = x.shape[: len(rest)]
    pairs = zip(parts, x.shape[len(rest) :], strict=True)
    x = x.reshape(*kept, *(n for part, size in pairs for n in (part, size // part)))
    x = jnp.moveaxis(x, range(len(rest), x.ndim, 2), range(count))
    names = tuple(axes[i] for i in rest)
    return layout.constrain(x, (*summed, *names, *(None,) * count)), names

  (a, a_rest), (b, b_rest) = split(a, a_axes, contracted[0]), split(b, b_axes, contracted[1])
  each = tuple(range(count))
  last = tuple(range(a.ndim - count, a.ndim)), tuple(range(b.ndim - count, b.ndim))
  sums = jax.lax.dot_general(a, b, (last, (each, each)), preferred_element_type=jnp.int32)
  sums = layout.constrain(sums, (*summed, *a_rest, *b_rest))
  floats = stand_for(sums)
  # Not `jnp.sum`, which would have the devices exchange float32.
  return jax.lax.reduce(floats, jnp.zeros((), floats.dtype), jax.lax.add, each)


# Logical axes of the dimensions of tokens: [B L, ...], or [B, L, ...] where rows
# are split too.
_TOKENS = ('batch', 'length')


def _names(x: jax.Array, axes: Any) -> tuple[Names, str | None, str | None]:
  """The axes of the tokens of x [..., D], of D and of F.

  Kernels are gathered over `embed`, which splits tokens too. Experts, whose
  kernels have no `axes`, count as whole.
  """
  if axes is None:
    return (None,) * (x.ndim - 1), None, None
  D, F = (None if axis == 'embed' else axis for axis in axes)
  return _TOKENS[: x.ndim - 1], D, F


def _parts(shape: Sequence[int], axes: Sequence[str | None]) -> list[int]:
  """In how many parts the devices split each dimension."""
  shards = [layout.num_parts(name) if name else 1 for name in axes]
  return [1 if size % n else n for size, n in zip(shape, shards, strict=True)]


def _rows(scale: jax.Array, like: jax.Array) -> jax.Array:
  return scale.reshape((1,) * (like.ndim - scale.ndim) + scale.shape)


def _over(scale_1F: jax.Array, like: jax.Array) -> jax.Array:
  return scale_1F.reshape((1,) * (like.ndim - 1) + (-1,))


def _dot(a: jax.Array, b: jax.Array, contracted: Any) -> jax.Array:
  return jax.lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=jnp.int32)


# Random bits: a hash of (key, token, column), the same for every division of
# the tokens into micro-batches and over devices.


def _noise(tokens: jax.Array, columns: int) -> jax.Array:
  """16 random bits for each column of each token: int32 [..., columns]."""
  column = jnp.arange(columns, dtype=jnp.uint32)
  column = column.reshape((1,) * tokens.ndim + (-1,))
  return (hashed(tokens[..., None] ^ column) >> 16).astype(jnp.int32)
