# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parses the text of a compiled program, as one device runs it.

  program = hlo.parse(compiled.as_text())
  flops = hlo_matmuls.count(program)
  sent = collectives.read(program, mesh)
  estimate.step_time(flops.total, sent, mesh, rates)

The text comes from XLA's `HloModule::ToString` after partitioning and
scheduling, for TPU or CPU. JAX also provides it as a serialised protocol
buffer, but no package of reasonable size ships the definition.
"""

import math
import re
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


class Shape(NamedTuple):
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
  """One line of a computation.

  Attributes:
    name: unique in its computation.
    opcode: as in `all-gather`, `fusion`.
    shapes: of the result, one for each element of a tuple.
    stored: bytes that each takes in the device's main memory, with the padding
      of its tiles; 0 in a faster memory. A layout says so, as in
      `{1,0:T(8,128)S(1)}`.
    operands: names of instructions in the same computation.
    argument: the text between the parentheses.
    attributes: the text after them.
  """

  name: str
  opcode: str
  shapes: tuple[Shape, ...]
  stored: tuple[float, ...]
  operands: tuple[str, ...]
  argument: str
  attributes: str

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


class Program(NamedTuple):
  """A compiled module."""

  computations: dict[str, Computation]
  entry: Computation

  def called(self, x: Instruction, attribute: str) -> Computation:
    """The computation named in an attribute of an instruction."""
    return self.computations[x.called(attribute)]


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
    elif line == '}':
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
  return Instruction(
    name,
    text[text.index(' ', end) + 1 : start],
    shapes(text[:end]),
    stored(text[:end]),
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


def shapes(text: str) -> tuple[Shape, ...]:
  """Parses `(bf16[8,4]{1,0}, f32[])`, or a single array."""
  return tuple(_shape(*found[:2]) for found in _SHAPE.findall(text))


def stored(text: str) -> tuple[float, ...]:
  """Bytes of each of these arrays in main memory: see `Instruction`."""
  return tuple(
    _stored(_shape(dtype, dims), layout)
    for dtype, dims, layout in _SHAPE.findall(text)
  )


def _shape(dtype: str, dims: str) -> Shape:
  return Shape(dtype, tuple(int(d.strip('<=')) for d in dims.split(',') if d))


def _stored(shape: Shape, layout: str) -> float:
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
