# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an instruction of a compiled program asks of a TPU's units."""

import math
from typing import NamedTuple

from gpt_jax.planning import collectives, hlo_matmuls
from gpt_jax.planning.hlo import Computation, Instruction, Program
from gpt_jax.planning.loops import Step


class Work(NamedTuple):
  """Of one instruction, run once.

  Attributes:
    products: FLOPs of matrix products, with the padding of the matrix unit.
    vector: operations on elements.
    bytes: read from and written to main memory.
    serial: whether products and vector operations take turns, as in the
      kernels of attention, rather than overlap.
  """

  products: float = 0.0
  vector: float = 0.0
  bytes: float = 0.0
  serial: bool = False


# Operations on each score in splash attention, as JAX's kernel has them.
# Forward: a maximum, a subtraction, exp (a product, and two for its unit), a
# sum, a cast, and half of a mask. Backward: the mask, the subtraction, exp and
# cast again, the gradient minus its mean, a product, a cast.
_FORWARD, _BACKWARD = 8, 10


def of(
  program: Program, x: Instruction, inside: Computation, side: int, causal: bool
) -> Work:
  """The work of an instruction of a schedule, with what it calls.

  Args:
    program: that it belongs to.
    x: neither a collective nor a loop.
    inside: the computation that it belongs to.
    side: of the matrix unit.
    causal: whether kernels of attention skip blocks that no query sees.
  """
  if x.opcode in _FREE:
    return Work()
  if hlo_matmuls.is_kernel(x):
    return _kernel(x, inside, side, causal)
  if x.opcode == 'custom-call':  # buffers and markers
    return Work()
  if x.opcode == 'fusion':
    called = program.called(x, 'calls')
    products, vector = _inside(program, called, side)
    return Work(products, vector, _traffic(program, x, inside))
  step = Step(x, inside, 1)
  read = sum(sum(y.stored) for y in inside.operands(x))
  if x.opcode in _SLICES:
    read = min(read, sum(x.stored))
  written = sum(x.stored)
  if x.opcode == 'dynamic-update-slice':
    read = written = sum(inside.operands(x)[1].stored)
  return Work(_products(step, side), _vector(step), read + written)


def _inside(
  program: Program, called: Computation, side: int
) -> tuple[float, float]:
  """Products and vector operations of a fusion."""
  products = vector = 0.0
  for x in called.instructions.values():
    if x.opcode == 'fusion':
      more = _inside(program, program.called(x, 'calls'), side)
      products, vector = products + more[0], vector + more[1]
    else:
      step = Step(x, called, 1)
      products += _products(step, side)
      vector += _vector(step)
  return products, vector


def _products(step: Step, side: int) -> float:
  """FLOPs of a product [M, K] x [K, N], its dimensions padded.

  The unit holds a tile of K x N; at least as many rows go through as it takes
  to load the next. (Or N goes through and the tile is of K x M.)
  """
  sizes = hlo_matmuls.dimensions(step)
  if sizes is None:
    return 0.0
  inner, *outer = sizes.inner, sizes.rows, sizes.columns
  small, large = min(outer), max(outer)
  if not inner * small * large:
    return 0.0
  padded = _pad(inner, side) * _pad(small, side) * max(_pad(large, 8), side)
  return sizes.flops * padded / (inner * small * large)


def _pad(size: float, to: int) -> float:
  return math.ceil(size / to) * to


def _vector(step: Step) -> float:
  """Operations on elements: of a reduction, on those that it reads."""
  x = step.instruction
  cost = _ELEMENTS.get(x.opcode, 0)
  if not cost:
    return 0.0
  if x.opcode == 'reduce':
    return sum(y.shapes[0].size for y in step.computation.operands(x))
  return cost * sum(shape.size for shape in x.shapes)


def _traffic(program: Program, x: Instruction, inside: Computation) -> float:
  """Bytes of a fusion: of operands what it reads, of results what it writes.

  A slice reads itself, not all that it is cut from; an update in place writes
  itself. What a collective in it sends does not count.
  """
  called = program.called(x, 'calls')
  total = 0.0
  for y in called.instructions.values():
    if y.opcode == 'parameter':
      operand = inside.operands(x)[int(y.argument)]
      whole = sum(operand.stored)
      if whole:
        total += min(whole, _read(program, y, called))
  results = _results(called)
  # A tuple's elements are in the order of the fusion's results.
  for stored, y in zip(x.stored, results, strict=False):
    if stored:
      total += min(stored, _written(program, y, called))
  return total


def _read(program: Program, x: Instruction, inside: Computation) -> float:
  """Bytes that the users of a parameter read of it."""
  total = 0.0
  for user in inside.instructions.values():
    for index, name in enumerate(user.operands):
      if name != x.name:
        continue
      if user.opcode in _SLICES and not index:
        total += user.shapes[0].bytes
      elif user.opcode == 'dynamic-update-slice' and not index:
        continue
      elif user.opcode == 'bitcast':
        total += _read(program, user, inside)
      elif user.opcode == 'fusion':
        called = program.called(user, 'calls')
        parameter = next(
          y
          for y in called.instructions.values()
          if y.opcode == 'parameter' and int(y.argument) == index
        )
        total += _read(program, parameter, called)
      elif user.opcode == 'tuple' or _transfers(user):
        continue  # handed on
      else:
        return math.inf
  return total


def _results(called: Computation) -> list[Instruction]:
  root = called.instructions[called.root]
  return called.operands(root) if root.opcode == 'tuple' else [root]


def _written(program: Program, x: Instruction, inside: Computation) -> float:
  """Bytes that an array takes to write."""
  if x.opcode == 'parameter' or _transfers(x):  # handed on
    return 0.0
  if x.opcode == 'bitcast':
    return _written(program, inside.operands(x)[0], inside)
  if x.opcode == 'dynamic-update-slice':
    return inside.operands(x)[1].shapes[0].bytes
  if x.opcode == 'fusion' and len(x.shapes) == 1:
    called = program.called(x, 'calls')
    return _written(program, _results(called)[0], called)
  return math.inf


def _transfers(x: Instruction) -> bool:
  """Whether it is a collective: its traffic is in the time of its transfer."""
  if x.opcode == 'custom-call':
    return 'custom_call_target="AsyncCollective' in x.attributes
  return x.opcode in collectives.KINDS


def _kernel(
  x: Instruction, inside: Computation, side: int, causal: bool
) -> Work:
  name = hlo_matmuls.kernel_name(x)
  operands = inside.operands(x)
  stored = sum(sum(y.stored) for y in operands) + sum(x.stored)
  flops = hlo_matmuls.kernel_flops(Step(x, inside, 1), name) or 0.0
  if not name.startswith('splash'):
    return Work(flops, 0.0, stored)
  floats = [
    y.shapes[0] for y in operands if y.shapes[0].dtype in ('bf16', 'f32')
  ]
  queries, keys = floats[:2]
  head = queries.dims[-1]
  share = _computed(operands, keys.dims[-2], causal)
  scores = queries.size / head * keys.dims[-2] * share
  each = _FORWARD if '_fwd' in name else _BACKWARD
  padded = flops * share * _pad(head, side) / head
  return Work(padded, each * scores, stored, serial=True)


def _computed(operands: list[Instruction], keys: int, causal: bool) -> float:
  """Share of the blocks of scores that an attention kernel computes.

  Its first operands have a number for each block that is visited: of a window
  fewer than there are.
  """
  masks = [y.shapes[0].dims for y in operands if y.shapes[0].dtype == 's8']
  if not masks or not causal:
    return 1.0
  rows, columns = masks[0][-2:]
  if rows == columns:
    return (rows + 1) / (2 * rows)
  return min(rows, columns) / max(rows, columns)


_FREE = {
  *('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast'),
  *('after-all', 'partition-id', 'replica-id', 'iota', 'rng-get-and-update'),
  *('copy-done', 'slice-done', 'opt-barrier', 'add-dependency'),
}
_SLICES = {'dynamic-slice', 'slice', 'gather'}
# Operations on each element of the result. Those with a table or a series are
# several; a division is a reciprocal and a product.
_ELEMENTS = {
  **dict.fromkeys(
    (
      *('add', 'subtract', 'multiply', 'maximum', 'minimum', 'negate', 'abs'),
      *('and', 'or', 'xor', 'not', 'compare', 'select', 'convert', 'clamp'),
      *('sign', 'floor', 'ceil', 'round-nearest-even', 'reduce', 'is-finite'),
      *('shift-left', 'shift-right-logical', 'shift-right-arithmetic'),
    ),
    1,
  ),
  **dict.fromkeys(('divide', 'exponential', 'rsqrt', 'sqrt'), 4),
  **dict.fromkeys(('log', 'exponential-minus-one', 'log-plus-one'), 6),
  **dict.fromkeys(('tanh', 'logistic', 'power', 'sine', 'cosine', 'erf'), 10),
}
