# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Candidate meshes for a config on TPU slices, most promising first.

An axis that covers whole dimensions of the slice keeps their rings, and with
them the reduce-scatter of gradients; an axis that shares a dimension does not.
So each dimension is assigned to one axis, and only tensor may take part of one.
`cost_model` ranks the candidates; what is reported comes from the compiled
program.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.planning import cost_model
from gpt_jax.planning.cost_model import Facts, Links, facts_of
from gpt_jax.planning.sizes import Sizes
from gpt_jax.planning.topologies import Slices
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check

# The defaults of the config: a mesh that nobody chose.
UNSET = {'data': 1, 'fsdp': -1, 'expert': 1, 'context': 1, 'tensor': 1}
# Axes of meshes whose devices have whole rows.
WHOLE_ROWS = ('data', 'fsdp', 'expert', 'tensor')
# Parts of a dimension that tensor may take.
PARTS = (2, 4, 8)
FREE = 0.9  # share of HBM that an estimate may fill


class Layout(NamedTuple):
  """A mesh, and the other changes to the config that it needs."""

  sizes: dict[str, int]  # of all mesh axes
  changes: dict[str, Any]  # config fields, including the mesh
  seconds: float  # per step, by the cost model: for ranking only
  state: float  # bytes on one device
  bytes: float  # estimated, with gradients and activations

  @property
  def text(self) -> str:
    """Formats the mesh, as in `data=2 fsdp=256 tensor=12`."""
    return ' '.join(f'{a}={n}' for a, n in self.sizes.items() if n > 1) or '1'


def is_unset(config: Config) -> bool:
  """Whether the config leaves its mesh open."""
  return all(config.mesh[axis] == n for axis, n in UNSET.items())


def apply(config: Config, changes: dict[str, Any]) -> Config:
  """Resolves a config with some fields changed.

  Raises:
    UsageError: the changed config is invalid.
  """
  changed = config_lib.unlocked(config)
  with changed.ignore_type():
    changed.update_from_flattened_dict(changes)
  # A part that has what the model has takes the change with it, as it would
  # from the command line. What an unresolved part does not state, it takes from
  # the model when it is resolved.
  for part in changed.models.values():
    for field, value in changes.items():
      section, _, name = field.partition('.')
      if section != 'model' or name not in part:
        continue
      if part[name] == config.model[name]:
        part[name] = value
  return config_lib.resolve(changed)


def candidates(
  config: Config, slices: Slices, sizes: Sizes, *, micro: bool
) -> list[Layout]:
  """All meshes that a config can use: those that fit first, then by time.

  Args:
    config: resolved, with its vocabulary; its own mesh is ignored.
    slices: to lay the mesh out on.
    sizes: cache of the sizes computed so far.
    micro: whether `batch.micro_rows` may change too. The largest micro-batch
      that fits is taken, since each one gathers all parameters again.

  Raises:
    UsageError: there is none; gives the reason for the likeliest one.
  """
  facts = facts_of(config)
  found, refused = {}, {}
  for key, links in _meshes(slices, _searched(facts, slices)).items():
    mesh = dict(zip(sharding.AXES, key, strict=True))
    try:
      found[key] = _layout(facts, slices, sizes, mesh, links, micro)
    except UsageError as e:
      refused[key] = e
  if not found:
    # Report on the one with the most devices in fsdp: what people try first.
    _, reason = max(refused.items(), key=lambda item: item[0][1])
    raise UsageError(f'no mesh of {slices} serves this config: {reason}')

  def order(layout: Layout) -> tuple:
    fits = layout.bytes <= FREE * slices.hbm
    return (0, layout.seconds) if fits else (1, layout.bytes)

  return sorted(found.values(), key=order)


def given(config: Config, slices: Slices, sizes: Sizes) -> Layout:
  """The layout of the config's own mesh.

  Raises:
    UsageError: the config does not divide over it.
  """
  mesh = mesh_of(config, slices)
  broken = {axis: Links(1, False) for axis in sharding.AXES}
  axes = sharding.AXES if mesh['context'] > 1 else WHOLE_ROWS
  links = _meshes(slices, axes).get(tuple(mesh.values()), broken)
  layout = _layout(facts_of(config), slices, sizes, mesh, links, micro=False)
  return layout._replace(changes={})


def mesh_of(config: Config, slices: Slices) -> dict[str, int]:
  """Axis sizes of a config's mesh, with -1 filled in."""
  sizes = sharding.fill_sizes(
    [config.mesh[axis] for axis in sharding.AXES],
    slices.devices,
    config_lib.width(config),
  )
  return dict(zip(sharding.AXES, sizes, strict=True))


def num_parts(config: Config, mesh: dict[str, int]) -> int:
  """Number of shards of a batch."""
  rules = dict(sharding.parse_rules(config.mesh.rules))
  return math.prod(mesh[axis] for axis in rules['batch'])


def micro_choices(config: Config, mesh: dict[str, int]) -> list[int]:
  """Values of `batch.micro_rows`, largest first.

  0 is the whole batch; the others take the last stage in equal parts.
  """
  return _micro_choices(facts_of(config).last.rows, num_parts(config, mesh))


def activations(config: Config, mesh: dict[str, int]) -> float:
  """Estimates the bytes per device that the forward pass keeps."""
  return cost_model.activations(facts_of(config), mesh, config.batch.micro_rows)


def _searched(facts: Facts, slices: Slices) -> tuple[str, ...]:
  """Axes of the meshes to try.

  Rows are split where there are fewer than devices, or where one alone is
  estimated to fill a device.
  """
  mesh = {axis: 1 for axis in sharding.AXES} | {'fsdp': slices.devices}
  alone = cost_model.activations(facts, mesh, 1)
  if facts.last.rows >= slices.devices and alone <= FREE * slices.hbm:
    return WHOLE_ROWS
  return sharding.AXES


def _meshes(
  slices: Slices, axes: tuple[str, ...]
) -> dict[tuple[int, ...], dict[str, Links]]:
  """Axis sizes and links of each mesh; the most links if there are several."""
  dimensions = [
    (n, 2 if closed else 1)
    for n, closed in zip(slices.shape, slices.wrap, strict=False)
  ]
  if slices.chip.devices > 1:
    # Treat the devices of a chip as linked to each other.
    dimensions.append((slices.chip.devices, 2))
  found: dict[tuple[int, ...], dict[str, Links]] = {}
  for owners in itertools.product(axes, repeat=len(dimensions)):
    mesh = {axis: 1 for axis in sharding.AXES}
    links = {axis: Links(0, True) for axis in sharding.AXES}
    for owner, (n, count) in zip(owners, dimensions, strict=True):
      mesh[owner] *= n
      if n > 1:
        links[owner] = Links(links[owner].count + count, True)
    mesh['data'] *= slices.number
    found[tuple(mesh.values())] = links
  for key, links in list(found.items()):
    data, fsdp, expert, context, tensor = key
    for part in PARTS if tensor == 1 else ():
      # Tensor takes part of a dimension of fsdp: neither keeps its rings.
      if fsdp % part == 0 and fsdp > part:
        broken = {'tensor': Links(1, False), 'fsdp': Links(2, False)}
        cut = (data, fsdp // part, expert, context, part)
        found.setdefault(cut, links | broken)
  return found


def _layout(
  facts: Facts,
  slices: Slices,
  sizes: Sizes,
  mesh: dict[str, int],
  links: dict[str, Links],
  micro: bool,
) -> Layout:
  """One mesh with the changes to the config that it needs.

  Raises:
    UsageError: the config does not divide over it.
  """
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  if mesh['expert'] > 1 and not facts.experts:
    raise UsageError('mesh.expert: the model has no experts')
  for count in facts.experts:
    if count % mesh['expert']:
      raise UsageError(
        f'model.ffn: {count} experts over mesh.expert={mesh["expert"]}'
      )
  changes: dict[str, Any] = {f'mesh.{a}': n for a, n in mesh.items()}
  if mesh['tensor'] > 1:
    _check_tensor(facts, mesh['tensor'])
  device_check.check_context(facts.config, mesh, dict(facts.rules))
  of_mesh = sizes.split(facts.config, facts.rules)
  abstract = jax.sharding.AbstractMesh(tuple(mesh.values()), sharding.AXES)
  sharding.check_divisible(of_mesh.abstract, abstract, facts.rules)
  state = of_mesh.state(mesh).total
  need = state + of_mesh.gradients(mesh)
  choices = [facts.config.batch.micro_rows]
  for at_once in _micro_choices(facts.last.rows, split) if micro else choices:
    kept = cost_model.activations(facts, mesh, at_once)
    if need + kept <= FREE * slices.hbm:
      break
  if micro:
    changes['batch.micro_rows'] = at_once
  seconds = cost_model.seconds(facts, slices, of_mesh, mesh, links, at_once)
  return Layout(mesh, changes, seconds, state, need + kept)


def _check_tensor(facts: Facts, tensor: int) -> None:
  """Checks sizes that tensor splits but that are no parameter's dimension.

  Raises:
    UsageError: the heads or the width do not divide.
  """
  for name in ('num_heads', 'encoder_num_heads', 'd_model'):
    number = facts.model[name]
    if number % tensor:
      raise UsageError(
        f'model.{name}={number} does not divide over mesh.tensor={tensor}'
      )


def _micro_choices(rows: int, split: int) -> list[int]:
  here = -(-rows // split)
  return [0, *(n for n in range(here - 1, 0, -1) if here % n == 0)]
