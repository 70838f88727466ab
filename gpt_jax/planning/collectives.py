# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The collectives of a compiled program: devices, mesh axes, bytes sent."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from gpt_jax.planning.hlo import Computation, ExecutedInstruction, Instruction, Program


def group_members(x: Instruction, mesh: Mesh) -> list[int]:
  """Devices of the first group, or of a permutation's first pair.

  Numbered in the order of the mesh. A multi-slice program is written for one
  slice, with the device numbers of the first.
  """
  text = x.attributes
  if found := re.search(r'source_target_pairs=\{\{([\d,{} ]*)\}\}', text):
    pairs = [p.split(',') for p in found[1].replace(' ', '').split('},{')]
    moved = [(int(a), int(b)) for a, b in pairs if int(a) != int(b)]
    return list(moved[0]) if moved else [0]
  if found := re.search(r'replica_groups=\{\{([\d, ]*)\}', text):
    return [int(n) for n in found[1].split(',')]
  if found := re.search(rf'replica_groups=\[([\d,]+)\]<={_ORDER}', text):
    return _ids(found[2], found[3]).reshape(_ints(found[1]))[0].ravel().tolist()
  if found := re.search(
    rf'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_ORDER}\))? '
    r'\{([^}]*)\}',
    text,
  ):
    return _members_by_name(found[1], found[4], found[2], found[3])
  if 'replica_groups={}' in text:
    return list(range(mesh.size))
  raise ValueError(f'{x.name}: unknown form of groups')


_ORDER = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'


def _ids(dims: str, order: str | None) -> np.ndarray:
  """`[4,2]T(1,0)`: an iota of this shape, transposed."""
  shape = _ints(dims)
  ids = np.arange(math.prod(shape)).reshape(shape)
  return ids.transpose(_ints(order)) if order else ids


def _members_by_name(axes: str, used: str, dims: str | None, order: str | None) -> list[int]:
  """Parses `'x'=2,'y'=4` with `'y'`, or with part of an axis: `'y':(2)2`."""
  sizes = {a: int(n) for a, n in re.findall(r"'([^']+)'=(\d+)", axes)}
  shape = list(sizes.values())
  ids = _ids(dims or str(math.prod(shape)), order).reshape(shape)
  names = list(sizes)
  chosen: list[Any] = [slice(0, 1)] * len(names)
  for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", used):
    stride = sizes[name] // (int(before) * int(size)) if size else 1
    stop = stride * int(size) if size else None
    chosen[names.index(name)] = slice(0, stop, stride)
  return ids[tuple(chosen)].ravel().tolist()


def _ints(text: str | None) -> list[int]:
  return [int(n) for n in text.split(',')] if text else []


def group_axes(members: list[int], mesh: Mesh) -> tuple[str, ...]:
  """The axes of the mesh along which the members of a group differ."""
  if len(members) < 2:
    return ('?',)
  at = np.array(np.unravel_index(members, mesh.devices.shape))
  return tuple(
    name for name, along in zip(mesh.axis_names, at, strict=True) if np.any(along != along[0])
  )


KINDS = (
  'all-gather',
  'reduce-scatter',
  'all-reduce',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'dcn',
)
# Opcodes that only forward their operand, whose op_name path is reported.
_PASSES = {
  'bitcast',
  'copy',
  'copy-start',
  'copy-done',
  'pad',
  'reshape',
  'get-tuple-element',
  'convert',
  'transpose',
  'slice',
  'slice-done',
  'slice-start',
}


class Collective(NamedTuple):
  """One array sent by a collective instruction."""

  kind: str  # one of `KINDS`; `dcn` is a transfer between slices
  axes: tuple[str, ...]  # of the mesh; '?' if its groups match no axis
  size: int  # devices in a group
  dtype: str  # of the array sent
  trips: float  # executions per step on one device
  bytes: float  # sent by one device per step, all trips together
  blocking: bool  # whether nothing is computed while it runs
  path: str  # in the traced function, as far as the program records it
  backward: bool  # whether it belongs to the backward pass
  members: tuple[int, ...]  # device numbers of one group, in mesh order
  # Names of its computation and instruction; of a chain, the first.
  at: tuple[str, str] = ('', '')


def read(program: Program, mesh: Mesh) -> list[Collective]:
  """Lists the collectives that one device executes.

  A chain (see `chain`) counts once. Bytes are those of ring algorithms: among
  n devices, (n - 1) / n of the larger side of an all-gather, reduce-scatter or
  all-to-all, and twice that for an all-reduce. Of a ragged all-to-all it is the
  smaller side: the rows of one device, since the other has room for those of
  all. Padding that the compiler adds counts.

  Args:
    program: see `hlo.parse`.
    mesh: that the program was compiled for.
  """
  # Fusions by the name of the computation that they call.
  fusions = {
    x.called('calls'): ExecutedInstruction(x, computation, 1)
    for computation in program.computations.values()
    for x in computation.instructions.values()
    if x.opcode == 'fusion'
  }
  out, seen = [], set()
  for step in program.steps:
    x, fusion = step.instruction, fusions.get(step.computation.name)
    kind = x.opcode.removesuffix('-start')
    if kind == 'send' and 'megascale' in x.attributes:
      out.append(_dcn(step, mesh))
    elif kind in KINDS:
      if link := chain(x):
        whole = (fusion and fusion.computation.name, link)
        if whole in seen:
          continue
        seen.add(whole)
      # libtpu writes a reduce-scatter as a fusion that all-reduces, and keeps
      # only this device's shard.
      attributes = fusion.instruction.attributes if fusion else ''
      if 'AllReduceScatterFusion' not in attributes:
        fusion = None
      elif kind == 'all-reduce':
        kind = 'reduce-scatter'
      out += _collective(step, kind, mesh, fusion)
  return out


def chain(x: Instruction) -> tuple[int, str] | None:
  """The asynchronous chain that a collective belongs to, if any.

  libtpu writes such a collective once in each fusion that it overlaps: the one
  that starts it, those that compute meanwhile, and the one that waits for it.
  They are a single transfer, identified by channel and `chain_id`.
  """
  found = re.search(r'\bchain_id="(\w+)"', x.attributes)
  return (x.number('channel_id'), found[1]) if found else None


def _collective(
  step: ExecutedInstruction, kind: str, mesh: Mesh, fusion: ExecutedInstruction | None
) -> Iterator[Collective]:
  """Yields one for each array: the compiler combines small collectives."""
  x = step.instruction
  members = group_members(x, mesh)
  axes, n = group_axes(members, mesh), len(members)
  if kind == 'collective-permute':
    share = 1.0 if n > 1 else 0.0
  elif kind == 'all-gather':  # its operand is one shard
    share = n - 1
  else:
    share = (2 if kind == 'all-reduce' else 1) * (n - 1) / n
  where = fusion or step
  overlaps = x.opcode.endswith('-start') or chain(x)
  # Computations that an `async-start` calls have async in their name.
  blocking = not overlaps and 'async' not in step.computation.name
  sent = step.computation.operands(x)
  if kind == 'ragged-all-to-all':  # the others are its result, and where to
    sent = sent[:1]
    share *= min(1, x.shapes[0].bytes / sent[0].shapes[0].bytes)
  for y in sent:
    given = _given(y, step.computation, fusion) if fusion else y
    path = where.instruction.op_name
    if not path or len(sent) > 1:
      path = _path(given, where.computation) or path
    yield Collective(
      kind,
      axes,
      n,
      y.shapes[0].dtype,
      step.trips,
      step.trips * sum(shape.bytes for shape in y.shapes) * share,
      blocking,
      path,
      'transpose(' in path,
      tuple(members),
      (step.computation.name, x.name),
    )


def _given(x: Instruction, inside: Computation, fusion: ExecutedInstruction) -> Instruction:
  """Traces an instruction inside a fusion back to the fusion's operand."""
  while x.operands:
    x = inside.operands(x)[0]
  if x.opcode != 'parameter':
    return fusion.instruction
  outside = fusion.computation.operands(fusion.instruction)
  return outside[int(x.argument)]


def _dcn(step: ExecutedInstruction, mesh: Mesh) -> Collective:
  """A transfer between slices: each device exchanges its slice's partial sum.

  Counted as a ring over n slices: 2 (n - 1) / n of the bytes. The program has
  one transfer, whatever the number of slices.
  """
  x = step.instruction
  value = step.computation.operands(x)[0]
  slices = np.vectorize(lambda d: getattr(d, 'slice_index', 0))(mesh.devices)
  axes = tuple(
    name for i, name in enumerate(mesh.axis_names) if np.any(slices != np.take(slices, [0], axis=i))
  )
  path = _path(value, step.computation)
  number = max(len(np.unique(slices)), 2)
  return Collective(
    'dcn',
    axes or ('?',),
    number,
    value.shapes[0].dtype,
    step.trips,
    step.trips * value.shapes[0].bytes * 2 * (number - 1) / number,
    False,
    path,
    'transpose(' in path,
    (),
    (step.computation.name, x.name),
  )


def _path(x: Instruction, computation: Computation, depth: int = 8) -> str:
  """The op_name of the instruction, or of its nearest producer with one."""
  if x.op_name or not depth:
    return x.op_name
  for y in computation.operands(x):
    if y.op_name or y.opcode in _PASSES:
      path = _path(y, computation, depth - 1)
      if path:
        return path
  return ''


def totals(collectives: Iterable[Collective]) -> dict[str, dict[str, float]]:
  """`{'fsdp': {'all-gather': bytes}, 'data+fsdp': ...}` of one device."""
  out: dict[str, dict[str, float]] = {}
  for x in collectives:
    by_kind = out.setdefault('+'.join(x.axes), {})
    by_kind[x.kind] = by_kind.get(x.kind, 0) + x.bytes
  return out


def float32_gathers(collectives: Iterable[Collective], least: float = 1 << 20) -> list[Collective]:
  """All-gathers of float32 that send at least `least` bytes per step.

  Weights and activations should be cast to bfloat16 before they are sent:
  float32 doubles the traffic.
  """
  return [
    x for x in collectives if x.kind == 'all-gather' and x.dtype == 'f32' and x.bytes >= least
  ]


_LEAST_GRADIENT = 1 << 10  # bytes; reductions of losses and norms are smaller


def gradients(
  collectives: Iterable[Collective], parameters: Iterable[str]
) -> list[tuple[str, Collective]]:
  """The reductions of gradients, each with the path of its parameter.

  A reduce-scatter, or an all-reduce, which sends twice as much. Reductions
  whose paths identify no parameter are left out.
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
      out.append((name, x))
  return out


def parameter_of(path: str, parameters: Iterable[str]) -> str | None:
  """The parameter that a path in the program belongs to, if any.

  `jit(train_step)/.../decoder/while/body/periods/block_0/ffn/in/dot_general`
  matches `decoder/periods/block_0/ffn/in/kernel`: the same names in the same
  order, with others in between. The first match in `parameters` wins.
  """
  for name in parameters:
    steps = iter(path.split('/'))
    if all(part in steps for part in name.split('/')[:-1]):
      return name
  return None
