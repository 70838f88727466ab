# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a way to compute attention is, and what several of them refuse."""

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import jax

from gpt_jax.nn import kernels, layout
from gpt_jax.nn.dot_product import Request

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
