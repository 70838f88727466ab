# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What computes attention among the tokens of each row.

`reference` is plain XLA and serves every call; `splash` (TPU) and `cudnn`
(GPU) never hold the scores, and serve most; `blocks` (any device) multiplies
only the blocks of a block-sparse pattern; `all_gather`, `ring` and `ulysses`
serve rows that are split over devices. `auto` takes the one that is made for
the devices, or the pattern, or the reference where that one cannot serve the
call.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpt_jax.nn import block_sparse, devices, kernels, split_backends
from gpt_jax.nn.backend import (
  Backend,
  log_once,
  not_plain,
  not_split,
  odd_sizes,
  of_two_sizes,
)
from gpt_jax.nn.dot_product import Request, attend_within
from gpt_jax.nn.kernels import SPLASH
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError


def attend_rows(request: Request, *, backend: Backend) -> jax.Array:
  """`dot_product.attend_within`, computed by `backend`.

  What a query that is itself padding gets differs between backends; nobody
  reads it.

  Raises:
    UsageError: the backend cannot serve this call.
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
      return block_sparse.dense(request)
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

  return Backend('blocks', obstacle, block_sparse.gathered)


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
  platform = devices.platform()
  if request.pattern.blocks is not None:
    backend = blocks()
  elif devices.num_parts('length') > 1:
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
    here = devices.platform()
    if platform not in (None, here):
      return f'it needs a {platform.upper()}, and the devices are {here}'
    if devices.num_parts('length') > 1:
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
