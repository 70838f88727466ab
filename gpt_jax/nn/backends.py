# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention to the blocks that `blocks.Blocks` names (BigBird).

`gathered` multiplies only these: keys and values of the window and of random
blocks are gathered for each block of queries, so that time and memory grow
with the length of a row instead of its square. `dense` is what it must equal:
all scores, each counted as often as its key is listed. Suffixes beside those
of `nn/`: N blocks, L queries and M keys of a block; X lists of keys for each
block, and the Q queries of a block that read one list.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn import dot_product, kernels, layout, split_backends
from gpt_jax.nn.backend import (
  Backend,
  log_once,
  not_plain,
  not_split,
  odd_sizes,
  of_two_sizes,
)
from gpt_jax.nn.dot_product import (
  Request,
  attend,
  attend_within,
  float32_einsum,
  for_groups,
  grouped,
  scores,
  ungrouped,
)
from gpt_jax.nn.kernels import SPLASH
from gpt_jax.nn.masks import Blocks, bidirectional, random_blocks
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError

# Queries whose lists of keys are held at a time.
CHUNK = 512


def dense(request: Request) -> jax.Array:
  """The scores of all tokens, each as often as the blocks list its key.

  softmax over a list with repeats: exp(s) * count / sum(exp(s) * count).
  """
  blocks, L = _blocks(request), request.q_BLHK.shape[1]
  if blocks.between(L) is None:
    return _whole(request)
  visibility, (G, H) = request.visibility, _heads(request)
  counts_HLM = listed(blocks, request.layer, H, L)
  counts = counts_HLM.reshape(1, G, -1, L)
  if visibility.key_mask_BM is not None:
    counts *= visibility.key_mask_BM[:, None, None]
  k_BGMK, v_BGMK = request.k_BLGK.swapaxes(1, 2), request.v_BLGK.swapaxes(1, 2)
  q_BGQK = grouped(request.q_BLHK, G)
  products: Any = float32_einsum('BGQK,BGMK->BGQM', q_BGQK, k_BGMK)
  if visibility.visible_BLM is not None:
    counts *= for_groups(visibility.visible_BLM, products)
  kept_BGQM = None
  if request.dropout is not None:
    kept_BGQM = request.dropout.kept(products.shape)
  out_BGQK = _weighted(request, products, v_BGMK, counts, kept_BGQM)
  return _real(request, ungrouped(out_BGQK, request.q_BLHK.shape))


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


def _between(
  request: Request, mask_BM: jax.Array, start: int, stop: int
) -> jax.Array:
  """What the tokens from `start` to `stop` get, [B, stop - start, H, K]."""
  blocks, (G, H) = _blocks(request), _heads(request)
  # How often a list has a key: what is added to fill blocks, or stands beside
  # the row's ends, is zero.
  times_BM = mask_BM.astype(jnp.int32)
  if blocks.first:
    times_BM = times_BM.at[:, :start].multiply(1 + blocks.random)
  q_BHNLK = _cut(request.q_BLHK, start, stop, blocks.size)
  B, _, N, L, K = q_BHNLK.shape
  index_HNJ = None
  if blocks.random and not blocks.first:
    assert request.layer is not None
    index_HNJ = random_blocks(blocks, request.layer, H, N)
  # Heads that draw blocks by themselves share no list of keys.
  X = G if index_HNJ is None else H

  def cut(x_BLGK: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_BLXK = jnp.repeat(x_BLGK, X // x_BLGK.shape[2], axis=2)
    global_BXMK = _outside(x_BLXK, start, stop).swapaxes(1, 2)
    return global_BXMK, _cut(x_BLXK, start, stop, blocks.size)

  times_BLGK = jnp.repeat(times_BM[:, :, None, None], G, axis=2)
  kinds = [cut(x) for x in (request.k_BLGK, request.v_BLGK, times_BLGK)]

  def some(chunk: _Chunk) -> jax.Array:
    """What some of the blocks get, [B, X, N, Q, K]."""
    q_BXNQK, kept_BXNQM = chunk.q_BXNQK, chunk.kept_BXNQM
    k, v, times = (
      _merged(_lists(*kind, near, blocks.window, chunk.index_XNJ))
      for kind, near in zip(kinds, chunk.near, strict=True)
    )
    products = float32_einsum('BGQK,BGMK->BGQM', _merged(q_BXNQK), k)
    kept = None if kept_BXNQM is None else _merged(kept_BXNQM)
    counts = times.swapaxes(2, 3)
    out_BGQK = _weighted(request, products, v, counts, kept)
    return out_BGQK.reshape(q_BXNQK.shape[:4] + (-1,))

  q_BXRNLK = q_BHNLK.reshape(B, X, H // X, N, L, K)
  q_BXNQK = q_BXRNLK.swapaxes(2, 3).reshape(B, X, N, -1, K)
  kept_BXNQM = None
  if request.dropout is not None:
    drawn = 0 if index_HNJ is None else index_HNJ.shape[2]
    M = kinds[0][0].shape[2] + (blocks.window + drawn) * blocks.size
    kept_BXNQM = request.dropout.kept((*q_BXNQK.shape[:4], M))
  size = -(-N // -(-N * blocks.size // CHUNK))  # in chunks of equal size
  chunks = _Chunk(
    _split(q_BXNQK, 2, size),
    [_split(x, 2, size, around=blocks.window // 2) for _, x in kinds],
    None if index_HNJ is None else _split(index_HNJ, 1, size),
    None if kept_BXNQM is None else _split(kept_BXNQM, 2, size),
  )
  # The lists are made again for their gradients: those of all blocks would hold
  # each key many times.
  some = jax.checkpoint(
    some, policy=jax.checkpoint_policies.save_only_these_names(dot_product.KEPT)
  )
  out_BXNQK = jnp.concatenate(list(jax.lax.map(some, chunks)), axis=2)
  out_BXNQK = out_BXNQK[:, :, :N]
  out_BXNRLK = out_BXNQK.reshape(B, X, N, H // X, L, -1)
  out_BHNLK = out_BXNRLK.swapaxes(2, 3).reshape(B, H, N * L, -1)
  return out_BHNLK.swapaxes(1, 2)[:, : stop - start]


class _Chunk(NamedTuple):
  """Some of the blocks.

  Attributes:
    q_BXNQK: their queries.
    near: keys, values and how often each counts, [B, X, N + window - 1, M, K]:
      of these blocks, and of those before and after that they see.
    index_XNJ: their random blocks; None: they have none.
    kept_BXNQM: what dropout leaves; None: all.
  """

  q_BXNQK: jax.Array
  near: list[jax.Array]
  index_XNJ: jax.Array | None
  kept_BXNQM: jax.Array | None


def _split(x: jax.Array, axis: int, size: int, around: int = 0) -> jax.Array:
  """Chunks of `size` blocks each, with those around them: [C, ...].

  Where there are no more blocks there are zeros.
  """
  number = -(-x.shape[axis] // size)
  widths = [(0, 0)] * x.ndim
  widths[axis] = (around, around + number * size - x.shape[axis])
  x = jnp.pad(x, widths)
  parts = [
    jax.lax.slice_in_dim(x, i * size, (i + 1) * size + 2 * around, axis=axis)
    for i in range(number)
  ]
  return jnp.stack(parts)


def _lists(
  global_BXMK: jax.Array,
  others_BXNMK: jax.Array,
  near_BXNMK: jax.Array,
  window: int,
  index_XNJ: jax.Array | None,
) -> jax.Array:
  """What the blocks of a chunk see, [B, X, N, M, K].

  The global tokens, those around each block, and the random blocks. Where the
  row has no block there are zeros, which a mask shows as hidden.
  """
  B, X, N, _, K = near_BXNMK.shape
  N -= window - 1
  shape = B, X, N, global_BXMK.shape[2], K
  parts = [jnp.broadcast_to(global_BXMK[:, :, None], shape)]
  parts += [near_BXNMK[:, :, i : i + N] for i in range(window)]
  if index_XNJ is not None:
    take = jax.vmap(lambda x_BNMK, index: x_BNMK[:, index], (1, 0), 1)
    drawn = take(others_BXNMK, index_XNJ)
    parts.append(drawn.reshape(B, X, N, -1, K))
  return jnp.concatenate(parts, axis=3)


def _merged(x_BXNMK: jax.Array) -> jax.Array:
  """[B, X N, M, K]."""
  B, X, N, M, K = x_BXNMK.shape
  return x_BXNMK.reshape(B, X * N, M, K)


def _outside(x: jax.Array, start: int, stop: int) -> jax.Array:
  """The global tokens of [B, L, ...]."""
  return jnp.concatenate([x[:, :start], x[:, stop:]], axis=1)


def _cut(x_BLHK: jax.Array, start: int, stop: int, size: int) -> jax.Array:
  """The others in blocks, the last one filled: [B, H, N, M, K]."""
  more = -(stop - start) % size
  x_BLHK = jnp.pad(x_BLHK[:, start:stop], ((0, 0), (0, more), (0, 0), (0, 0)))
  B, _, H, K = x_BLHK.shape
  return x_BLHK.swapaxes(1, 2).reshape(B, H, -1, size, K)


def _weighted(
  request: Request,
  products_BGQM: Any,
  v_BGMK: jax.Array,
  counts: jax.Array,
  kept_BGQM: jax.Array | None,
) -> jax.Array:
  """The values by a softmax of the scores, each as often as it counts.

  As `dot_product.attend`: [B, G, Q, K], after dropout.
  """
  how = request.scale, request.bias, request.softcap
  scores_BGQM = scores(products_BGQM, *how)
  scores_BGQM += jnp.log(jnp.maximum(counts, 1).astype(jnp.float32))
  keep = 1.0 if request.dropout is None else request.dropout.keep
  out: Any = dot_product.weighted(
    scores_BGQM, v_BGMK, counts > 0, kept_BGQM, keep
  )
  return out


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


# What computes attention among the tokens of each row.
#
# `reference` is plain XLA and serves every call; `splash` (TPU) and `cudnn`
# (GPU) never hold the scores, and serve most; `blocks` (any device) multiplies
# only the blocks of a block-sparse pattern; `all_gather`, `ring` and `ulysses`
# serve rows that are split over devices. `auto` takes the one that is made for
# the devices, or the pattern, or the reference where that one cannot serve the
# call.


def attend_rows(request: Request, *, backend: Backend) -> jax.Array:
  """`dot_product.attend_within`, computed by `backend`.

  What a query that is itself padding gets differs between backends; nobody
  reads it.
  """
  check(backend, request)
  return backend.run(request)


def check(backend: Backend, request: Request) -> None:
  """Raises UsageError if the backend cannot serve the request."""
  packed = request.visibility.segments_BL is not None
  if packed and request.pattern.blocks is not None:
    raise UsageError(
      'model.attention=bigbird: its blocks are those of a row, which cannot '
      'hold packed documents; take another data.rows'
    )
  obstacle = backend.obstacle(request)
  if obstacle:
    raise UsageError(
      f'model.attention_backend={backend.name}: {obstacle}; change that, or '
      'take auto or reference'
    )


def reference() -> Backend:
  """Plain XLA, on any device, for every call."""

  def run(request: Request) -> jax.Array:
    if request.pattern.blocks is not None:
      return dense(request)
    return attend_within(request)

  return Backend('reference', lambda request: None, run)


def blocks() -> Backend:
  """Plain XLA, on any device, for `bigbird`: nothing else is multiplied."""

  def obstacle(request: Request) -> str | None:
    if request.pattern.blocks is None:
      return 'model.attention holds other patterns than bigbird'
    if request.bias is not None:
      return 'model.position adds a bias to the scores'
    if request.visibility.uneven:
      return 'rows have a prefix or a mask of their own'
    return of_two_sizes(request)

  return Backend('blocks', obstacle, gathered)


def splash(
  block: Count = SPLASH['block'],
  fused_until: Whole = SPLASH['fused_until'],
  interpret: bool = False,
) -> Backend:
  """JAX's Pallas kernel for TPU, which skips blocks that are hidden.

  Args:
    block: of queries and of keys, at most; what divides the length is taken.
    fused_until: rows up to this length have one backward kernel. It is faster
      than two, but keeps a partial gradient of the queries for each block of
      keys: memory grows as length^2 / block.
    interpret: runs on any device, slowly: for tests.
  """
  if block < kernels.LANES or block % kernels.LANES:
    raise UsageError(
      f'model.attention_backend: block={block} is not a multiple of '
      f'{kernels.LANES}'
    )

  run = functools.partial(
    kernels.splash, block=block, fused_until=fused_until, interpret=interpret
  )
  platform = None if interpret else 'tpu'
  obstacle = functools.partial(odd_sizes, block=block)
  return _kernel('splash', platform, obstacle, run)


def cudnn() -> Backend:
  """NVIDIA's kernels for GPU."""

  def obstacle(request: Request) -> str | None:
    dtype = request.q_BLHK.dtype
    if dtype not in (jnp.bfloat16, jnp.float16):
      return f'model.dtype={dtype} is neither bfloat16 nor float16'
    capability = _capability()
    if capability < 8:
      return f'compute capability {capability} is below 8.0 (Ampere)'
    head_size = request.q_BLHK.shape[3]
    largest = 128 if capability < 9 else 256
    if head_size % 8 or head_size > largest:
      return (
        f'model.head_size={head_size} is above {largest} or no multiple of 8'
      )
    if request.softcap:
      return 'model.attention_scale has a softcap'
    if any(x is not None for x in request.visibility[:2]):
      return 'rows have padding or packed documents'
    return None

  return _kernel('cudnn', 'gpu', obstacle, kernels.cudnn)


def auto() -> Backend:
  """By the devices and the pattern: see above. The log says which.

  Of split rows ulysses or ring with splash, or all_gather.
  """
  return Backend(
    'auto', lambda request: None, lambda request: pick(request).run(request)
  )


def pick(request: Request) -> Backend:
  """The backend that `auto` takes for a request, which it logs once."""
  platform = layout.platform()
  if request.pattern.blocks is not None:
    backend = blocks()
  elif layout.num_parts('length') > 1:
    backend = split_backends.pick(request)
  elif platform in FASTEST:
    backend = FASTEST[platform]()
  else:
    log_once(f'attention: reference, on {platform}')
    return reference()
  obstacle = backend.obstacle(request)
  if obstacle:
    log_once(f'attention: reference, not {backend.name}: {obstacle}')
    return reference()
  log_once(f'attention: {backend.name}')
  return backend


def _capability() -> float:
  """CUDA's compute capability of the GPUs here, 0 where they have none."""
  text = jax.local_devices(backend='gpu')[0].compute_capability
  try:
    return float(text)
  except ValueError:  # AMD: 'gfx90a'
    return 0.0


def _kernel(
  name: str,
  platform: str | None,
  obstacle: Callable[[Request], str | None],
  run: Callable[[Request], jax.Array],
) -> Backend:
  """A backend for one platform (None: any), with what all kernels refuse."""

  def first(request: Request) -> str | None:
    here = layout.platform()
    if platform not in (None, here):
      return f'it needs a {platform.upper()}, and the devices are {here}'
    if layout.num_parts('length') > 1:
      return (
        'mesh.rules.length splits rows, which all_gather, ring and ulysses '
        'serve'
      )
    return obstacle(request) or not_plain(request) or not_split(request)

  return Backend(name, first, run)


# What `auto` tries, by platform.
FASTEST: dict[str, Callable[[], Backend]] = {'gpu': cudnn, 'tpu': splash}

BACKENDS: dict[str, Callable[..., Backend]] = {
  'all_gather': split_backends.all_gather,
  'auto': auto,
  'blocks': blocks,
  'cudnn': cudnn,
  'reference': reference,
  'ring': split_backends.ring,
  'splash': splash,
  'ulysses': split_backends.ulysses,
}
