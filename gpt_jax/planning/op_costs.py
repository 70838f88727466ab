# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the instructions of a compiled program cost: FLOPs, traffic.

`costs.matmuls` counts those of the traced program, before XLA changes it.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from gpt_jax.core.costs.chips import Chip
from gpt_jax.core.nn.grouped import tile_of
from gpt_jax.planning import collectives
from gpt_jax.planning.hlo import (
  BYTES,
  FREE,
  ArrayShape,
  Computation,
  ExecutedInstruction,
  Instruction,
  Program,
)


class Flops(NamedTuple):
  """FLOPs of one device in one step, loops times their trip counts."""

  products: float  # of dots and convolutions, without padding
  # Of Pallas kernels, by name. Only their shapes are visible, so attention
  # counts as if unmasked, and experts as if all were chosen equally often.
  kernels: dict[str, float]
  calls: dict[str, float]  # number of calls of each kernel
  # Kernels that are not counted; and loops whose trip counts depend on data,
  # which count once.
  unknown: tuple[str, ...]

  @property
  def total(self) -> float:
    """Products plus kernels."""
    return self.products + sum(self.kernels.values())


def count(program: Program) -> Flops:
  """Counts the compiled program, so recomputation counts again."""
  products = 0.0
  kernels: dict[str, float] = {}
  calls: dict[str, float] = {}
  unknown, loops = set(), []
  for step in program.steps:
    x = step.instruction
    if x.opcode == 'while':
      if program.trips[step.computation.name, x.name] is None:
        loops.append(x.name)
    elif found := dimensions(step):
      products += step.trips * found.flops
    elif is_kernel(x):
      name = kernel_name(x)
      calls[name] = calls.get(name, 0) + step.trips
      flops = kernel_flops(step, name)
      if flops is None:
        unknown.add(name)
      else:
        kernels[name] = kernels.get(name, 0) + step.trips * flops
  return Flops(products, kernels, calls, (*sorted(unknown), *loops))


def is_kernel(x: Instruction) -> bool:
  """Whether an instruction is a Pallas kernel."""
  return x.opcode == 'custom-call' and 'custom_call_target="tpu_custom_call"' in x.attributes


def kernel_name(x: Instruction) -> str:
  """The kernel's own name, such as `splash_mha_fwd_residuals`."""
  found = re.search(r'([\w.-]+)\)*/pallas_call$', x.op_name)
  return found[1] if found else re.sub(r'(\.clone)?(\.\d+)*$', '', x.name)


class Dimensions(NamedTuple):
  """A product of [rows, inner] and [inner, columns], and its FLOPs.

  For a batch of products the sizes of one, as far as they are known; for a
  convolution, all dimensions but inner and columns are rows.
  """

  flops: float
  rows: float
  inner: float
  columns: float


def dimensions(step: ExecutedInstruction) -> Dimensions | None:
  """Sizes of a dot or convolution; None for other instructions."""
  found = _PRODUCTS.get(step.instruction.opcode)
  return found(step) if found else None


def _dot(step: ExecutedInstruction) -> Dimensions:
  x = step.instruction
  left, right = (y.shapes[0] for y in step.computation.operands(x)[:2])
  contracted = _numbers(x, 'lhs_contracting_dims')
  inner = math.prod(left.dims[i] for i in contracted)
  batch = math.prod(left.dims[i] for i in _numbers(x, 'lhs_batch_dims'))
  flops = 2.0 * x.shapes[0].size * inner
  each = max(batch * inner, 1)
  return Dimensions(flops, left.size / each, inner, right.size / each)


def _convolution(step: ExecutedInstruction) -> Dimensions:
  """FLOPs of a convolution; on TPU also of a dot, with batch as spatial dims.

  Window positions in the padding, or between the elements of a dilated operand,
  do not count.
  """
  x = step.instruction
  left, right = (y.shapes[0] for y in step.computation.operands(x)[:2])
  out = x.shapes[0]
  found = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', x.attributes)
  assert found is not None, x
  of_left, of_right, of_out = found.groups()
  window = _window(x)
  valid = 1
  for i in range(len(of_left) - 2):
    valid *= _valid_positions(
      left.dims[of_left.index(str(i))],
      right.dims[of_right.index(str(i))],
      out.dims[of_out.index(str(i))],
      {name: values[i] for name, values in window.items()},
    )
  batch = left.dims[of_left.index('b')] // x.number('batch_group_count', 1)
  inputs = right.dims[of_right.index('i')]  # of a feature group
  outputs = out.dims[of_out.index('f')]
  flops = 2.0 * batch * inputs * outputs * valid
  return Dimensions(flops, batch * valid, inputs, outputs)


def _valid_positions(inputs: int, kernel: int, outputs: int, window: dict[str, str]) -> int:
  """Pairs of an output and a kernel position that meet an input element."""
  low = int(window.get('pad', '0_0').split('_')[0])
  stride = int(window.get('stride', 1))
  spread, by = (int(window.get(n, 1)) for n in ('lhs_dilate', 'rhs_dilate'))
  at = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None] * by - low
  inside = (at >= 0) & (at < (inputs - 1) * spread + 1) & (at % spread == 0)
  return int(np.count_nonzero(inside))


def _window(x: Instruction) -> dict[str, list[str]]:
  """Parses `window={size=1x4 pad=0_0x3_3}` into values per dimension."""
  found = re.search(r'window=\{([^}]*)\}', x.attributes)
  fields = found[1].split() if found else ()
  pairs = (field.split('=') for field in fields)
  return {name: values.split('x') for name, values in pairs}


def _numbers(x: Instruction, name: str) -> list[int]:
  found = re.search(rf'{name}=\{{([\d,]*)\}}', x.attributes)
  return [int(n) for n in found[1].split(',') if n] if found else []


_PRODUCTS = {'dot': _dot, 'convolution': _convolution}


def kernel_flops(step: ExecutedInstruction, name: str) -> float | None:
  """FLOPs by the kernel's own cost estimate, else by its shapes.

  None if it has no estimate and an unknown name.
  """
  x = step.instruction
  if name in _GROUPED:
    product = _grouped(x, step.computation)
    return 2.0 * product.used * product.inner * product.outer
  found = estimate(x, 'flops')
  if found:
    return found
  arrays = [y.shapes[0] for y in step.computation.operands(x)]
  floats = [a for a in arrays if a.dtype in ('bf16', 'f32') and a.size > 1]
  for prefix, flops in _KERNELS.items():
    if name.startswith(prefix):
      return flops(floats, x.shapes)
  return None


def estimate(x: Instruction, name: str) -> float:
  """A number of the kernel's own cost estimate; 0 without one."""
  found = re.search(rf'"cost_estimate":\{{[^}}]*"{name}":"?(\d+)', x.attributes)
  return float(found[1]) if found else 0.0


def _attention(products: int):
  """`products` products of 2 L M K: [.., L, K] queries, [.., M, K] keys."""

  def flops(arrays: list[ArrayShape], out: tuple[ArrayShape, ...]) -> float:
    del out
    queries, keys = arrays[:2]
    return 2.0 * products * queries.size * keys.dims[-2]

  return flops


def _attention_keys(arrays: list[ArrayShape], out: tuple[ArrayShape, ...]) -> float:
  """Gradients of keys and values, and of queries too in the fused kernel.

  Products: the scores, their gradient, and one for each output. An output with
  an extra dimension marks the fused kernel: it holds partial query gradients
  for each block of keys.
  """
  rank = len(arrays[0].dims)
  fused = any(len(shape.dims) > rank for shape in out)
  return _attention(5 if fused else 4)(arrays, out)


class _Grouped(NamedTuple):
  """Products of rows with the matrices of their experts: `nn.grouped`.

  `gmm` multiplies [rows, inner] and [experts, inner, outer] to [rows, outer];
  `tgmm` multiplies the rows of both, which gives the gradient of the matrices.
  """

  rows: int  # that have a place
  used: float  # of them, if experts are chosen equally often
  size: float  # rows of a block
  experts: int
  inner: int
  outer: int
  bytes_each: int


_GROUPED = 'gmm', 'tgmm'


def _grouped(x: Instruction, inside: Computation) -> _Grouped:
  operands = [y.shapes[0] for y in inside.operands(x)]
  left, right = operands[-2:]
  rows, inner = left.dims
  experts = (right if len(right.dims) == 3 else x.shapes[0]).dims[0]
  # The second of the kernel's own arguments has the expert of each block, and
  # room for the others once more.
  blocks = operands[2].size - experts
  used = re.search(r'/rows_(\d+)/', x.op_name)
  return _Grouped(
    rows,
    float(used[1]) if used else rows,
    rows / blocks,
    experts,
    inner,
    x.shapes[0].dims[-1],
    int(BYTES[left.dtype]),
  )


_KERNELS = {
  'splash_mha_fwd': _attention(2),
  'splash_mqa_fwd': _attention(2),
  'splash_mha_dq': _attention(3),
  'splash_mqa_dq': _attention(3),
  'splash_mha_dkv': _attention_keys,
  'splash_mqa_dkv': _attention_keys,
}


# The load of one instruction on a TPU's units.


class Work(NamedTuple):
  """One instruction, executed once."""

  products: float = 0.0  # bf16 FLOPs of products, padded to the matrix unit
  vector: float = 0.0  # operations on elements
  bytes: float = 0.0  # read from and written to main memory
  # Whether products and vector operations take turns instead of overlapping, as
  # in attention kernels.
  serial: bool = False


# Operations on each score in splash attention, as JAX's kernel has them.
# Forward: a maximum, a subtraction, exp (a product, and two for its unit), a
# sum, a cast, and half of a mask. Backward: the mask, the subtraction, exp and
# cast again, the gradient minus its mean, a product, a cast.
_FORWARD, _BACKWARD = 8, 10
# Further ones in flash attention: of dropout, half of a hash, its comparison
# and what it hides; of a bias, its sum or gradient and what moves it. Of a
# table of distances: the sum, and for 128 columns more than there are scores a
# select in each of four rotations and three choices of rows; backward all of
# that twice, and the sum of the table's gradient. Of kinds: a comparison, a
# select and a sum; backward two selects and two sums more.
_HASH, _STRIP, _TABLE, _KINDS = 14, 3, (10, 22), (3, 7)


def of(program: Program, x: Instruction, inside: Computation, chip: Chip, causal: bool) -> Work:
  """The work of an instruction and of what it calls.

  Args:
    program: the instruction's.
    x: neither a collective nor a loop.
    inside: the computation with the instruction.
    chip: whose units do it.
    causal: whether attention kernels skip blocks that no query sees.
  """
  if x.opcode in FREE:
    return Work()
  if is_kernel(x):
    return _kernel(x, inside, chip.side, causal)
  if x.opcode == 'custom-call':  # buffers and markers
    return Work()
  if x.opcode == 'fusion':
    called = program.called(x, 'calls')
    products, vector = _inside(program, called, chip)
    return Work(products, vector, _traffic(program, x, inside))
  step = ExecutedInstruction(x, inside, 1)
  read = sum(sum(y.stored) for y in inside.operands(x))
  if x.opcode in _SLICES:
    read = min(read, sum(x.stored))
  written = sum(x.stored)
  if x.opcode == 'dynamic-update-slice':
    read = written = sum(inside.operands(x)[1].stored)
  return Work(_products(step, chip), _vector(step), read + written)


def _inside(program: Program, called: Computation, chip: Chip) -> tuple[float, float]:
  """Products and vector operations of a fusion."""
  products = vector = 0.0
  for x in called.instructions.values():
    if x.opcode == 'fusion':
      more = _inside(program, program.called(x, 'calls'), chip)
      products, vector = products + more[0], vector + more[1]
    else:
      step = ExecutedInstruction(x, called, 1)
      products += _products(step, chip)
      vector += _vector(step)
  return products, vector


def _products(step: ExecutedInstruction, chip: Chip) -> float:
  """FLOPs of a product [M, K] x [K, N] with padded dimensions.

  The unit holds a tile of K x N, through which at least as many rows pass as
  loading the next tile takes. (Or N passes through a tile of K x M.) Those in
  int8 count as products in bfloat16 that take as long.
  """
  sizes = dimensions(step)
  if sizes is None:
    return 0.0
  side, inner = chip.side, sizes.inner
  outer = sizes.rows, sizes.columns
  small, large = min(outer), max(outer)
  if not inner * small * large:
    return 0.0
  padded = _pad(inner, side) * _pad(small, side) * max(_pad(large, 8), side)
  operands = step.computation.operands(step.instruction)[:2]
  narrow = all(y.shapes[0].dtype == 's8' for y in operands)
  rate = chip.int8 if narrow else 1
  return sizes.flops * padded / (inner * small * large) / rate


def _pad(size: float, to: int) -> float:
  return math.ceil(size / to) * to


def _vector(step: ExecutedInstruction) -> float:
  """Operations on elements: for a reduction, on those that it reads."""
  x = step.instruction
  cost = _ELEMENTS.get(x.opcode, 0)
  if not cost:
    return 0.0
  if x.opcode == 'reduce':
    return sum(y.shapes[0].size for y in step.computation.operands(x))
  return cost * sum(shape.size for shape in x.shapes)


def _traffic(program: Program, x: Instruction, inside: Computation) -> float:
  """Bytes that a fusion reads of its operands and writes of its results.

  A slice reads only its own size, and an update in place writes only its own.
  Traffic of collectives does not count.
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
  """Bytes of a parameter that its users read."""
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
        continue  # passed on
      else:
        return math.inf
  return total


def _results(called: Computation) -> list[Instruction]:
  root = called.instructions[called.root]
  return called.operands(root) if root.opcode == 'tuple' else [root]


def _written(program: Program, x: Instruction, inside: Computation) -> float:
  """Bytes that an array takes to write."""
  if x.opcode == 'parameter' or _transfers(x):  # passed on
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
  """Whether it is a collective, whose traffic counts as its transfer."""
  if x.opcode == 'custom-call':
    return 'custom_call_target="AsyncCollective' in x.attributes
  return x.opcode in collectives.KINDS


def _kernel(x: Instruction, inside: Computation, side: int, causal: bool) -> Work:
  name = kernel_name(x)
  if name in _GROUPED:
    return _grouped_work(x, inside, side)
  operands = inside.operands(x)
  stored = sum(sum(y.stored) for y in operands) + sum(x.stored)
  flops = kernel_flops(ExecutedInstruction(x, inside, 1), name) or 0.0
  if not name.startswith(('flash', 'splash')):
    return Work(flops, 0.0, stored)
  each = _FORWARD if '_fwd' in name or '_forward' in name else _BACKWARD
  floats = [y.shapes[0] for y in operands if y.shapes[0].dtype in ('bf16', 'f32')]
  queries, keys = floats[:2]
  head = queries.dims[-1]
  if name.startswith('flash'):
    scores = estimate(x, 'transcendentals')
    each += _HASH * ('_hashes' in name) + _STRIP * ('_strip' in name)
    back = '_backward' in name
    each += _TABLE[back] * name.count('_table')
    each += _KINDS[back] * ('_kinds' in name)
    padded = flops * _pad(head, side) / head
    moved = estimate(x, 'bytes_accessed')
    return Work(padded, each * scores, moved, serial=True)
  share = _computed(operands, keys.dims[-2], causal)
  scores = queries.size / head * keys.dims[-2] * share
  padded = flops * share * _pad(head, side) / head
  return Work(padded, each * scores, stored, serial=True)


def _grouped_work(x: Instruction, inside: Computation, side: int) -> Work:
  """With each block for as often as the kernel's grid reads it.

  The grid takes the columns of the result tile by tile. For each it reads the
  rows in use again, and for each of their blocks the expert's matrix, unless
  that is a single tile, which stays.
  """
  of = _grouped(x, inside)
  high, wide = (tile_of(n, of.bytes_each) for n in (of.inner, of.outer))
  tiles_high, tiles_wide = -(-of.inner // high), -(-of.outer // wide)
  padded = _pad(tiles_high * high, side) * _pad(tiles_wide * wide, side)
  left, right, out = (sum(y.stored) for y in (*inside.operands(x)[-2:], x))
  share = of.used / of.rows
  if len(x.shapes[0].dims) == 3:
    moved = share * (left * tiles_wide + right * tiles_high) + out
  else:
    visits = 1 if tiles_high == 1 else of.used / of.size / of.experts
    moved = share * (left * tiles_wide + out) + right * visits
  return Work(2 * of.used * padded, 0.0, moved)


def _computed(operands: list[Instruction], keys: int, causal: bool) -> float:
  """Share of the blocks of scores that an attention kernel computes.

  Its first operands have one number for each block that is visited: with a
  window, fewer than all blocks.
  """
  masks = [y.shapes[0].dims for y in operands if y.shapes[0].dtype == 's8']
  if not masks or not causal:
    return 1.0
  rows, columns = masks[0][-2:]
  if rows == columns:
    return (rows + 1) / (2 * rows)
  return min(rows, columns) / max(rows, columns)


_SLICES = {'dynamic-slice', 'slice', 'gather'}
# Operations on each element of the result. Those with a table or a series are
# several; a division is a reciprocal and a product.
_ELEMENTS = {
  **dict.fromkeys(
    (
      'add',
      'subtract',
      'multiply',
      'maximum',
      'minimum',
      'negate',
      'abs',
      'and',
      'or',
      'xor',
      'not',
      'compare',
      'select',
      'convert',
      'clamp',
      'sign',
      'floor',
      'ceil',
      'round-nearest-even',
      'reduce',
      'is-finite',
      'shift-left',
      'shift-right-logical',
      'shift-right-arithmetic',
    ),
    1,
  ),
  **dict.fromkeys(('divide', 'exponential', 'rsqrt', 'sqrt'), 4),
  **dict.fromkeys(('log', 'exponential-minus-one', 'log-plus-one'), 6),
  **dict.fromkeys(('tanh', 'logistic', 'power', 'sine', 'cosine', 'erf'), 10),
}
