# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which meshes a config can have on TPU slices, the most promising first.

An axis that is one or more whole dimensions of the slice keeps its rings, and
with them the reduce-scatter of gradients; one that shares a dimension loses
them. So meshes are made by giving each dimension to an axis, and only tensor
may be a part of one. They are put in order by a roofline of three terms, which
is good for that alone: what is reported comes from the compiled program.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.nn.pattern import period
from gpt_jax.planning.sizes import Sizes
from gpt_jax.planning.topologies import Slices
from gpt_jax.spec import UsageError

# `configs/base.py`: a mesh that nobody chose.
UNSET = {'data': 1, 'fsdp': -1, 'expert': 1, 'tensor': 1}
# A part of a dimension that tensor may take.
PARTS = (2, 4, 8)
# Of the peak, as published runs reach it (gpt_jax/planning/estimate.py).
EFFICIENCY = 0.73
# Lanes of a TPU's registers: a table of other lengths would be padded.
LANES = 128
FREE = 0.9  # of HBM may be full by this file's reckoning


class Layout(NamedTuple):
  """A mesh on some slices, and what else it asks of the config."""

  sizes: dict[str, int]  # of all mesh axes
  changes: dict[str, Any]  # fields of the config, the mesh among them
  seconds: float  # of a step, by the roofline: to put layouts in order
  state: float  # bytes on one device
  bytes: float  # by reckoning, with gradients and activations

  @property
  def text(self) -> str:
    """As in `data=2 fsdp=256 tensor=12`."""
    return ' '.join(f'{a}={n}' for a, n in self.sizes.items() if n > 1) or '1'


def is_unset(config: Config) -> bool:
  """Whether the config leaves its mesh open."""
  return all(config.mesh[axis] == n for axis, n in UNSET.items())


def apply(config: Config, changes: dict[str, Any]) -> Config:
  """A resolved config with some fields changed.

  Raises:
    UsageError: it makes no sense so.
  """
  changed = config_lib.unlocked(config)
  with changed.ignore_type():
    changed.update_from_flattened_dict(changes)
  return config_lib.resolve(changed)


def candidates(
  config: Config, slices: Slices, sizes: Sizes, *, micro: bool
) -> list[Layout]:
  """All meshes that a config can have, those that fit first, then by time.

  Args:
    config: resolved, with its vocabulary; its mesh does not matter.
    slices: what the mesh is of.
    sizes: remembers what was reckoned before.
    micro: whether `batch.micro_rows` may change too. The most rows at a time
      that fit are taken, since each micro-batch gathers all parameters anew.

  Raises:
    UsageError: there is none; says why for the likeliest.
  """
  found, refused = {}, {}
  for mesh, links in _meshes(slices):
    try:
      layout = _layout(config, slices, sizes, mesh, links, micro)
    except UsageError as e:
      refused[tuple(mesh.values())] = e
      continue
    key = tuple(mesh.values())
    if key not in found or layout.seconds < found[key].seconds:
      found[key] = layout
  if not found:
    # The one with the most of its devices in fsdp: what people try first.
    _, reason = max(refused.items(), key=lambda item: item[0][1])
    raise UsageError(f'no mesh of {slices} serves this config: {reason}')

  def order(layout: Layout) -> tuple:
    fits = layout.bytes <= FREE * slices.hbm
    return (0, layout.seconds) if fits else (1, layout.bytes)

  return sorted(found.values(), key=order)


def given(config: Config, slices: Slices, sizes: Sizes) -> Layout:
  """The mesh that a config has; it changes nothing.

  Raises:
    UsageError: the config cannot be split so.
  """
  mesh = mesh_of(config, slices)
  links = next(
    (links for found, links in _meshes(slices) if found == mesh),
    {axis: _Links(1, False) for axis in sharding.AXES},
  )
  layout = _layout(config, slices, sizes, mesh, links, micro=False)
  return layout._replace(changes={})


def mesh_of(config: Config, slices: Slices) -> dict[str, int]:
  """Sizes of the axes of a config's mesh; -1 is what the others leave."""
  mesh = {axis: config.mesh[axis] for axis in sharding.AXES}
  fixed = math.prod(n for n in mesh.values() if n > 0)
  return {
    axis: n if n > 0 else slices.devices // fixed for axis, n in mesh.items()
  }


class _Links(NamedTuple):
  """Links a device may use at once for an axis, and whether they are rings."""

  count: int
  whole: bool


def _meshes(slices: Slices) -> Iterator[tuple[dict[str, int], dict]]:
  """Sizes of the axes, and the links of each axis that has several devices."""
  axes = sharding.AXES
  dimensions = [
    (n, 2 if closed else 1)
    for n, closed in zip(slices.shape, slices.wrap, strict=False)
  ]
  if slices.chip.devices > 1:
    # The devices of a chip: as if linked to each other.
    dimensions.append((slices.chip.devices, 2))
  for owners in itertools.product(axes, repeat=len(dimensions)):
    mesh = dict.fromkeys(axes, 1)
    links = dict.fromkeys(axes, _Links(0, True))
    for owner, (n, count) in zip(owners, dimensions, strict=True):
      mesh[owner] *= n
      if n > 1:
        links[owner] = _Links(links[owner].count + count, True)
    mesh['data'] *= slices.number
    yield mesh, links
    for part in PARTS if mesh['tensor'] == 1 else ():
      # Tensor takes a part of a dimension of fsdp: neither has whole rings.
      if mesh['fsdp'] % part == 0 and mesh['fsdp'] > part:
        yield (
          mesh | {'fsdp': mesh['fsdp'] // part, 'tensor': part},
          links | {'tensor': _Links(1, False), 'fsdp': _Links(2, False)},
        )


def _layout(
  config: Config,
  slices: Slices,
  sizes: Sizes,
  mesh: dict[str, int],
  links: dict[str, _Links],
  micro: bool,
) -> Layout:
  """One mesh, with what it asks of the config.

  Raises:
    UsageError: the config cannot be split so.
  """
  model = config.model
  changes: dict[str, Any] = {f'mesh.{a}': n for a, n in mesh.items()}
  if mesh['tensor'] > 1:
    changes |= _for_tensor(config, mesh['tensor'])
  split = _check_rows(config, mesh)
  experts = [layer.ffn.router for layer in period(model.attention, model.ffn)]
  counts = [router.num_experts for router in experts if router]
  if mesh['expert'] > 1 and not counts:
    raise UsageError('mesh.expert: the model has no experts')
  changed = apply(config, changes)
  abstract = jax.sharding.AbstractMesh(tuple(mesh.values()), sharding.AXES)
  rules = sharding.parse_rules(changed.mesh.rules)
  of_mesh = sizes.split(changed, rules)
  sharding.check_divisible(of_mesh.abstract, abstract, rules)
  for count in counts:
    if count % mesh['expert']:
      raise UsageError(
        f'model.ffn: {count} experts over mesh.expert={mesh["expert"]}'
      )
  state = of_mesh.state(mesh).total
  need = state + of_mesh.gradients(mesh)
  choices = (
    micro_choices(config, split) if micro else [changed.batch.micro_rows]
  )
  for rows in choices:
    if micro:
      changes = {**changes, 'batch.micro_rows': rows}
      changed = apply(config, changes)
    kept = activations(changed, mesh)
    if need + kept <= FREE * slices.hbm:
      break
  seconds = _seconds(changed, slices, of_mesh, mesh, links)
  return Layout(mesh, changes, seconds, state, need + kept)


def _for_tensor(config: Config, tensor: int) -> dict[str, Any]:
  """What splitting heads, widths and vocabulary asks for.

  Raises:
    UsageError: the heads do not divide.
  """
  model = config.model
  changes: dict[str, Any] = {}
  for name in ('num_heads', 'd_model'):
    if model[name] % tensor:
      raise UsageError(
        f'model.{name}={model[name]} does not divide over mesh.tensor={tensor}'
      )
  if model.num_kv_heads % tensor:
    changes['mesh.rules.kv_heads'] = ''
  if model.vocab_size % tensor:
    if not model.input.startswith('tokens'):
      raise UsageError(
        f'model.vocab_size={model.vocab_size} over mesh.tensor={tensor}'
      )
    unit = tensor * LANES
    changes['model.vocab_size'] = -(-model.vocab_size // unit) * unit
  return changes


def parts(mesh: dict[str, int], config: Config) -> int:
  """How many parts a batch is split into."""
  rules = dict(sharding.parse_rules(config.mesh.rules))
  return math.prod(mesh[axis] for axis in rules['batch'])


def _check_rows(config: Config, mesh: dict[str, int]) -> int:
  """The parts that a batch is split into.

  Raises:
    UsageError: a stage of the batch does not divide by them.
  """
  split = parts(mesh, config)
  for stage in config_lib.ramp(config).stages:
    if stage.rows % split:
      raise UsageError(
        f'{config_lib.stage_name(config, stage.rows)} does not divide over '
        f'{split} devices; give multiples of it, or fewer chips'
      )
  return split


def micro_choices(config: Config, split: int) -> list[int]:
  """Values of `batch.micro_rows` with which every stage divides: most first.

  0 is all at once.
  """
  rows = [stage.rows for stage in config_lib.ramp(config).stages]
  common, last = math.gcd(*rows), rows[-1]
  fitting = [
    n for n in range(split, common + 1, split) if common % n == 0 and n < last
  ]
  return [0, *reversed(fitting)]


def activations(config: Config, mesh: dict[str, int]) -> float:
  """Bytes on one device that the forward pass keeps, roughly."""
  model = config.model
  rows = config.batch.micro_rows or config_lib.ramp(config).stages[-1].rows
  tokens = rows * model.context_length / parts(mesh, config)
  gated = 'glu' in model.ffn
  heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
  wide = (heads + (2 if gated else 1) * model.d_ff) / mesh['tensor']
  number = len(period(model.attention, model.ffn))
  # What goes from layer to layer is split over tensor too.
  stream = model.d_model / mesh['tensor']
  one = 2 * tokens * (2 * model.d_model + 6 * stream + 2 * wide)
  kept = {
    'full': 2 * tokens * stream * model.num_layers / number,
    'dots': 2 * tokens * (2 * stream + wide) * model.num_layers,
    'none': one * model.num_layers,
  }[model.remat]
  return kept + one * number


def _seconds(
  config: Config,
  slices: Slices,
  sizes: Any,
  mesh: dict[str, int],
  links: dict[str, _Links],
) -> float:
  """A step of the last stage: compute, fsdp hidden behind it, the rest not."""
  model = config.model
  rows = config_lib.ramp(config).stages[-1].rows
  micro = rows // (config.batch.micro_rows or rows)
  tokens = rows * model.context_length
  again = {'full': 4 / 3, 'dots': 1.1, 'none': 1.0}[model.remat]
  work = 6 * sizes.matmul * tokens * again
  compute = work / (slices.devices * slices.peak * EFFICIENCY)

  def over(axis: str, sent: float) -> float:
    if mesh[axis] == 1:
      return 0.0
    rate = max(links[axis].count, 1) * slices.chip.link
    return sent * (mesh[axis] - 1) / mesh[axis] / rate

  weights = 2 * sizes.parameters / mesh['tensor'] / mesh['expert']
  # Reduce-scatter, or the all-reduce of twice the bytes where fsdp is the
  # whole slice or shares a dimension.
  alone = mesh['fsdp'] == slices.devices // slices.number
  scatter = 1 if links['fsdp'].whole and not alone else 2
  fsdp = over('fsdp', micro * (2 + scatter) * weights)
  here = 2 * tokens / parts(mesh, config) * model.d_model
  meets = 2 if model.block.startswith('parallel') else 4
  tensor = over('tensor', 3 * meets * here * model.num_layers)
  expert = over('expert', 6 * here * model.num_layers / mesh['expert'])
  gradient = weights / mesh['fsdp']
  inside = mesh['data'] // slices.number
  data = over('data', 2 * gradient) if inside > 1 else 0.0
  if slices.number > 1:
    data += 2 * gradient / (slices.chip.dcn / slices.chip.devices)
  return max(compute, fsdp) + 0.5 * tensor + expert + data
