# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Backends for rows that are split over devices: see `split_rows`."""

import functools
from collections.abc import Callable

import jax

from gpt_jax.nn import kernels, layout, ring_kernel, split_rows
from gpt_jax.nn.backend import (
  Backend,
  beyond_kernels,
  log_once,
  not_plain,
  not_split,
  odd_sizes,
  of_two_sizes,
)
from gpt_jax.nn.dot_product import Request
from gpt_jax.nn.kernels import SPLASH
from gpt_jax.ranges import Count


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


def pick(request: Request) -> Backend:
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
