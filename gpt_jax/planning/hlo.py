# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parses the text of a compiled program, as one device runs it.

  program = hlo.parse(compiled.as_text())
  flops = op_costs.count(program).total
  sent = collectives.read(program, mesh)
  events = schedule.read(program, sent, mesh, slices, causal=True)

The text comes from XLA's `HloModule::ToString` after partitioning and
scheduling, for TPU or CPU. JAX also provides it as a serialised protocol
buffer, but no package of reasonable size ships the definition.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

BYTES = {
  **dict.fromkeys(('pred', 's8', 'u8'), 1),
  **dict.fromkeys(('s16', 'u16', 'f16', 'bf16'), 2),
  **dict.fromkeys(('s32', 'u32', 'f32'), 4),
  **dict.fromkeys(('s64', 'u64', 'f64', 'c64'), 8),
  **{'c128': 16, 'token': 0, 's4': 0.5, 'u4': 0.5},
}
_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.-]+) \(')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.-]+) = ')
_SHAPE = re.compile(r'(\w+)\[([\d,<=]*)\](?:\{([^}]*)\})?')
_NAME = re.compile(r'%([\w.-]+)')


class ArrayShape(NamedTuple):
  """An array's shape on one device."""

  dtype: str
  dims: tuple[int, ...]

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> float:
    """Without padding; formats not in `BYTES` are taken to be 8-bit."""
    return self.size * BYTES.get(self.dtype, 1)


class Instruction(NamedTuple):
  """One line of a computation."""

  name: str  # unique in its computation
  opcode: str  # as in `all-gather`, `fusion`
  shapes: tuple[ArrayShape, ...]  # of the result, one for each element of a tuple
  # Bytes that each takes in the device's main memory, with the padding of its
  # tiles; 0 if its layout puts it in a faster memory: `{1,0:T(8,128)S(1)}`.
  stored: tuple[float, ...]
  operands: tuple[str, ...]  # names of instructions in the same computation
  argument: str  # the text between the parentheses
  attributes: str  # the text after them

  @property
  def op_name(self) -> str:
    """Its path in the traced function, or ''."""
    found = re.search(r'op_name="([^"]*)"', self.attributes)
    return found[1] if found else ''

  def called(self, attribute: str) -> str:
    """Name of the computation in an attribute such as `body`."""
    found = re.search(rf'\b{attribute}=%?([\w.-]+)', self.attributes)
    if found is None:
      raise ValueError(f'{self.name}: has no {attribute}')
    return found[1]

  def number(self, attribute: str, default: int | None = None) -> int:
    """Value of an attribute such as `index=3`."""
    found = re.search(rf'\b{attribute}=(\d+)', self.attributes)
    if found is not None:
      return int(found[1])
    if default is None:
      raise ValueError(f'{self.name}: has no {attribute}')
    return default


class Computation(NamedTuple):
  """Instructions by name, in execution order."""

  name: str
  instructions: dict[str, Instruction]
  root: str

  def operands(self, instruction: Instruction) -> list[Instruction]:
    """The operands of an instruction in this computation."""
    return [self.instructions[name] for name in instruction.operands]


class ExecutedInstruction(NamedTuple):
  """An instruction, its computation, and how often a device executes it."""

  instruction: Instruction
  computation: Computation
  trips: float


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled module."""

  computations: dict[str, Computation]
  entry: Computation

  def called(self, x: Instruction, attribute: str) -> Computation:
    """The computation named in an attribute of an instruction."""
    return self.computations[x.called(attribute)]

  @functools.cached_property
  def trips(self) -> dict[tuple[str, str], int | None]:
    """Trip counts of the loops, by the names of computation and instruction.

    None if a count depends on data. The compiler's own `cost_analysis()` counts
    the body of a loop once, however often it runs.
    """
    return {
      (computation.name, x.name): _trips(self, x, computation)
      for computation in self.computations.values()
      for x in computation.instructions.values()
      if x.opcode == 'while'
    }

  @functools.cached_property
  def steps(self) -> tuple[ExecutedInstruction, ...]:
    """Everything that one device executes, including inside fusions.

    Takes one branch of a conditional, see `taken`; a loop whose trip count
    depends on data counts once.
    """
    return tuple(_walk(self, self.entry, 1.0))


def parse(text: str) -> Program:
  """Reads `compiled.as_text()`.

  Raises:
    ValueError: it holds no program.
  """
  computations, entry, lines, name = {}, None, [], ''
  for line in text.splitlines():
    if not name:
      if (found := _COMPUTATION.match(line)) and line.endswith('{'):
        name, lines = found[2], []
        entry = name if found[1] else entry
    elif line == '}' or line.startswith('}, execution_thread='):
      computations[name] = _computation(name, lines)
      name = ''
    elif _INSTRUCTION.match(line):
      lines.append(line)
    else:  # a string inside an instruction may span lines
      lines[-1] += line
  if entry is None:
    raise ValueError('not the text of a compiled program: it has no ENTRY')
  return Program(computations, computations[entry])


def _computation(name: str, lines: list[str]) -> Computation:
  instructions, root = {}, ''
  for line in lines:
    found = _INSTRUCTION.match(line)
    assert found is not None
    instruction = _instruction(found[2], line[found.end() :])
    instructions[instruction.name] = instruction
    if found[1]:
      root = instruction.name
  return Computation(name, instructions, root or instruction.name)


def _instruction(name: str, text: str) -> Instruction:
  """`bf16[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, ...`."""
  end = _closing(text, 0) + 1 if text.startswith('(') else text.index(' ')
  # Layouts such as {1,0:T(8,128)} contain no spaces, nor do the ends of tuples.
  start = text.index('(', text.index(' ', end))
  stop = _closing(text, start)
  argument = text[start + 1 : stop]
  found = _SHAPE.findall(text[:end])
  return Instruction(
    name,
    text[text.index(' ', end) + 1 : start],
    tuple(_shape(dtype, dims) for dtype, dims, _ in found),
    tuple(_stored(_shape(*array), layout) for *array, layout in found),
    tuple(_NAME.findall(argument)),
    argument,
    text[stop + 1 :],
  )


def _closing(text: str, start: int) -> int:
  """Index of the parenthesis matching the one at `start`."""
  depth = 0
  for found in re.compile(r'[()]').finditer(text, start):
    depth += 1 if found[0] == '(' else -1
    if not depth:
      return found.start()
  raise ValueError(f'no closing parenthesis: {text[:80]}')


def _shape(dtype: str, dims: str) -> ArrayShape:
  return ArrayShape(dtype, tuple(int(d.strip('<=')) for d in dims.split(',') if d))


def _stored(shape: ArrayShape, layout: str) -> float:
  order, _, rest = layout.partition(':')
  if re.search(r'S\([1-9]', rest):
    return 0
  tile = re.match(r'T\(([\d,]+)\)', rest)
  if not tile or not shape.dims:
    return shape.bytes
  sides = [int(n) for n in tile[1].split(',')]
  # The order names the dimension that varies fastest first, a tile last.
  axes = [int(n) for n in order.split(',')]
  padded = list(shape.dims)
  for axis, side in zip(axes, reversed(sides), strict=False):
    padded[axis] = -(-padded[axis] // side) * side
  return shape._replace(dims=tuple(padded)).bytes


# Opcodes that neither compute nor move anything.
FREE = {
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'after-all',
  'partition-id',
  'replica-id',
  'iota',
  'rng-get-and-update',
  'copy-done',
  'slice-done',
  'opt-barrier',
  'add-dependency',
}
# Opcodes that run another computation once, and the attribute that names it.
# (`reduce`, `map` and the like apply scalar computations, which do not matter.)
_CALLS = {'fusion': 'calls', 'async-start': 'calls', 'call': 'to_apply'}


def _walk(
  program: Program, computation: Computation, count: float
) -> Iterator[ExecutedInstruction]:
  for x in computation.instructions.values():
    yield ExecutedInstruction(x, computation, count)
    if x.opcode == 'while':
      known = program.trips[computation.name, x.name]
      if known != 0:
        times = count * (1 if known is None else known)
        yield from _walk(program, program.called(x, 'body'), times)
    elif x.opcode == 'conditional':
      way, share = taken(program, x)
      yield from _walk(program, way, count * share)
    elif x.opcode in _CALLS:
      yield from _walk(program, program.called(x, _CALLS[x.opcode]), count)


def taken(program: Program, x: Instruction) -> tuple[Computation, float]:
  """The branch of a conditional that counts, and in which share of its runs.

  The one that executes the most instructions which compute or move something:
  FLOPs, traffic and time are those of the same branch. A program says how often
  it is taken in the name of a scope around the conditional, as in
  `every_500_steps` (`gpt_jax/papers/diloco/diloco.py`); always without one.
  """

  def length(way: Computation) -> float:
    steps = _walk(program, way, 1.0)
    return sum(y.trips for y in steps if y.instruction.opcode not in FREE)

  found = re.search(r'branch_computations=\{([^}]*)\}', x.attributes)
  if found is None:
    both = ('true_computation', 'false_computation')
    ways = [program.called(x, name) for name in both]
  else:
    names = [name.strip().lstrip('%') for name in found[1].split(',')]
    ways = [program.computations[name] for name in names]
  rare = re.search(r'\bevery_(\d+)_steps/', x.op_name)
  return max(ways, key=length), 1 / int(rare[1]) if rare else 1.0


def _trips(program: Program, loop: Instruction, computation: Computation) -> int | None:
  """Trip count of a loop; None if it depends on data.

  Taken from XLA's own annotation, from the name of a scope around the loop, as
  in `runs_8_times` (`gpt_jax/core/training/exact.py`), or found by following the counter: from its
  initial value, in steps of what the body adds, until the condition is false.
  """
  found = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
  found = found or re.search(r'\bruns_(\d+)_times/while$', loop.op_name)
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


_COUNTERS = [ArrayShape(dtype, ()) for dtype in ('s32', 'u32', 's64', 'u64')]
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
