# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a compiled training step reduces gradients across devices."""

from collections.abc import Iterable
from typing import NamedTuple

from gpt_jax.planning.collectives import Collective

_LEAST_GRADIENT = 1 << 10  # bytes; reductions of losses and norms are smaller


class Reduction(NamedTuple):
  """How the gradient of one parameter is reduced across devices.

  Attributes:
    parameter: its path, as in `decoder/periods/block_0/ffn/in/kernel`.
    kind: `reduce-scatter`, or `all-reduce`, which sends twice as much.
    axes: mesh axes it is reduced over.
    dtype: on the wire.
    bytes: sent by one device per step.
  """

  parameter: str
  kind: str
  axes: tuple[str, ...]
  dtype: str
  bytes: float


def gradients(
  collectives: Iterable[Collective], parameters: Iterable[str]
) -> list[Reduction]:
  """Finds the reductions whose paths identify a parameter.

  Args:
    collectives: of a training step.
    parameters: paths of all parameters.
  """
  table = sorted(parameters, key=len, reverse=True)
  out = []
  for x in collectives:
    over_batch = set(x.axes) & {'data', 'fsdp', 'expert', 'context'}
    if x.kind not in ('reduce-scatter', 'all-reduce') or not over_batch:
      continue
    if not x.backward or x.bytes < _LEAST_GRADIENT * x.trips:
      continue
    name = parameter_of(x.path, table)
    if name:
      out.append(Reduction(name, x.kind, x.axes, x.dtype, x.bytes))
  return out


def parameter_of(path: str, parameters: Iterable[str]) -> str | None:
  """Matches a path in the program to a parameter, if it belongs to one.

  `jit(train_step)/.../decoder/while/body/periods/block_0/ffn/in/dot_general`
  matches `decoder/periods/block_0/ffn/in/kernel`: the same names in the same
  order, with others in between. The first match in `parameters` wins.
  """
  for name in parameters:
    steps = iter(path.split('/'))
    if all(part in steps for part in name.split('/')[:-1]):
      return name
  return None
