# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of the matrix products in a traced program, with loop trip counts.

The compiler's own `cost_analysis()` counts the body of a loop once, however
often it runs. This counts the program that is passed to the compiler:
recomputation (rematerialisation) counts again, masked attention counts in full,
element-wise operations do not count.
"""

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def flops(jaxpr: Any) -> int:
  """FLOPs of `jax.make_jaxpr(f)(...)`, or of `jitted.trace(...).jaxpr`.

  Over all devices, since traced programs work on global arrays. Loops and
  kernel grid dimensions with data-dependent trip counts count once (so dropless
  experts count less than they compute); conditionals count their most expensive
  branch.
  """
  jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
  return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: Any) -> int:
  name, params = equation.primitive.name, equation.params
  if name in MATMULS:
    return MATMULS[name](equation)
  if params.get('name') == 'computed_once':  # see `nn.positions`
    return 0
  inner, trips = [flops(jaxpr) for jaxpr in _inner(params.values())], 1
  if name == 'cond':
    return max(inner)
  if name == 'scan':
    trips = params['length']
  elif name == 'shard_map':  # its inner program sees one device's arrays
    trips = params['mesh'].size
  elif name == 'pallas_call':
    # One dimension of megablox's grid is only known at run time.
    grid = params['grid_mapping'].grid
    trips = math.prod(n for n in grid if isinstance(n, int))
  return trips * sum(inner)


def _inner(values: Any) -> Iterator[Any]:
  for value in values:
    if isinstance(value, Jaxpr | ClosedJaxpr):
      yield value
    elif isinstance(value, tuple | list):
      yield from _inner(value)


def _dot(equation: Any) -> int:
  left, out = equation.invars[0].aval, equation.outvars[0].aval
  contracted = equation.params['dimension_numbers'][0][0]
  return 2 * out.size * math.prod(left.shape[i] for i in contracted)


def _ragged_dot(equation: Any) -> int:
  """Each row of [M, K] is multiplied by one of the [G, K, N] matrices."""
  left, out = equation.invars[0].aval, equation.outvars[0].aval
  numbers = equation.params['ragged_dot_dimension_numbers']
  contracted = numbers.dot_dimension_numbers[0][0]
  # If the ragged dimension is contracted, the groups divide it among them.
  groups = out.shape[0] if numbers.lhs_ragged_dimensions[0] in contracted else 1
  whole = 2 * out.size * math.prod(left.shape[i] for i in contracted)
  return whole // groups


def _convolution(equation: Any) -> int:
  right, out = equation.invars[1].aval, equation.outvars[0].aval
  features = right.shape[equation.params['dimension_numbers'].rhs_spec[0]]
  return 2 * out.size * right.size // features


MATMULS = {
  'dot_general': _dot,
  'ragged_dot_general': _ragged_dot,
  'conv_general_dilated': _convolution,
}
