# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a training step can reach at most: its matrix products alone.

Each product of the traced step is a program of its own, timed without anything
before or after it. Within the step some wait for nothing and run beside each
other, but few; all share the caches with what is between them.
"""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.costs.matmuls import Product

# Before the clock starts, to warm up.
_WARM_UP = 2
# Seconds that one kind is timed for, if `repeats` of them take less.
_LEAST = 0.1
# Kinds of products that the report shows: the dearest.
_SHOWN = 6


class Kind(NamedTuple):
  """Products of one kind.

  Attributes:
    name: shapes of the two sides, and the axes that are summed over and those
      that both share.
    times: how many the step has.
    seconds: that one takes, at best.
    flops: of one.
  """

  name: str
  times: int
  seconds: float
  flops: int


def measure(products: Iterable[Product], repeats: int) -> list[Kind]:
  """Times each kind of product, at least `repeats` times; dearest first."""
  times: dict[str, int] = {}
  first: dict[str, Product] = {}
  for x in products:
    operands = [repr(v.aval) for v in x.equation.invars]
    key = f'{x.equation.primitive.name} {operands} {x.equation.params}'
    times[key] = times.get(key, 0) + x.times
    first.setdefault(key, x)
  found = [
    Kind(_name(x.equation), times[key], _seconds(x.equation, repeats), x.flops)
    for key, x in first.items()
  ]
  return sorted(found, key=lambda kind: -kind.times * kind.seconds)


def seconds(kinds: Iterable[Kind]) -> float:
  """What all products take, one after the other."""
  return sum(kind.times * kind.seconds for kind in kinds)


def report(kinds: list[dict]) -> str:
  """Formats the dearest kinds, given as `Kind._asdict()`."""
  return '\n'.join(
    f'{kind["times"]:>10} of {kind["name"]}: {1e6 * kind["seconds"]:,.0f} us '
    f'each, {1e-9 * kind["flops"] / kind["seconds"]:.0f} GFLOP/s'
    for kind in kinds[:_SHOWN]
  )


def _name(equation: Any) -> str:
  left, right = (list(v.aval.shape) for v in equation.invars[:2])
  name = f'{left} by {right}'
  if equation.primitive.name != 'dot_general':
    return f'{name} ({equation.primitive.name})'
  (over, _), (both, _) = equation.params['dimension_numbers']
  name += f' over {", ".join(map(str, over))}'
  return f'{name} for each of {", ".join(map(str, both))}' if both else name


def _seconds(equation: Any, repeats: int) -> float:
  operands = [_operand(v.aval, equation) for v in equation.invars]
  run = jax.jit(
    lambda *given: equation.primitive.bind(*given, **equation.params)
  )
  for _ in range(_WARM_UP):
    jax.block_until_ready(run(*operands))
  walls: list[float] = []
  begin = time.perf_counter()
  while len(walls) < repeats or time.perf_counter() - begin < _LEAST:
    start = time.perf_counter()
    jax.block_until_ready(run(*operands))
    walls.append(time.perf_counter() - start)
  # The best, as the peak is: a short one waits longer for a core to wake up
  # than it does amid others.
  return min(walls)


def _operand(aval: Any, equation: Any) -> jax.Array:
  if equation.primitive.name == 'ragged_dot_general' and aval.ndim == 1:
    # Rows of each group: as many in each.
    rows = equation.invars[0].aval.shape[0]
    return jnp.full(aval.shape, rows // aval.size, aval.dtype)
  return jnp.ones(aval.shape, aval.dtype)
