# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention kernels for TPU and GPU, called on each device's rows and heads.

Both compute `attend.attend_within` without storing the scores.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel,
  splash_attention_mask_info,
)

from gpt_jax.core.nn import layout
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.masks import Pattern

# Lanes of a TPU's vector unit; block sizes are multiples of it.
LANES = 128
# Blocks of a row. Splash stores three bytes for each pair of blocks in a TPU's
# scalar memory of 1 MiB.
MOST_BLOCKS = 512
# Longer rows have larger blocks, up to this size: the scores of a pair of
# blocks must fit in the vector memory.
LARGEST_BLOCK = 1024
# Up to so many tokens, a row may be one block.
WHOLE = 512
# Defaults of `backends.splash`, and its values in split rows. On a v6e chip, with
# rows of 2,048, a step with blocks of 1,024 took 150 ms, of 512 161 to 167 ms, of
# 128 400 ms (tpuchat, 2026).
SPLASH = {'block': 1024, 'fused_until': 4096}
# The info of masks that show everything: the scalar memory holds nothing.
EVERYTHING = splash_attention_mask_info.MaskInfo(*[None] * 5)

# Attention on one device's rows and heads: q, k, v, segments to [B, L, H, K].
Local = Callable[..., jax.Array]


def splash(request: Request, *, block: int, fused_until: int, interpret: bool) -> jax.Array:
  """JAX's Pallas kernel for TPU: see `backends.splash`."""
  local = splash_in_rows(request, block=block, fused_until=fused_until, interpret=interpret)
  visibility = request.visibility
  ids_BL = documents(visibility.key_mask_BM, visibility.segments_BL)
  return _per_device(local, request, ids_BL)


def splash_in_rows(request: Request, *, block: int, fused_until: int, interpret: bool) -> Local:
  """Splash for a request, on the rows and heads of one device."""
  length = request.q_BLHK.shape[1]
  return functools.partial(
    _splash,
    pattern=request.pattern,
    blocks=blocks(length, block, request.q_BLHK.shape[3], fused=length <= fused_until),
    softcap=request.softcap or None,
    interpret=interpret,
  )


def cudnn(request: Request) -> jax.Array:
  """CuDNN's fused attention, through JAX."""
  scale = request.scale
  if isinstance(scale, float):
    # In the kernel: queries in bfloat16 would be rounded once more.
    request = request._replace(scale=1.0)
  else:
    scale = 1.0  # it differs between layers
  local = functools.partial(_cudnn, pattern=request.pattern, scale=scale)
  visibility = request.visibility
  ids_BL = documents(visibility.key_mask_BM, visibility.segments_BL)
  return _per_device(local, request, ids_BL)


def _per_device(local: Local, request: Request, segments_BL: jax.Array | None) -> jax.Array:
  """Runs `local(q, k, v, segments)` on each device, with scaled queries."""
  qkv = for_devices(request, layout.num_parts('heads'))
  heads = ('batch', None, 'heads', None)
  axes = (heads, heads, heads, ('batch', None))
  run = layout.per_device(local, axes, heads)
  return run(*qkv, segments_BL)


def for_devices(request: Request, parts: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Scaled queries, keys and values, whose heads divide by `parts`.

  Each device needs the key/value heads of its query heads. If there are fewer
  than devices, they are repeated as often as necessary.
  """
  q_BLHK, k_BLGK, v_BLGK = request.q_BLHK, request.k_BLGK, request.v_BLGK
  q_BLHK = (q_BLHK * request.scale).astype(q_BLHK.dtype)
  num_kv_heads = k_BLGK.shape[2]
  copies = math.lcm(num_kv_heads, parts) // num_kv_heads
  if copies > 1:
    k_BLGK, v_BLGK = (jnp.repeat(x, copies, 2) for x in (k_BLGK, v_BLGK))
  return q_BLHK, k_BLGK, v_BLGK


def documents(mask_BL: jax.Array | None, segments_BL: jax.Array | None) -> jax.Array | None:
  """Combines documents and padding: tokens see those of equal number."""
  if mask_BL is None:
    return segments_BL
  padding_BL = 1 - mask_BL.astype(jnp.int32)
  return padding_BL if segments_BL is None else 2 * segments_BL + padding_BL


def splash_obstacle(length: int, head_size: int, block: int) -> str | None:
  """Why splash cannot serve such rows and heads, or None."""
  if length % LANES:
    return f'the length {length} is not a multiple of {LANES}'
  if block_size(length, block) is None:
    return (
      f'the length {length} does not divide into {MOST_BLOCKS} blocks or '
      f'fewer, of multiples of {LANES} up to {LARGEST_BLOCK}'
    )
  # 64, 96 and 128 were compiled; smaller ones would leave lanes empty.
  if head_size < 64 or head_size % 32:
    return f'model.head_size={head_size} is below 64 or no multiple of 32'
  return None


def block_size(length: int, block: int) -> int | None:
  """Splash's block size: the largest up to `block` that divides the length.

  Rows of more than WHOLE tokens have at least two, as only whole blocks are
  skipped that no query sees. If rows would have more than MOST_BLOCKS, up to
  LARGEST_BLOCK; None if that is not enough.
  """
  half = max(length // 2, WHOLE)
  for most in (block, LARGEST_BLOCK):
    sizes = (s for s in range(LANES, min(most, half) + 1, LANES) if length % s == 0)
    size = max(sizes, default=0)
    if length <= MOST_BLOCKS * size:
      return size
  return None


def blocks(length: int, block: int, head_size: int, *, fused: bool) -> splash_attention.BlockSizes:
  """Splash's block sizes for rows of this length.

  Args:
    length: of queries, and of keys; `block_size` divides it.
    block: the largest, but for very long rows.
    head_size: of queries and keys.
    fused: whether the backward pass is one kernel.
  """
  size = block_size(length, block)
  assert size is not None, length
  # Large heads leave less room in a TPU's vector memory, 16 MiB on v4.
  most = block if head_size <= LANES else min(block, WHOLE)
  back = block_size(length, most)
  assert back is not None, length

  def at_once(size: int) -> int:
    # Larger blocks compute their scores in parts.
    return size if size <= most else math.gcd(size, most)

  return splash_attention.BlockSizes(
    block_q=size,
    block_kv=size,
    block_kv_compute=at_once(size),
    block_q_dkv=back,
    block_kv_dkv=back,
    block_kv_dkv_compute=at_once(back),
    block_q_dq=None if fused else back,
    block_kv_dq=None if fused else back,
    use_fused_bwd_kernel=fused,
  )


def _splash(
  q_BLHK: jax.Array,
  k_BLGK: jax.Array,
  v_BLGK: jax.Array,
  segments_BL: jax.Array | None,
  *,
  pattern: Pattern,
  blocks: splash_attention.BlockSizes,
  softcap: float | None,
  interpret: bool,
) -> jax.Array:
  """Maps splash over rows: it takes one, heads first, with scaled queries."""
  L, H = q_BLHK.shape[1:3]
  kernel = make(pattern, L, H, blocks=blocks, softcap=softcap, interpret=interpret)
  ids = None
  if segments_BL is not None:
    ids = splash_attention.SegmentIds(segments_BL, segments_BL)
  heads_first = (x.swapaxes(1, 2) for x in (q_BLHK, k_BLGK, v_BLGK))
  out_BHLK: Any = jax.vmap(kernel)(*heads_first, ids)
  return out_BHLK.swapaxes(1, 2)


def make(
  pattern: Pattern,
  length: int,
  num_heads: int,
  *,
  blocks: splash_attention.BlockSizes,
  softcap: float | None,
  interpret: bool,
  save_residuals: bool = False,
) -> splash_attention_kernel.SplashAttentionKernel:
  """Splash for one row; with `save_residuals` also log(sum exp(scores)).

  If the pattern is not causal, it takes any number of queries and keys.
  """
  if not pattern.causal:
    return splash_attention_kernel.SplashAttentionKernel(
      EVERYTHING,
      None if blocks.use_fused_bwd_kernel else EVERYTHING,
      EVERYTHING,
      block_sizes=blocks,
      is_mqa=False,
      save_residuals=save_residuals,
      mask_value=splash_attention_kernel.DEFAULT_MASK_VALUE,
      attn_logits_soft_cap=softcap,
      residual_checkpoint_name=None,
      mask_function=None,
      interpret=interpret,
    )
  return splash_attention.make_splash_mha_single_device(
    splash_attention.MultiHeadMask([_causal(pattern, length)] * num_heads),
    block_sizes=blocks,
    attn_logits_soft_cap=softcap,
    save_residuals=save_residuals,
    interpret=interpret,
  )


def _causal(pattern: Pattern, length: int) -> splash_attention.Mask:
  """The splash mask of a causal pattern."""
  back = None if pattern.window is None else pattern.window - 1
  return _Causal((length, length), (back, 0), offset=0)


class _Causal(splash_attention.LocalMask):
  """A causal mask that splash can inspect quickly.

  Splash reads every block of a mask, which takes minutes for rows of 131,072
  tokens, only to learn whether all or none of it is seen. For such blocks one
  element suffices.
  """

  def __getitem__(self, idx: tuple[slice, slice]) -> np.ndarray:
    """Bool [L, M] of a block, or [1, 1] if all its entries are equal."""
    query, key = idx
    back, _ = self.window_size
    first, last = query.start, query.stop - 1
    if key.start > last or (back is not None and key.stop <= first - back):
      return np.zeros((1, 1), bool)
    if key.stop - 1 <= first and (back is None or key.start >= last - back):
      return np.ones((1, 1), bool)
    return super().__getitem__(idx)


def _cudnn(
  q_BLHK: jax.Array,
  k_BLGK: jax.Array,
  v_BLGK: jax.Array,
  segments_BL: jax.Array | None,
  *,
  pattern: Pattern,
  scale: float,
) -> jax.Array:
  """Gives cuDNN documents and padding as a mask of all pairs of tokens.

  Its bytes, two a pair, are those of the scores of one head.
  """
  window = None if pattern.window is None else (pattern.window - 1, 0)
  mask_B1LM = None
  if segments_BL is not None:
    mask_B1LM = segments_BL[:, None, :, None] == segments_BL[:, None, None]
  return jax.nn.dot_product_attention(
    q_BLHK,
    k_BLGK,
    v_BLGK,
    mask=mask_B1LM,
    scale=scale,
    is_causal=pattern.causal,
    local_window_size=window,
    implementation='cudnn',
  )
