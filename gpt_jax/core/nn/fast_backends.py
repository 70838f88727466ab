# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention backends beside the reference, and `auto`, which picks one.

`splash`, `flash` (TPU) and `cudnn` (GPU) never store the scores, and serve most
calls; `all_gather`, `ring` and `ulysses` serve rows that are split over
devices. `auto` takes the first for the devices or the pattern that serves the
call, else the reference.
"""

import functools
import logging
from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpt_jax.core.nn import context_parallel, kernels, layout, ring_kernel
from gpt_jax.core.nn import flash as flash_lib
from gpt_jax.core.nn.attend import Request
from gpt_jax.core.nn.backends import ALL, RARE, Backend, lacks, not_split, reference, refusal
from gpt_jax.core.nn.backends import run as run_backend
from gpt_jax.core.nn.choices import BACKENDS
from gpt_jax.core.nn.kernels import SPLASH
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.spec import UsageError

log = logging.getLogger('gpt_jax')


def auto() -> Backend:
  """The first backend that supports the layer on these devices; logs it.

  For split rows it picks ulysses or ring with splash, or all_gather.
  """

  def zigzag(request: Request) -> bool:
    return pick_split(request).zigzag(request)

  def run(request: Request) -> jax.Array:
    return run_backend(pick(request), request)

  return Backend('auto', run, choice=choice, zigzag=zigzag)


def pick(request: Request) -> Backend:
  """The backend that `auto` picks for a request; logged once."""
  backend, why = choice(request)
  of = 'cross-attention' if request.keys is not None else 'attention'
  log_once(f'{of}: {backend.name}' + (f', {why}' if why else ''))
  return backend


def choice(request: Request) -> tuple[Backend, str]:
  """The backend that `auto` picks, and why no other if it is the reference."""
  platform = layout.platform()
  if request.pattern.blocks is not None:
    tried = [BACKENDS['blocks']()]
  elif layout.num_parts('length') > 1 and request.keys is None:
    tried = [pick_split(request)]
  elif platform in FASTEST:
    tried = [make() for make in FASTEST[platform]]
  else:
    return reference(), f'on {platform}'
  reasons = []
  for backend in tried:
    why = refusal(backend, request)
    if not why:
      return backend, ''
    reasons.append(f'not {backend.name}: {why}')
  return reference(), '; '.join(reasons)


@functools.cache
def log_once(message: str) -> None:
  """Logs a message once, not for every layer."""
  log.info(message)


# The features of splash within a row that one device has.
OF_SPLASH = frozenset({'softcap', 'masked'})


def odd_sizes(request: Request, block: int) -> str | None:
  """Why splash cannot serve the rows and heads, or None."""
  length, _, head_size = request.q_BLHK.shape[1:]
  return kernels.splash_obstacle(length, head_size, block)


def splash(
  block: Count = SPLASH['block'],
  fused_until: Whole = SPLASH['fused_until'],
  interpret: bool = False,
) -> Backend:
  """JAX's Pallas kernel for TPU, which skips hidden blocks.

  Args:
    block: the largest block of queries and of keys; the size taken divides the
      length, and is at most half of it in rows of more than 512 tokens.
    fused_until: rows up to this length have one backward kernel. It is faster
      than two, but keeps a partial gradient of the queries for each block of
      keys: memory grows as length^2 / block.
    interpret: runs on any device, slowly: for tests.
  """
  if block < kernels.LANES or block % kernels.LANES:
    raise UsageError(f'model.attention_backend: block={block} is not a multiple of {kernels.LANES}')

  run = functools.partial(kernels.splash, block=block, fused_until=fused_until, interpret=interpret)

  def sizes(request: Request) -> str | None:
    return odd_sizes(request, block) or not_split(request)

  platform = None if interpret else 'tpu'
  return Backend('splash', run, OF_SPLASH, sizes, platform)


# The features of flash.
OF_FLASH = ALL - {'split', 'unordered', 'bias', 'blocks', 'mask'}


def flash(block: Count = flash_lib.BLOCK, interpret: bool = False) -> Backend:
  """Our Pallas kernel for TPU, with biases by distance and dropout.

  Args:
    block: the largest block of queries and of keys.
    interpret: runs on any device, slowly: for tests.
  """
  if block % kernels.LANES:
    raise UsageError(f'model.attention_backend: block={block} is not a multiple of {kernels.LANES}')
  run = functools.partial(flash_lib.attend, block=block, interpret=interpret)

  def sizes(request: Request) -> str | None:
    return flash_lib.obstacle(request) or not_split(request)

  platform = None if interpret else 'tpu'
  return Backend('flash', run, OF_FLASH, sizes, platform)


def cudnn() -> Backend:
  """NVIDIA's kernels for GPU."""

  def sizes(request: Request) -> str | None:
    dtype = request.q_BLHK.dtype
    if dtype not in (jnp.bfloat16, jnp.float16):
      return f'model.dtype={dtype} is neither bfloat16 nor float16'
    capability = _capability()
    if capability < 8:
      return f'compute capability {capability} is below 8.0 (Ampere)'
    head_size = request.q_BLHK.shape[3]
    largest = 128 if capability < 9 else 256
    if head_size % 8 or head_size > largest:
      return f'model.head_size={head_size} is above {largest} or no multiple of 8'
    length = request.q_BLHK.shape[1]
    if length % 2:
      return f'rows have an odd number of tokens, {length}'
    return not_split(request)

  can = frozenset({'masked'})
  return Backend('cudnn', kernels.cudnn, can, sizes, 'gpu')


def _capability() -> float:
  """CUDA's compute capability of the local GPUs; 0 if they have none."""
  text = jax.local_devices(backend='gpu')[0].compute_capability
  try:
    return float(text)
  except ValueError:  # AMD: 'gfx90a'
    return 0.0


def all_gather(block: Count = 1024, interpret: bool = False) -> Backend:
  """Gathers the keys of whole rows on each device; uses flash if it can.

  Args:
    block: the largest block of queries and of keys, with flash at most 512; the
      size taken divides the length.
    interpret: uses flash on any device, slowly: for tests.
  """

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    parts = layout.num_parts('length')
    why_not = lacks(IN_PARTS, request) or flash_lib.obstacle(request, parts)
    if takes_kernel('all_gather', 'flash', why_not, interpret):
      most = min(block, flash_lib.BLOCK)
      kernel = flash_lib.in_parts(request, block=most, interpret=interpret)
    return context_parallel.all_gather(request, block=block, kernel=kernel)

  return _over_context('all_gather', run, block)._replace(zigzag=_always)


# The features of flash where a device has a part of the queries.
IN_PARTS = frozenset(('split', 'dropout', 'prefix', 'softcap', 'masked'))


def ring(block: Count = 1024, interpret: bool = False) -> Backend:
  """Ring attention; on a TPU with splash if it can serve the request.

  Args:
    block: as in `all_gather`, if splash cannot.
    interpret: uses splash on any device, slowly: for tests.
  """

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    if takes_kernel('ring', 'splash', _ring_refusal(request), interpret):
      kernel = ring_kernel.make(request, **SPLASH, interpret=interpret)
    return context_parallel.around(request, block=block, kernel=kernel)

  return _over_context('ring', run, block)._replace(zigzag=_always)


def ulysses(block: Count = 1024, interpret: bool = False) -> Backend:
  """Splits heads instead of rows during attention; arguments as in `ring`."""

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    why_not = odd_sizes(request, SPLASH['block'])
    why_not = why_not or lacks(OF_SPLASH | {'split'}, request)
    if takes_kernel('ulysses', 'splash', why_not, interpret):
      kernel = kernels.splash_in_rows(request, **SPLASH, interpret=interpret)
    return context_parallel.ulysses(request, block=block, kernel=kernel)

  def sizes(request: Request) -> str | None:
    num_heads = request.q_BLHK.shape[2]
    return not_split(request) or context_parallel.too_few_heads(num_heads)

  return _over_context('ulysses', run, block)._replace(sizes=sizes)


def takes_kernel(name: str, kernel: str, why_not: str | None, interpret: bool) -> bool:
  """Whether split rows use a kernel; logs the decision."""
  if not interpret and layout.platform() != 'tpu':
    return False
  if why_not:
    log_once(f'attention: {name}, without {kernel}: {why_not}')
  else:
    log_once(f'attention: {name}, with {kernel}')
  return not why_not


def _ring_refusal(request: Request) -> str | None:
  """Why `ring` cannot use splash, or None."""
  can = OF_SPLASH | {'split', 'unordered'}
  return lacks(can, request) or ring_kernel.obstacle(request, SPLASH['block'])


def pick_split(request: Request) -> Backend:
  """What `auto` picks for split rows: on a TPU, with splash if possible.

  `ulysses` sends the least, and its kernel has whole rows.
  """
  length, num_heads, head_size = request.q_BLHK.shape[1:]
  if (
    layout.platform() == 'tpu'
    and not kernels.splash_obstacle(length, head_size, SPLASH['block'])
    and not context_parallel.too_few_heads(num_heads)
    and not lacks(OF_SPLASH | {'split'}, request)
  ):
    return ulysses()
  if layout.platform() == 'tpu' and not _ring_refusal(request):
    return ring()
  return all_gather()


def _always(request: Request) -> bool:
  del request
  return True


def _over_context(name: str, run: Callable[..., jax.Array], block: int) -> Backend:
  """A backend for rows that may be split over devices."""
  can = ALL - {'blocks', 'two_sizes', *RARE}
  can -= {'by_distance', 'products'}
  return Backend(name, functools.partial(run, block=block), can, not_split)


# What `auto` tries in turn, by platform.
FASTEST: dict[str, tuple[Callable[[], Backend], ...]] = {'gpu': (cudnn,), 'tpu': (splash, flash)}
