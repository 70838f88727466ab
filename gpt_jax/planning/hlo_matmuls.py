# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of the matrix products in a compiled program's HLO.

`costs.matmuls` counts those of the traced program, before XLA changes it.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from gpt_jax.planning import loops
from gpt_jax.planning.hlo import Instruction, Program, Shape
from gpt_jax.planning.loops import Step


class Flops(NamedTuple):
  """FLOPs of one device in one step, loops times their trip counts.

  Attributes:
    products: of dots and convolutions, without padding.
    kernels: of Pallas kernels, by name. Only their shapes are visible, so
      attention counts as if unmasked, and experts as if every row were used.
    calls: number of calls of each kernel.
    unknown: kernels that are not counted.
    unknown_loops: loops with data-dependent trip counts, counted once.
  """

  products: float
  kernels: dict[str, float]
  calls: dict[str, float]
  unknown: tuple[str, ...]
  unknown_loops: tuple[str, ...]

  @property
  def total(self) -> float:
    """Products plus kernels."""
    return self.products + sum(self.kernels.values())


def count(program: Program) -> Flops:
  """Counts the compiled program, so recomputation counts again."""
  products = 0.0
  kernels: dict[str, float] = {}
  calls: dict[str, float] = {}
  unknown = set()
  for step in loops.steps(program):
    x = step.instruction
    if found := dimensions(step):
      products += step.trips * found.flops
    elif is_kernel(x):
      name = kernel_name(x)
      calls[name] = calls.get(name, 0) + step.trips
      flops = kernel_flops(step, name)
      if flops is None:
        unknown.add(name)
      else:
        kernels[name] = kernels.get(name, 0) + step.trips * flops
  return Flops(
    products,
    kernels,
    calls,
    tuple(sorted(unknown)),
    tuple(loops.unknown(program)),
  )


def is_kernel(x: Instruction) -> bool:
  """Whether an instruction is a Pallas kernel."""
  return (
    x.opcode == 'custom-call'
    and 'custom_call_target="tpu_custom_call"' in x.attributes
  )


def kernel_name(x: Instruction) -> str:
  """The kernel's own name, such as `splash_mha_fwd_residuals`."""
  found = re.search(r'([\w.-]+)/pallas_call$', x.op_name)
  return found[1] if found else re.sub(r'(\.clone)?(\.\d+)*$', '', x.name)


class Dimensions(NamedTuple):
  """A product of [rows, inner] and [inner, columns], and its FLOPs.

  Of a batch of products the sizes of one, as far as the text tells; of a
  convolution what is neither inner nor columns is rows.
  """

  flops: float
  rows: float
  inner: float
  columns: float


def dimensions(step: Step) -> Dimensions | None:
  """Sizes of a dot or convolution; None for other instructions."""
  found = _PRODUCTS.get(step.instruction.opcode)
  return found(step) if found else None


def _dot(step: Step) -> Dimensions:
  x = step.instruction
  left, right = (y.shapes[0] for y in step.computation.operands(x)[:2])
  contracted = _numbers(x, 'lhs_contracting_dims')
  inner = math.prod(left.dims[i] for i in contracted)
  batch = math.prod(left.dims[i] for i in _numbers(x, 'lhs_batch_dims'))
  flops = 2.0 * x.shapes[0].size * inner
  each = max(batch * inner, 1)
  return Dimensions(flops, left.size / each, inner, right.size / each)


def _convolution(step: Step) -> Dimensions:
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


def _valid_positions(
  inputs: int, kernel: int, outputs: int, window: dict[str, str]
) -> int:
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


def kernel_flops(step: Step, name: str) -> float | None:
  """FLOPs by the kernel's own cost estimate, else by its shapes.

  None: it has no estimate, and its name is not known.
  """
  x = step.instruction
  found = re.search(r'"cost_estimate":\{[^}]*"flops":"?(\d+)', x.attributes)
  if found:
    return float(found[1])
  arrays = [y.shapes[0] for y in step.computation.operands(x)]
  floats = [a for a in arrays if a.dtype in ('bf16', 'f32') and a.size > 1]
  for prefix, flops in _KERNELS.items():
    if name.startswith(prefix):
      return flops(floats, x.shapes)
  return None


def _attention(products: int):
  """`products` products of 2 L M K: [.., L, K] queries, [.., M, K] keys."""

  def flops(arrays: list[Shape], out: tuple[Shape, ...]) -> float:
    del out
    queries, keys = arrays[:2]
    return 2.0 * products * queries.size * keys.dims[-2]

  return flops


def _attention_keys(arrays: list[Shape], out: tuple[Shape, ...]) -> float:
  """Gradients of keys and values, and of queries too in the fused kernel.

  Products: the scores, their gradient, and one for each output. An output with
  an extra dimension marks the fused kernel: it holds partial query gradients
  for each block of keys.
  """
  rank = len(arrays[0].dims)
  fused = any(len(shape.dims) > rank for shape in out)
  return _attention(5 if fused else 4)(arrays, out)


def _grouped(arrays: list[Shape], out: tuple[Shape, ...]) -> float:
  """Each of the [M, K] rows times one of the [E, K, N] matrices: [M, N].

  `tgmm` takes [K, M] and [M, N] and returns [E, K, N].
  """
  if len(out[0].dims) == 2:
    inner = arrays[0].dims[1]
    return 2.0 * inner * out[0].size
  rows = arrays[1].dims[0]
  return 2.0 * rows * math.prod(out[0].dims[1:])


_KERNELS = {
  'splash_mha_fwd': _attention(2),
  'splash_mqa_fwd': _attention(2),
  'splash_mha_dq': _attention(3),
  'splash_mqa_dq': _attention(3),
  'splash_mha_dkv': _attention_keys,
  'splash_mqa_dkv': _attention_keys,
  'gmm': _grouped,
  'tgmm': _grouped,
}
