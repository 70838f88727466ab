# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""BigBird's blocks between the global ones on a TPU, in Pallas.

The keys and values of a head stay in the chip's vector memory. A step of the
grid attends from one block of queries to its whole list: the two global blocks,
the window, and random blocks, whose numbers are in the scalar memory. So no
list is in HBM, and the softmax needs no second pass. The backward kernel
computes it again, and adds the gradients of keys and values up in place.

Suffixes within the kernels: L queries of a block, M keys of its list.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.attention_dropout import hashed, kept
from gpt_jax.core.nn.backends import ALL, RARE, Backend, not_split
from gpt_jax.core.nn.fast_backends import takes_kernel
from gpt_jax.core.nn.flash_distances import SUBLANES, product
from gpt_jax.core.nn.flash_kernel import HIDDEN
from gpt_jax.core.nn.kernels import LANES, for_devices
from gpt_jax.papers.bigbird.bigbird import gathered, random_blocks

# Tokens of a row whose keys, values and their gradients fit in the vector
# memory, of heads of up to LANES in bfloat16.
LONGEST = 4096


class Static(NamedTuple):
  """What a kernel is compiled for.

  Attributes:
    size: tokens of a block.
    window: blocks of the window, an odd number.
    interpret: runs on any device, slowly: for tests.
  """

  size: int
  window: int
  rate: float
  interpret: bool


class Operands(NamedTuple):
  """The kernels' inputs on a device, heads first.

  Attributes:
    q_BHLK: scaled queries, without those of the global blocks.
    k_BGMK: keys of whole rows.
    v_BGMK: values.
    random: int32 [H, N, J], the random blocks of each block of queries, counted
      from the second of the row.
    hashes: int32 [B, H], of `AttentionDropout.of_heads`; None: no dropout.
    real: int32 [B, N + 2, M], 0 for padding, of each block of keys again and
      again, as often as a list has blocks; None: there is none.
  """

  q_BHLK: jax.Array
  k_BGMK: jax.Array
  v_BGMK: jax.Array
  random: jax.Array
  hashes: jax.Array | None
  real: jax.Array | None


def blocks(interpret: bool = False) -> Backend:
  """For `bigbird`, computes only its blocks: in XLA, on a TPU in a kernel.

  Args:
    interpret: uses the kernel on any device, slowly: for tests.
  """

  def run(request: Request) -> jax.Array:
    kernel = None
    why_not = obstacle(request) or not_split(request)
    if takes_kernel('blocks', 'a kernel', why_not, interpret):
      kernel = functools.partial(between, interpret=interpret)
    return gathered(request, kernel)

  lacking = {'bias', 'by_distance', 'products', 'prefix', 'mask'}
  lacking |= {'two_sizes', 'order', *RARE}

  def sizes(request: Request) -> str | None:
    if request.pattern.blocks is None:
      return f'model.attention holds {request.pattern.name}, which lists no blocks'
    return None

  return Backend('blocks', run, ALL - lacking, sizes)


def obstacle(request: Request) -> str | None:
  """Why the kernel cannot serve the blocks, rows and heads, or None."""
  blocks, (L, _, K) = request.pattern.blocks, request.q_BLHK.shape[1:]
  assert blocks is not None
  if blocks.extra or blocks.first or not blocks.random:
    return 'its lists are not of two global blocks, a window and random ones'
  if request.softcap:
    return 'model.attention_scale has a softcap'
  if layout.num_parts('length') > 1:
    return 'mesh.rules.length splits rows over devices'
  if L % blocks.size or blocks.size % (2 * SUBLANES):
    return (
      f'the length {L} is not a multiple of blocks of {blocks.size} tokens, '
      f'which are a multiple of {2 * SUBLANES}'
    )
  size = request.q_BLHK.dtype.itemsize // 2 or 1
  longest = LONGEST // (-(-K // LANES) * size)
  if longest < L:
    return (
      f'rows of {L} tokens are longer than {longest}: the keys of a head would '
      'not fit in the vector memory'
    )
  return None


def between(request: Request, *, interpret: bool) -> jax.Array:
  """The output of the tokens between the global blocks, [B, L, H, K]."""
  blocks = request.pattern.blocks
  assert blocks is not None
  ends = blocks.between(request.q_BLHK.shape[1])
  assert ends is not None
  start, stop = ends
  q_BLHK, k_BLGK, v_BLGK = for_devices(request, layout.num_parts('heads'))
  H, dropout = q_BLHK.shape[2], request.dropout
  number = (stop - start) // blocks.size
  hashes = None
  if dropout is not None:
    hashes = jax.lax.bitcast_convert_type(dropout.of_heads(H), jnp.int32)
  real = request.visibility.key_mask_BM
  if real is not None:
    B = len(q_BLHK)
    real = jnp.broadcast_to(jnp.asarray(real, jnp.int32), (B, real.shape[1]))
    real = real.reshape(B, number + 2, blocks.size)
    real = jnp.tile(real, (1, 1, 2 + blocks.window + blocks.random))
  static = Static(blocks.size, blocks.window, 0.0 if dropout is None else dropout.rate, interpret)

  def local(q_BLHK, k_BLGK, v_BLGK, random, hashes, real):
    more = ((0, 0),) * 3 + ((0, -q_BLHK.shape[3] % SUBLANES),)
    q_BHLK, k_BGMK, v_BGMK = (jnp.pad(x, more).swapaxes(1, 2) for x in (q_BLHK, k_BLGK, v_BLGK))
    x = Operands(q_BHLK, k_BGMK, v_BGMK, random, hashes, real)
    out_BHLK: Any = _attend(static, x)
    return out_BHLK.swapaxes(1, 2)[..., : v_BLGK.shape[3]]

  heads = ('batch', None, 'heads', None)
  axes = (heads, heads, heads, ('heads', None, None), ('batch', 'heads'), ('batch', None, None))
  assert request.layer is not None
  return layout.per_device(local, axes, heads)(
    q_BLHK[:, start:stop],
    k_BLGK,
    v_BLGK,
    random_blocks(blocks, request.layer, H, number),
    hashes,
    real,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, x: Operands) -> jax.Array:
  return _forward(static, x)[0]


def _forward(static: Static, x: Operands):
  B, H, L, _ = x.q_BHLK.shape
  K = x.v_BGMK.shape[3]
  (out_BHLK,) = _call(
    'bigbird_forward',
    _forward_kernel,
    static,
    x,
    out={'out': ((B, H, L, K), x.v_BGMK.dtype, static.size)},
    products=2,
  )
  return out_BHLK, (x, out_BHLK)


def _backward(static: Static, residuals, grad_BHLK):
  x, out_BHLK = residuals
  (B, H, L, K), (_, G, M, _) = x.q_BHLK.shape, x.k_BGMK.shape
  # Of query heads; those that share a head of keys are summed below.
  dtype = x.k_BGMK.dtype if G == H else jnp.float32
  dq, dk, dv = _call(
    'bigbird_backward',
    _backward_kernel,
    static,
    x,
    more={'grad': grad_BHLK, 'y': out_BHLK},
    out={
      'dq': ((B, H, L, K), x.q_BHLK.dtype, static.size),
      'dk': ((B, H, M, K), dtype, M),
      'dv': ((B, H, M, K), dtype, M),
    },
    scratch={'dk_acc': (M, K), 'dv_acc': (M, K)},
    products=5,
  )
  if G < H:
    dk, dv = (y.reshape(B, G, H // G, M, -1).sum(axis=2).astype(x.k_BGMK.dtype) for y in (dk, dv))
  return (Operands(dq, dk, dv, *[None] * 3),)  # pyright: ignore


_attend.defvjp(_forward, _backward)


def _call(
  name: str,
  kernel: Any,
  static: Static,
  x: Operands,
  *,
  out: dict[str, tuple],
  products: int,
  more: dict[str, jax.Array] | None = None,
  scratch: dict[str, tuple[int, int]] | None = None,
) -> list[jax.Array]:
  """Runs a kernel on all blocks of all rows and heads.

  Args:
    kernel: called with `static` and the references by name.
    x: inputs.
    out: shape, dtype and tokens of a block of each output.
    products: of width K, for each score.
    more: further inputs, of the queries.
    scratch: shapes of float32 that stay while blocks change.
  """
  (B, H, L, K), (_, G, M, _) = x.q_BHLK.shape, x.k_BGMK.shape
  size, number = static.size, L // static.size
  scalars = {'random': x.random.reshape(-1)}
  if x.hashes is not None:
    scalars['hashes'] = x.hashes.reshape(-1)
  J, scratch = x.random.shape[2], scratch or {}
  inputs = {
    'q': (x.q_BHLK, size),
    **{key: (array, size) for key, array in (more or {}).items()},
    'k': (x.k_BGMK, M),
    'v': (x.v_BGMK, M),
  }

  def spec(tokens, heads=H):
    def index(b, h, n, *_):
      return b, h // (H // heads), n if tokens == size else 0, 0

    return pl.BlockSpec((1, 1, tokens, K), index)

  specs = [spec(tokens, G if key in ('k', 'v') else H) for key, (_, tokens) in inputs.items()]
  arrays = [array for array, _ in inputs.values()]
  if x.real is not None:
    specs.append(pl.BlockSpec((1, *x.real.shape[1:]), lambda b, h, n, *_: (b, 0, 0)))
    arrays.append(x.real)
    inputs['real'] = x.real, size
  names = (*scalars, *inputs, *out, *scratch)

  def run(*refs):
    b, h, n = (pl.program_id(i) for i in range(3))
    refs = SimpleNamespace(**dict(zip(names, refs, strict=True)))
    first = (h * number + n) * J
    # The global blocks, the window, and random blocks.
    around = static.window // 2
    near = [n + 1 + i for i in range(-around, around + 1)]
    drawn = [1 + refs.random[first + j] for j in range(J)]
    refs.listed = [0, number + 1, *near, *drawn]
    # Of the window only what is between the global blocks.
    refs.seen = [
      (block > 0) & (block <= number) if 2 <= i < 2 + len(near) else None
      for i, block in enumerate(refs.listed)
    ]
    refs.hash = refs.hashes[b * H + h] if 'hashes' in scalars else None
    kernel(static, refs, n, number)

  scores = B * H * L * (2 + static.window + J) * size
  moved = sum(array.size * array.dtype.itemsize for array in arrays)
  moved += sum(
    functools.reduce(int.__mul__, shape) * jnp.dtype(dtype).itemsize
    for shape, dtype, _ in out.values()
  )
  return pl.pallas_call(
    run,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(B, H, number),
      in_specs=specs,
      out_specs=[spec(tokens) for _, _, tokens in out.values()],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
    ),
    out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in out.values()],
    compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel', 'arbitrary')),
    interpret=static.interpret,
    name=name,
    cost_estimate=pl.CostEstimate(
      flops=2 * scores * products * K, transcendentals=scores, bytes_accessed=moved
    ),
  )(*scalars.values(), *arrays)


def _forward_kernel(static: Static, refs: Any, n: Any, number: int) -> None:
  """The output of a block of queries."""
  del number
  probs_LM, keep_LM, _, sees_L1 = _probabilities(static, refs, n)
  if keep_LM is not None:
    probs_LM = jnp.where(keep_LM, probs_LM, 0.0) / (1 - static.rate)
  value_MK = _gathered(static, refs, refs.v)
  out_LK = product(probs_LM.astype(value_MK.dtype), value_MK, (1, 0))
  refs.out[0, 0] = jnp.where(sees_L1, out_LK, 0.0).astype(refs.out.dtype)


def _backward_kernel(static: Static, refs: Any, n: Any, number: int) -> None:
  """The gradient of a block of queries; adds those of its keys and values."""

  @pl.when(n == 0)
  def _():
    refs.dk_acc[...] = jnp.zeros_like(refs.dk_acc)
    refs.dv_acc[...] = jnp.zeros_like(refs.dv_acc)

  probs_LM, keep_LM, key_MK, sees_L1 = _probabilities(static, refs, n)
  probs_LM = jnp.where(sees_L1, probs_LM, 0.0)
  query_LK, grad_LK = refs.q[0, 0], refs.grad[0, 0]
  of_probs_LM = product(grad_LK, _gathered(static, refs, refs.v), (1, 1))
  kept_LM = probs_LM
  if keep_LM is not None:
    kept_LM, of_probs_LM = (
      jnp.where(keep_LM, x_LM, 0.0) / (1 - static.rate) for x_LM in (probs_LM, of_probs_LM)
    )
  # sum_m p_m dp_m is the product of the output and its gradient.
  mean_L1 = jnp.sum(
    grad_LK.astype(jnp.float32) * refs.y[0, 0].astype(jnp.float32), axis=1, keepdims=True
  )
  of_scores_LM = (probs_LM * (of_probs_LM - mean_L1)).astype(query_LK.dtype)
  refs.dq[0, 0] = product(of_scores_LM, key_MK, (1, 0)).astype(refs.dq.dtype)
  dk_MK = product(of_scores_LM, query_LK, (0, 0))
  dv_MK = product(kept_LM.astype(grad_LK.dtype), grad_LK, (0, 0))
  for i, block in enumerate(refs.listed):
    at = _rows(static, _within(block, refs))
    part = slice(i * static.size, (i + 1) * static.size)
    refs.dk_acc[at] += dk_MK[part]
    refs.dv_acc[at] += dv_MK[part]

  @pl.when(n == number - 1)
  def _():
    refs.dk[0, 0] = refs.dk_acc[...].astype(refs.dk.dtype)
    refs.dv[0, 0] = refs.dv_acc[...].astype(refs.dv.dtype)


def _probabilities(static: Static, refs: Any, n: Any) -> tuple[Any, ...]:
  """Probabilities, those that dropout keeps, keys, and which queries see any.

  Each is of the block's whole list.
  """
  size = static.size
  key_MK = _gathered(static, refs, refs.k)
  scores_LM = product(refs.q[0, 0], key_MK, (1, 1))
  # The place of each key in the row, and whether it is seen.
  index_1M = jax.lax.broadcasted_iota(jnp.int32, (1, len(key_MK)), 1)
  key_1M, mask_1M = index_1M, jnp.ones_like(index_1M)
  for i, (block, seen) in enumerate(zip(refs.listed, refs.seen, strict=True)):
    here_1M = (index_1M >= i * size) & (index_1M < (i + 1) * size)
    key_1M = jnp.where(here_1M, index_1M + (block - i) * size, key_1M)
    if hasattr(refs, 'real'):
      real_1M = refs.real[0, pl.ds(_within(block, refs), 1)]
      mask_1M = jnp.where(here_1M, real_1M, mask_1M)
    if seen is not None:
      mask_1M *= jnp.where(here_1M, jnp.where(seen, 1, 0), 1)
  scores_LM = jnp.where(mask_1M != 0, scores_LM, HIDDEN)
  top_L1 = scores_LM.max(axis=1, keepdims=True)
  exp_LM = jnp.exp(scores_LM - top_L1)
  probs_LM = exp_LM / exp_LM.sum(axis=1, keepdims=True)
  keep_LM = None
  if refs.hash is not None:
    u32 = jnp.uint32
    of_keys_1M = hashed(key_1M.astype(u32) ^ refs.hash.astype(u32))
    query_LM = jax.lax.broadcasted_iota(jnp.int32, scores_LM.shape, 0)
    query_LM += (n + 1) * size
    keep_LM = kept(hashed(of_keys_1M ^ query_LM.astype(u32)), static.rate)
  return probs_LM, keep_LM, key_MK, top_L1 > HIDDEN


def _within(block: Any, refs: Any) -> Any:
  """A block of the row; those of the window beyond its ends are hidden."""
  return jnp.clip(block, 0, refs.listed[1])


def _rows(static: Static, block: Any) -> Any:
  return pl.ds(pl.multiple_of(block * static.size, static.size), static.size)


def _gathered(static: Static, refs: Any, x: Any) -> jax.Array:
  """The list's keys or values, [M, K]."""
  parts = [x[0, 0, _rows(static, _within(block, refs))] for block in refs.listed]
  return jnp.concatenate(parts)
