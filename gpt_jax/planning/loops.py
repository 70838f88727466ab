# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Walks the instructions that one device executes, with trip counts.

The compiler's own `cost_analysis()` counts the body of a loop once, however
often it runs.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpt_jax.planning.hlo import Computation, Instruction, Program, Shape


class Step(NamedTuple):
  """An instruction, its computation, and how often a device executes it."""

  instruction: Instruction
  computation: Computation
  trips: float


def steps(program: Program) -> Iterator[Step]:
  """Yields everything that one device executes, including inside fusions.

  Takes the longest branch of a conditional. A loop with a data-dependent trip
  count counts once: see `unknown`.
  """
  return _walk(program, program.entry, 1.0)


def unknown(program: Program) -> list[str]:
  """Loops whose trip count is not known before they run."""
  return [
    step.instruction.name
    for step in steps(program)
    if step.instruction.opcode == 'while'
    and trips(program, step.instruction, step.computation) is None
  ]


# Opcodes that run another computation once, and the attribute that names it.
# (`reduce`, `map` and the like apply scalar computations, which do not matter.)
_CALLS = {'fusion': 'calls', 'async-start': 'calls', 'call': 'to_apply'}


def _walk(
  program: Program, computation: Computation, count: float
) -> Iterator[Step]:
  for x in computation.instructions.values():
    yield Step(x, computation, count)
    if x.opcode == 'while':
      known = trips(program, x, computation)
      if known != 0:
        times = count * (1 if known is None else known)
        yield from _walk(program, program.called(x, 'body'), times)
    elif x.opcode == 'conditional' or x.opcode in _CALLS:
      ways = [list(_walk(program, way, count)) for way in called(program, x)]
      yield from max(ways, key=len)


def called(program: Program, x: Instruction) -> list[Computation]:
  """What a call runs, or a conditional one of."""
  if x.opcode in _CALLS:
    return [program.called(x, _CALLS[x.opcode])]
  found = re.search(r'branch_computations=\{([^}]*)\}', x.attributes)
  if found is None:
    both = ('true_computation', 'false_computation')
    return [program.called(x, name) for name in both]
  names = [name.strip().lstrip('%') for name in found[1].split(',')]
  return [program.computations[name] for name in names]


def trips(
  program: Program, loop: Instruction, computation: Computation
) -> int | None:
  """Trip count of a loop; None if it depends on data.

  Taken from XLA's own annotation, or found by following the counter: from its
  initial value, in steps of what the body adds, until the condition is false.
  """
  found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
  if found:
    return int(found[1])
  condition = program.called(loop, 'condition')
  body = program.called(loop, 'body')
  start = computation.operands(loop)[0]
  if start.opcode != 'tuple':
    return None
  first = _Scalars(program, computation)
  given = {i: first.of(x) for i, x in enumerate(computation.operands(start))}
  after = _Scalars(program, body, given)
  updates = body.operands(body.instructions[body.root])
  for x in condition.instructions.values():
    if x.opcode != 'get-tuple-element' or x.shapes[0] not in _COUNTERS:
      continue
    index = x.number('index')
    value, following = given[index], after.of(updates[index])
    if value is None or following in (None, value):
      continue

    def goes_on(n: int, index=index, value=value, by=following - value):
      inside = _Scalars(program, condition, {**given, index: value + n * by})
      return inside.of(condition.instructions[condition.root])

    return _first_false(goes_on)
  return None


def _first_false(goes_on: Callable[[int], int | None]) -> int | None:
  """The least n >= 0 at which a condition is false; it must stay false then.

  None if the condition is unknown, or never ends.
  """
  if goes_on(0) is None:
    return None
  high = 1
  while goes_on(high - 1):
    high *= 2
    if high > 1 << 40:
      return None
  low = high // 2
  while low < high:
    middle = (low + high) // 2
    low, high = (middle + 1, high) if goes_on(middle) else (low, middle)
  return low


class _Scalars:
  """Evaluates integer scalars in a computation.

  Either its only parameter is a tuple, with the known elements in `given`; or,
  inside a fusion, its parameters have the values `arguments`.
  """

  def __init__(
    self,
    program: Program,
    computation: Computation,
    given: dict[int, int | None] | None = None,
    arguments: list[int | None] | None = None,
  ):
    self._program, self._computation = program, computation
    self._given, self._arguments = given or {}, arguments
    self._known: dict[str, int | None] = {}

  def of(self, x: Instruction) -> int | None:
    """The value; None if it is not a known integer."""
    # Cached: otherwise shared operands are evaluated once for each reader.
    if x.name not in self._known:
      self._known[x.name] = self._of(x)
    return self._known[x.name]

  def _of(self, x: Instruction) -> int | None:
    if x.shapes[0].size != 1:
      return None
    operands = self._computation.operands(x)
    if x.opcode == 'constant':
      text = x.argument.strip('{}')
      return int(text) if re.fullmatch(r'-?\d+', text) else None
    if x.opcode == 'parameter' and self._arguments is not None:
      return self._arguments[int(x.argument)]
    if x.opcode == 'get-tuple-element':
      return self._element(operands[0], x.number('index'))
    if x.opcode in _SAME:
      return self.of(operands[0])
    values = [self.of(y) for y in operands]
    if x.opcode == 'fusion':
      called = self._program.called(x, 'calls')
      inside = _Scalars(self._program, called, arguments=values)
      return inside.of(called.instructions[called.root])
    name = x.opcode
    if name == 'compare':
      found = re.search(r'direction=(\w+)', x.attributes)
      name = found[1] if found else ''
    known = [value for value in values if value is not None]
    if name not in _ARITHMETIC or len(known) < len(values):
      return None
    return int(functools.reduce(_ARITHMETIC[name], known))

  def _element(self, of: Instruction, index: int) -> int | None:
    if of.opcode == 'parameter':
      return self._given.get(index)
    if of.opcode == 'tuple':
      return self.of(self._computation.operands(of)[index])
    return None


_COUNTERS = [Shape(dtype, ()) for dtype in ('s32', 'u32', 's64', 'u64')]
# Opcodes that keep the value.
_SAME = {'copy', 'bitcast', 'convert', 'reshape', 'copy-start', 'copy-done'}
_ARITHMETIC: dict[str, Callable] = {
  'add': lambda a, b: a + b,
  'subtract': lambda a, b: a - b,
  'multiply': lambda a, b: a * b,
  'and': lambda a, b: a & b,
  'LT': lambda a, b: a < b,
  'LE': lambda a, b: a <= b,
  'GT': lambda a, b: a > b,
  'GE': lambda a, b: a >= b,
  'NE': lambda a, b: a != b,
  'EQ': lambda a, b: a == b,
}
