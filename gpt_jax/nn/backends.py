# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention backends: `model.attention_backend`.

`reference` is plain XLA and serves every call; `splash`, `flash` (TPU) and
`cudnn` (GPU) never store the scores, and serve most calls; `blocks` (any
device) computes only the blocks of a block-sparse pattern; `all_gather`, `ring`
and `ulysses` serve rows that are split over devices. `auto` takes the first for
the devices or the pattern that serves the call, else the reference.
"""

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.nn import (
  bigbird_kernel,
  context_parallel,
  kernels,
  layout,
  ring_kernel,
)
from gpt_jax.nn import flash as flash_lib
from gpt_jax.nn.attend import (
  ByDistance,
  DistanceProducts,
  Request,
  attend_across,
  attend_with_memory,
  attend_within,
)
from gpt_jax.nn.bigbird import dense, gathered
from gpt_jax.nn.kernels import SPLASH
from gpt_jax.ranges import Count, Whole
from gpt_jax.spec import UsageError

log = logging.getLogger('gpt_jax')


# The features that a request may need from a backend: see `needs`.
ALL = frozenset(
  (
    *('split', 'unordered', 'bias', 'by_distance', 'products', 'dropout'),
    *('rule', 'blocks', 'no_blocks', 'prefix', 'mask', 'two_sizes', 'softcap'),
    *('masked', 'order', 'memory', 'places', 'across'),
  )
)


# Those for which a model with another backend takes the reference.
RARE = frozenset(('memory', 'places', 'across'))


class Backend(NamedTuple):
  """One way to compute attention within rows.

  Attributes:
    name: as in the config.
    run: computes a request: [B, L, H, K].
    can: the features of `ALL` that it supports. A bias by distance, or of
      products, is given to those without `by_distance` or `products` as one
      for each pair.
    sizes: why it cannot serve a request's rows, heads or dtype, or None.
    platform: that it needs; None: any.
    zigzag: whether rows that are split over devices should be in the order of
      `build.zigzag`: it skips blocks of keys that no query sees, and gives each
      device all heads of its tokens, so that in order the load is uneven.
  """

  name: str
  run: Callable[[Request], jax.Array]
  can: frozenset[str] = ALL
  sizes: Callable[[Request], str | None] = lambda request: None
  platform: str | None = None
  zigzag: Callable[[Request], bool] = lambda request: False


def needs(request: Request) -> dict[str, str]:
  """The features of `ALL` that a request needs, each with its config field."""
  pattern, seen = request.pattern, request.visibility
  keys, values = request.k_BLGK.shape[-1], request.v_BLGK.shape[-1]
  found = (
    (
      'split',
      layout.num_parts('length') > 1,
      'mesh.rules.length splits rows over devices',
    ),
    (
      'unordered',
      seen.places_1L is not None,
      'tokens are not in the order of their rows',
    ),
    (
      'no_blocks',
      pattern.blocks is None,
      f'model.attention holds {pattern.name}, which lists no blocks',
    ),
    (
      'bias',
      not isinstance(request.bias, ByDistance | DistanceProducts | None),
      'model.position adds a bias for each pair of tokens',
    ),
    (
      'by_distance',
      isinstance(request.bias, ByDistance),
      'model.position adds a bias by distance',
    ),
    (
      'products',
      isinstance(request.bias, DistanceProducts),
      'model.position adds products with vectors of distances',
    ),
    (
      'dropout',
      request.dropout is not None,
      'model.dropout drops attention probabilities',
    ),
    (
      'rule',
      pattern.rule is not None,
      f'model.attention holds {pattern.name}, a rule on positions',
    ),
    (
      'blocks',
      pattern.blocks is not None,
      f'model.attention holds {pattern.name}, which lists blocks',
    ),
    ('prefix', seen.prefix_B is not None, 'rows have a prefix'),
    ('mask', seen.visible_BLM is not None, 'rows have a mask of their own'),
    (
      'two_sizes',
      keys != values,
      f'model.value_size={values} is not model.head_size={keys}',
    ),
    ('softcap', request.softcap > 0, 'model.attention_scale has a softcap'),
    (
      'masked',
      any(x is not None for x in seen[:2]),
      'rows have padding or packed documents',
    ),
    ('order', seen.order is not None, 'rows have an order of their own'),
    ('memory', request.num_before > 0, 'a memory precedes the rows'),
    (
      'places',
      request.places_BL is not None,
      'a second stream has places of its own',
    ),
    (
      'across',
      request.keys is not None,
      "a decoder attends to the encoder's output",
    ),
  )
  return {name: why for name, needed, why in found if needed}


def refusal(backend: Backend, request: Request) -> str | None:
  """Why the backend cannot serve a request on the current devices, or None.

  The request may be abstract, from a config before its run.
  """
  here = layout.platform()
  if backend.platform not in (None, here):
    return f'it needs a {backend.platform.upper()}, and the devices are {here}'
  can = backend.can
  if 'bias' in can:
    can |= {'by_distance', 'products'}
  return _lacks(can, request) or backend.sizes(request)


def _lacks(can: frozenset[str], request: Request) -> str | None:
  missing = (why for name, why in needs(request).items() if name not in can)
  return next(missing, None)


# The features of splash within a row that one device has.
OF_SPLASH = frozenset({'no_blocks', 'softcap', 'masked'})


@functools.cache
def log_once(message: str) -> None:
  """Logs a message once, not for every layer."""
  log.info(message)


def odd_sizes(request: Request, block: int) -> str | None:
  """Why splash cannot serve the rows and heads, or None."""
  length, _, head_size = request.q_BLHK.shape[1:]
  return kernels.splash_obstacle(length, head_size, block)


def not_split(request: Request) -> str | None:
  """Why rows, tokens or heads do not divide over their mesh axes, or None."""
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


def attend_rows(request: Request, *, backend: Backend) -> jax.Array:
  """`attend.attend_within`, computed by `backend`.

  The output of queries that are padding differs between backends, and is
  unused.
  """
  check(backend, request)
  return _run(backend, request)


def _run(backend: Backend, request: Request) -> jax.Array:
  bias = request.bias
  if isinstance(bias, ByDistance) and 'by_distance' not in backend.can:
    request = request._replace(bias=bias.whole())
  if isinstance(bias, DistanceProducts) and 'products' not in backend.can:
    request = request._replace(bias=bias.whole(request))
  return backend.run(request)


def check(backend: Backend, request: Request) -> None:
  """Raises UsageError if the backend cannot serve the request."""
  packed = request.visibility.segments_BL is not None
  if packed and request.pattern.blocks is not None:
    raise UsageError(
      f'model.attention={request.pattern.name}: its blocks span a whole row, '
      'which cannot hold packed documents; take another data.rows'
    )
  why = refusal(backend, request)
  if why:
    raise UsageError(
      f'model.attention_backend={backend.name}: {why}; change that, or take '
      'auto or reference'
    )


def reference() -> Backend:
  """Plain XLA, on any device, for every call."""

  def run(request: Request) -> jax.Array:
    if request.keys is not None:
      return attend_across(request)
    if request.num_before or request.places_BL is not None:
      return attend_with_memory(request)
    if request.pattern.blocks is not None:
      return dense(request)
    return attend_within(request)

  return Backend('reference', run, ALL - {'by_distance', 'products'})


def blocks(interpret: bool = False) -> Backend:
  """For `bigbird`, computes only its blocks: in XLA, on a TPU in a kernel.

  Args:
    interpret: uses the kernel on any device, slowly: for tests.
  """

  def run(request: Request) -> jax.Array:
    kernel = None
    why_not = bigbird_kernel.obstacle(request) or not_split(request)
    if _takes_kernel('blocks', 'a kernel', why_not, interpret):
      kernel = functools.partial(bigbird_kernel.between, interpret=interpret)
    return gathered(request, kernel)

  lacking = {'no_blocks', 'bias', 'by_distance', 'products', 'prefix', 'mask'}
  lacking |= {'two_sizes', 'order', *RARE}
  return Backend('blocks', run, ALL - lacking)


def splash(
  block: Count = SPLASH['block'],
  fused_until: Whole = SPLASH['fused_until'],
  interpret: bool = False,
) -> Backend:
  """JAX's Pallas kernel for TPU, which skips hidden blocks.

  Args:
    block: the largest block of queries and of keys; the size taken divides the
      length.
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

  def sizes(request: Request) -> str | None:
    return odd_sizes(request, block) or not_split(request)

  platform = None if interpret else 'tpu'
  return Backend('splash', run, OF_SPLASH, sizes, platform)


# The features of flash.
OF_FLASH = ALL - {'split', 'unordered', 'bias', 'rule', 'blocks', 'mask'}


def flash(block: Count = flash_lib.BLOCK, interpret: bool = False) -> Backend:
  """Our Pallas kernel for TPU, with scores by distance and dropout.

  Args:
    block: the largest block of queries and of keys.
    interpret: runs on any device, slowly: for tests.
  """
  if block % kernels.LANES:
    raise UsageError(
      f'model.attention_backend: block={block} is not a multiple of '
      f'{kernels.LANES}'
    )
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
      return (
        f'model.head_size={head_size} is above {largest} or no multiple of 8'
      )
    length = request.q_BLHK.shape[1]
    if length % 2:
      return f'rows have an odd number of tokens, {length}'
    return not_split(request)

  can = frozenset({'no_blocks', 'masked'})
  return Backend('cudnn', kernels.cudnn, can, sizes, 'gpu')


def _capability() -> float:
  """CUDA's compute capability of the local GPUs; 0 if they have none."""
  text = jax.local_devices(backend='gpu')[0].compute_capability
  try:
    return float(text)
  except ValueError:  # AMD: 'gfx90a'
    return 0.0


def all_gather(block: Count = 1024, interpret: bool = False) -> Backend:
  """The keys of whole rows on each device; with flash if it can serve those.

  Args:
    block: the largest block of queries and of keys, with flash at most 512; the
      size taken divides the length.
    interpret: uses flash on any device, slowly: for tests.
  """

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    parts = layout.num_parts('length')
    why_not = _lacks(IN_PARTS, request) or flash_lib.obstacle(request, parts)
    if _takes_kernel('all_gather', 'flash', why_not, interpret):
      most = min(block, flash_lib.BLOCK)
      kernel = flash_lib.in_parts(request, block=most, interpret=interpret)
    return context_parallel.all_gather(request, block=block, kernel=kernel)

  return _over_context('all_gather', run, block)._replace(zigzag=_always)


# The features of flash where a device has a part of the queries.
IN_PARTS = frozenset(
  ('split', 'no_blocks', 'dropout', 'prefix', 'softcap', 'masked')
)


def ring(block: Count = 1024, interpret: bool = False) -> Backend:
  """Ring attention; on a TPU with splash if it can serve the request.

  Args:
    block: as in `all_gather`, if splash cannot.
    interpret: uses splash on any device, slowly: for tests.
  """

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    if _takes_kernel('ring', 'splash', _ring_refusal(request), interpret):
      kernel = ring_kernel.make(request, **SPLASH, interpret=interpret)
    return context_parallel.around(request, block=block, kernel=kernel)

  return _over_context('ring', run, block)._replace(zigzag=_always)


def ulysses(block: Count = 1024, interpret: bool = False) -> Backend:
  """Attention in whole rows, with heads split; arguments as in `ring`."""

  def run(request: Request, block: int) -> jax.Array:
    kernel = None
    why_not = odd_sizes(request, SPLASH['block'])
    why_not = why_not or _lacks(OF_SPLASH | {'split'}, request)
    if _takes_kernel('ulysses', 'splash', why_not, interpret):
      kernel = kernels.splash_in_rows(request, **SPLASH, interpret=interpret)
    return context_parallel.ulysses(request, block=block, kernel=kernel)

  def sizes(request: Request) -> str | None:
    num_heads = request.q_BLHK.shape[2]
    return not_split(request) or context_parallel.too_few_heads(num_heads)

  return _over_context('ulysses', run, block)._replace(sizes=sizes)


def _takes_kernel(
  name: str, kernel: str, why_not: str | None, interpret: bool
) -> bool:
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
  return _lacks(can, request) or ring_kernel.obstacle(request, SPLASH['block'])


def pick_split(request: Request) -> Backend:
  """What `auto` picks for split rows: on a TPU, with splash if possible.

  `ulysses` sends the least, and its kernel has whole rows.
  """
  length, num_heads, head_size = request.q_BLHK.shape[1:]
  if (
    layout.platform() == 'tpu'
    and not kernels.splash_obstacle(length, head_size, SPLASH['block'])
    and not context_parallel.too_few_heads(num_heads)
    and not _lacks(OF_SPLASH | {'split'}, request)
  ):
    return ulysses()
  if layout.platform() == 'tpu' and not _ring_refusal(request):
    return ring()
  return all_gather()


def _always(request: Request) -> bool:
  del request
  return True


def _over_context(
  name: str, run: Callable[..., jax.Array], block: int
) -> Backend:
  """A backend for rows that may be split over devices."""
  can = ALL - {'blocks', 'two_sizes', *RARE}
  can -= {'by_distance', 'products'}
  return Backend(name, functools.partial(run, block=block), can, not_split)


def auto() -> Backend:
  """The first backend that supports the layer on these devices; logs it.

  For split rows it picks ulysses or ring with splash, or all_gather.
  """

  def zigzag(request: Request) -> bool:
    return pick_split(request).zigzag(request)

  def run(request: Request) -> jax.Array:
    return _run(pick(request), request)

  return Backend('auto', run, zigzag=zigzag)


def backend_for(request: Request, backend: Backend) -> Backend:
  """A model's backend, or the reference where it lacks one of `RARE`."""
  rare = RARE & needs(request).keys()
  return backend if rare <= backend.can else reference()


def takes_distances(backend: Backend, request: Request) -> bool:
  """Whether it computes a request's bias from the distances itself."""
  if backend.name == 'auto':
    backend = pick(request)
  return 'by_distance' in backend.can and not refusal(backend, request)


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
    tried = [blocks()]
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


# What `auto` tries in turn, by platform.
FASTEST: dict[str, tuple[Callable[[], Backend], ...]] = {
  'gpu': (cudnn,),
  'tpu': (splash, flash),
}
