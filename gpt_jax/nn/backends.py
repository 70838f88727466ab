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
import logging
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn import kernels, layout, ring_kernel, split_rows
from gpt_jax.nn.attend import Request, attend_within
from gpt_jax.nn.bigbird import dense, gathered
from gpt_jax.nn.kernels import SPLASH
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')


class Backend(NamedTuple):
  """One way to compute attention within rows.

  Attributes:
    name: as in the config.
    obstacle: why it cannot serve a request, or None where it can.
    run: serves a request: [B, L, H, K].
  """

  name: str
  obstacle: Callable[[Request], str | None]
  run: Callable[[Request], jax.Array]


@functools.cache
def log_once(message: str) -> None:
  """Logs it, but not for every layer."""
  log.info(message)


def odd_sizes(request: Request, block: int) -> str | None:
  """Rows and heads that splash does not take."""
  length, _, head_size = request.q_BLHK.shape[1:]
  return kernels.splash_obstacle(length, head_size, block)


def not_plain(request: Request) -> str | None:
  """What no kernel for rows in order computes."""
  if request.visibility.places_1L is not None:
    return 'tokens are not in the order of their rows'
  return beyond_kernels(request)


def beyond_kernels(request: Request) -> str | None:
  """What no kernel computes, whatever the order of the tokens."""
  if request.bias is not None:
    return 'model.position adds a bias to the scores'
  if request.dropout is not None:
    return 'model.dropout drops attention probabilities'
  if request.pattern.rule is not None:
    return (
      'model.attention holds strided or fixed, which only the reference has'
    )
  if request.pattern.blocks is not None:
    return 'model.attention holds bigbird, which blocks and the reference have'
  if request.visibility.uneven:
    return 'rows have a prefix or a mask of their own'
  return of_two_sizes(request)


def of_two_sizes(request: Request) -> str | None:
  """Values that are wider or narrower than queries and keys."""
  keys, values = request.k_BLGK.shape[-1], request.v_BLGK.shape[-1]
  if keys != values:
    return f'model.value_size={values} is not model.head_size={keys}'
  return None


def not_split(request: Request) -> str | None:
  """Rows, their tokens or heads that do not divide over their mesh axes."""
  sizes = dict(
    zip(('batch', 'length', 'heads'), request.q_BLHK.shape, strict=False)
  )
  for logical, size in sizes.items():
    parts = layout.num_parts(logical)
    if size % parts:
      return (
        f'{size} ({logical}) does not divide over the {parts} devices of '
        f'mesh.rules.{logical}'
      )
  return None


# What computes attention among the tokens of each row.
#
# `reference` is plain XLA and serves every call; `splash` (TPU) and `cudnn`
# (GPU) never hold the scores, and serve most; `blocks` (any device) multiplies
# only the blocks of a block-sparse pattern; `all_gather`, `ring` and `ulysses`
# serve rows that are split over devices. `auto` takes the one that is made for
# the devices, or the pattern, or the reference where that one cannot serve the
# call.


def attend_rows(request: Request, *, backend: Backend) -> jax.Array:
  """`attend.attend_within`, computed by `backend`.

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


def all_gather(block: Count = 1024) -> Backend:
  """Keys and values of the whole row on each device: see `split_rows`.

  Args:
    block: of queries and of keys, at most; what divides the length is taken.
  """
  return _over_context('all_gather', split_rows.all_gather, block)


def ring(block: Count = 1024, interpret: bool = False) -> Backend:
  """Keys and values go round the devices; on a TPU by splash where it can.

  Args:
    block: as in `all_gather`, where splash cannot.
    interpret: by splash on any device, slowly: for tests.
  """

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    if _takes_splash('ring', _ring_obstacle(request), interpret):
      kernel = ring_kernel.make(request, **SPLASH, interpret=interpret)
    return split_rows.around(request, block=block, kernel=kernel)

  return _over_context('ring', run, block)


def ulysses(block: Count = 1024, interpret: bool = False) -> Backend:
  """Whole rows of some of the heads; arguments as of `ring`."""

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    why_not = odd_sizes(request, SPLASH['block']) or not_plain(request)
    if _takes_splash('ulysses', why_not, interpret):
      kernel = kernels.splash_in_rows(request, **SPLASH, interpret=interpret)
    return split_rows.ulysses(request, block=block, kernel=kernel)

  backend = _over_context('ulysses', run, block)

  def obstacle(request: Request) -> str | None:
    num_heads = request.q_BLHK.shape[2]
    return backend.obstacle(request) or split_rows.too_few_heads(num_heads)

  return backend._replace(obstacle=obstacle)


def _takes_splash(name: str, why_not: str | None, interpret: bool) -> bool:
  """Whether split rows are attended to by splash, which the log says."""
  if not interpret and layout.platform() != 'tpu':
    return False
  if why_not:
    log_once(f'attention: {name}, without splash: {why_not}')
  else:
    log_once(f'attention: {name}, with splash')
  return not why_not


def _ring_obstacle(request: Request) -> str | None:
  """Why `ring` cannot attend by splash, or None."""
  return beyond_kernels(request) or ring_kernel.obstacle(
    request, SPLASH['block']
  )


def pick_split(request: Request) -> Backend:
  """The one that `auto` takes: on a TPU by splash, if any can."""
  if kept_in_order(*request.q_BLHK.shape[1:]) and not not_plain(request):
    return ulysses()
  if layout.platform() == 'tpu' and not _ring_obstacle(request):
    return ring()
  return all_gather()


def kept_in_order(length: int, num_heads: int, head_size: int) -> bool:
  """Whether `auto` wants split rows in order, for `ulysses` with splash.

  It sends the least, and its kernel has whole rows.
  """
  return (
    layout.platform() == 'tpu'
    and not kernels.splash_obstacle(length, head_size, SPLASH['block'])
    and not split_rows.too_few_heads(num_heads)
  )


def _over_context(
  name: str, run: Callable[..., jax.Array], block: int
) -> Backend:
  """A backend for rows that are split over devices, or are not."""

  def obstacle(request: Request) -> str | None:
    return (
      split_rows.obstacle(request)
      or of_two_sizes(request)
      or not_split(request)
    )

  return Backend(name, obstacle, functools.partial(run, block=block))


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
    backend = pick_split(request)
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


# What `auto` tries, by platform.
FASTEST: dict[str, Callable[[], Backend]] = {'gpu': cudnn, 'tpu': splash}


BACKENDS: dict[str, Callable[..., Backend]] = {
  'all_gather': all_gather,
  'auto': auto,
  'blocks': blocks,
  'cudnn': cudnn,
  'reference': reference,
  'ring': ring,
  'splash': splash,
  'ulysses': ulysses,
}
