# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes for a config on TPU slices: bytes per device, time of a step, ranking.

Nothing is compiled here: sizes follow from shapes and rules, times from a
roofline model.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.config import Config
from gpt_jax.costs import flops
from gpt_jax.nn.build import ModelChoices
from gpt_jax.optim import train_state
from gpt_jax.optim.micro_batches import divided
from gpt_jax.optim.optimizer import OPTIMIZERS
from gpt_jax.optim.rounding import AVERAGES, PRECISIONS
from gpt_jax.optim.schedules import Shape
from gpt_jax.planning.topologies import Slices
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check
from gpt_jax.training import parts as state_lib


class State(NamedTuple):
  """Bytes per device."""

  parameters: float
  optimizer: float
  average: float

  @property
  def total(self) -> float:
    """Sum of the parts."""
    return self.parameters + self.optimizer + self.average


class Leaf(NamedTuple):
  """An array, and the mesh axes that split each dimension."""

  shape: tuple[int, ...]
  itemsize: int
  axes: tuple[tuple[str, ...], ...]

  def size(self, mesh: dict[str, int]) -> float:
    """Elements per device; dimensions that do not divide stay whole."""
    size = 1.0
    for n, axes in zip(self.shape, self.axes, strict=True):
      parts = math.prod(mesh[axis] for axis in axes)
      size *= n if n % parts else n / parts
    return size


class Split(NamedTuple):
  """The state of a config under its rules, for any mesh sizes."""

  abstract: Any  # parameters with their logical axes
  params: list[Leaf]
  trained: list[Leaf]  # of these, what has gradients
  opt_state: list[Leaf]
  ema: list[Leaf]
  parameters: int  # their number
  matmul: float  # parameters in matrix products, per token

  def state(self, mesh: dict[str, int]) -> State:
    """Bytes per device on a mesh."""
    return State(
      *(
        sum(leaf.itemsize * leaf.size(mesh) for leaf in part)
        for part in (self.params, self.opt_state, self.ema)
      )
    )

  def gradients(self, mesh: dict[str, int]) -> float:
    """Bytes per device of the gradients, in float32."""
    return sum(4 * leaf.size(mesh) for leaf in self.trained)


class Sizes:
  """Caches a `Split` for each model, optimizer and set of rules."""

  def __init__(self):
    """Starts empty."""
    self._known: dict[Any, Split] = {}

  def split(self, config: Config, rules: sharding.Rules) -> Split:
    """Returns the split of a resolved config."""
    # Leave out fields of the model that its parameters do not depend on.
    model = {**config.model, 'remat': '', 'attention_backend': ''}
    parts = config.models.to_json()
    key = (str(model), parts, config.optim.to_json(), rules)
    if key not in self._known:
      self._known[key] = _split(config, rules)
    return self._known[key]


def _split(config: Config, rules: sharding.Rules) -> Split:
  one = jax.sharding.AbstractMesh((1,) * len(sharding.AXES), sharding.AXES)
  objective = config_lib.objective(config)
  optimizer = spec.build('optim.name', config.optim.name, OPTIMIZERS)(
    config_lib.schedule(config), state_lib.logical_axes(objective)
  )
  average = spec.build('optim.ema', config.optim.ema, AVERAGES)
  precision = spec.build('optim.precision', config.optim.precision, PRECISIONS)
  init = state_lib.make_init(objective, optimizer, precision, average)
  shapes = jax.eval_shape(init, jax.random.key(0))
  placed: Any = state_lib.state_shardings(
    objective,
    optimizer,
    one,
    rules,
    average,
    on_host=config.optim.state == 'host',
  )

  abstract = jax.eval_shape(objective.init, jax.random.key(0))
  return Split(
    abstract,
    _leaves(shapes.params, placed.params),
    _leaves(
      train_state.trained(shapes.params, objective.frozen),
      train_state.trained(placed.params, objective.frozen),
    ),
    _leaves(shapes.opt_state, placed.opt_state),
    _leaves(shapes.ema, placed.ema),
    sum(x.size for x in jax.tree.leaves(shapes.params)),
    flops.met_parameters(config, abstract),
  )


def _leaves(shapes: Any, placed: Any) -> list[Leaf]:
  pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(placed), strict=True)
  return [
    Leaf(x.shape, x.dtype.itemsize, _axes(s.spec, len(x.shape)))
    for x, s in pairs
    if s.memory_kind != 'pinned_host'
  ]


def _axes(spec: Any, ndim: int) -> tuple[tuple[str, ...], ...]:
  """The mesh axes that split each dimension."""
  parts = [(part,) if isinstance(part, str) else part or () for part in spec]
  return (*map(tuple, parts), *(((),) * (ndim - len(parts))))


# Cost model: memory and time of a step, estimated before it is compiled.
#
# A roofline of compute and traffic. It is good enough to rank layouts and to
# skip those that cannot fit, and for nothing else.


# Fraction of the peak that published runs reach (planning/schedule.py).
EFFICIENCY = 0.73
# Fraction of the overlappable communication that is not overlapped: a guess.
EXPOSED = 0.3


class Links(NamedTuple):
  """Links per device along an axis, and whether they form rings."""

  count: int
  whole: bool


class Facts(NamedTuple):
  """What the estimates need of a config, whatever its mesh."""

  config: Config
  shapes: tuple[Shape, ...]  # of the batches of each stage
  rules: sharding.Rules
  period: int  # layers in one repeat of the pattern
  # Layers that a token of text passes through. In an encoder-decoder, the mean
  # over its sides, weighted by how many tokens each side has per token of text.
  layers: float
  experts: tuple[int, ...]  # per layer with experts, over one period

  @property
  def last(self) -> Shape:
    """Shape of the last stage's batch."""
    return self.shapes[-1]


def facts_of(config: Config) -> Facts:
  """Extracts them from a resolved config."""
  model, ramp = config.model, config_lib.ramp(config)
  layers = ModelChoices.of(model).decoder
  of_encoder, of_decoder = config_lib.sides(config, ramp.longest)
  tokens = model.num_layers * of_decoder
  if model.num_encoder_layers:
    tokens += of_encoder * (model.num_encoder_layers + model.num_source_layers)
  return Facts(
    config,
    tuple(stage.shape for stage in ramp.stages),
    sharding.parse_rules(config.mesh.rules),
    len(layers),
    tokens / ramp.longest,
    tuple(x.ffn.router.num_experts for x in layers if x.ffn.router),
  )


def activation_bytes(
  facts: Facts, mesh: dict[str, int], micro_rows: int | None
) -> float:
  """Estimates the bytes per device that the forward pass keeps."""
  model = facts.config.model
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  largest = max(
    divided(s.rows, num_shards=split, micro_rows=micro_rows).rows(s.rows)
    * s.length
    for s in facts.shapes
  )
  tokens = largest / split / mesh['context']
  gated = 'glu' in model.ffn
  d_ff = max(model.d_ff, model.encoder_d_ff)
  values = model.num_kv_heads * (model.value_size or model.head_size)
  heads = (model.num_heads + model.num_kv_heads) * model.head_size + values
  wide = (heads + (2 if gated else 1) * d_ff) / mesh['tensor']
  # The residual stream is split over tensor too.
  stream = model.d_model / mesh['tensor']
  one = 2 * tokens * (2 * model.d_model + 6 * stream + 2 * wide)
  kept = {
    'full': 2 * tokens * stream * facts.layers / facts.period,
    'dots': 2 * tokens * (2 * stream + wide) * facts.layers,
    # What `full` keeps stays on the device.
    'offload': 2 * tokens * stream * facts.layers / facts.period,
    # Three times the outputs of the matrix products: float32 copies inside
    # norms and the like. Fitted to compiled programs.
    'none': 3 * one * facts.layers,
  }[model.remat]
  return kept + one * facts.period


def step_seconds(
  facts: Facts,
  slices: Slices,
  sizes: Split,
  mesh: dict[str, int],
  links: dict[str, Links],
  micro_rows: int | None,
) -> float:
  """Estimates the time of one step of the last stage."""
  model, rows = facts.config.model, facts.last.rows
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  parts = divided(rows, num_shards=split, micro_rows=micro_rows)
  micro = parts.num_micro
  # Including rows that only pad the batch to fill all devices.
  tokens = parts.filled(rows) * facts.last.length
  again = {'full': 4 / 3, 'dots': 1.1, 'offload': 1.1, 'none': 1.0}[model.remat]
  work = 6 * sizes.matmul * tokens * again
  compute = work / (slices.devices * slices.peak * EFFICIENCY)

  def over(axis: str, sent: float) -> float:
    if mesh[axis] == 1:
      return 0.0
    rate = max(links[axis].count, 1) * slices.chip.link
    return sent * (mesh[axis] - 1) / mesh[axis] / rate

  weights = 2 * sizes.parameters / mesh['tensor'] / mesh['expert']
  # A reduce-scatter; or, where fsdp spans the whole slice or shares a
  # dimension, an all-reduce, which sends twice the bytes.
  alone = mesh['fsdp'] == slices.devices // slices.number
  scatter = 1 if links['fsdp'].whole and not alone else 2
  fsdp = over('fsdp', micro * (2 + scatter) * weights)
  here = 2 * tokens / split / mesh['context'] * model.d_model
  meets = 2 if model.block.startswith('parallel') else 4
  tensor = over('tensor', 3 * meets * here * facts.layers)
  expert = over('expert', 6 * here * facts.layers / mesh['expert'])
  # Keys and values of the other parts of a row: forward, again, and back.
  kv = 2 * model.num_kv_heads * model.head_size / mesh['tensor']
  context = over('context', 3 * 2 * tokens / split * kv * facts.layers)
  gradient = weights / mesh['fsdp']
  inside = mesh['data'] // slices.number
  data = over('data', 2 * gradient) if inside > 1 else 0.0
  if slices.number > 1:
    data += 2 * gradient / (slices.chip.dcn / slices.chip.devices)
  exposed = EXPOSED * (min(compute, fsdp) + tensor + context)
  return max(compute, fsdp) + exposed + expert + data


# Candidate meshes for a config on TPU slices, most promising first.
#
# An axis that covers whole dimensions of the slice keeps their rings, and with
# them the reduce-scatter of gradients; an axis that shares a dimension does
# not. So each dimension is assigned to one axis, and only tensor may take part
# of one. `cost_model` ranks the candidates; what is reported comes from the
# compiled program.


# The config's defaults, which mean that no mesh was chosen.
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
  fits: bool  # by that estimate

  @property
  def text(self) -> str:
    """Formats the mesh, as in `data=2 fsdp=256 tensor=12`."""
    return ' '.join(f'{a}={n}' for a, n in self.sizes.items() if n > 1) or '1'


def is_unset(config: Config) -> bool:
  """Whether the config leaves its mesh open."""
  return all(config.mesh[axis] == n for axis, n in UNSET.items())


def apply(config: Config, changes: dict[str, Any]) -> Config:
  """Resolves a config with some fields changed."""
  changed = config_lib.unlocked(config)
  with changed.ignore_type():
    changed.update_from_flattened_dict(changes)
  # A sub-model whose field equals the model's takes the change too, as it would
  # from the command line. Fields that an unresolved sub-model leaves out are
  # filled in from the model when it is resolved.
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
    sizes: cache.
    micro: whether `batch.micro_rows` may change too. The largest micro-batch
      that fits is taken, since each one gathers all parameters again.
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
    # Report the one with the most devices in fsdp, which people try first.
    _, reason = max(refused.items(), key=lambda item: item[0][1])
    raise UsageError(f'no mesh of {slices} serves this config: {reason}')

  return sorted(
    found.values(),
    key=lambda x: (0, x.seconds) if x.fits else (1, x.bytes),
  )


def given(config: Config, slices: Slices, sizes: Sizes) -> Layout:
  """The layout of the config's own mesh."""
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


def micro_choices(config: Config, mesh: dict[str, int]) -> list[int]:
  """Values of `batch.micro_rows`, largest first.

  0 is the whole batch; the others take the last stage in equal parts.
  """
  facts = facts_of(config)
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  return _micro_choices(facts.last.rows, split)


def activations(config: Config, mesh: dict[str, int]) -> float:
  """Estimates the bytes per device that the forward pass keeps."""
  return activation_bytes(facts_of(config), mesh, config.batch.micro_rows)


def _searched(facts: Facts, slices: Slices) -> tuple[str, ...]:
  """Axes of the meshes to try.

  Rows are split where there are fewer than devices, or where one alone is
  estimated to fill a device.
  """
  mesh = {axis: 1 for axis in sharding.AXES} | {'fsdp': slices.devices}
  alone = activation_bytes(facts, mesh, 1)
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
  """One mesh with the changes to the config that it needs."""
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  if mesh['expert'] > 1 and not facts.experts:
    raise UsageError('mesh.expert: the model has no experts')
  for count in facts.experts:
    if count % mesh['expert']:
      raise UsageError(
        f'model.ffn: {count} experts over mesh.expert={mesh["expert"]}'
      )
  changes: dict[str, Any] = {f'mesh.{a}': n for a, n in mesh.items()}
  # Sizes that tensor splits but that are no parameter's dimension.
  for name in ('num_heads', 'encoder_num_heads', 'd_model'):
    if facts.config.model[name] % mesh['tensor']:
      raise UsageError(
        f'model.{name}={facts.config.model[name]} does not divide over '
        f'mesh.tensor={mesh["tensor"]}'
      )
  device_check.check_context(facts.config, mesh, dict(facts.rules))
  of_mesh = sizes.split(facts.config, facts.rules)
  abstract = jax.sharding.AbstractMesh(tuple(mesh.values()), sharding.AXES)
  sharding.check_divisible(of_mesh.abstract, abstract, facts.rules)
  state = of_mesh.state(mesh).total
  need = state + of_mesh.gradients(mesh)
  choices = [facts.config.batch.micro_rows]
  for at_once in _micro_choices(facts.last.rows, split) if micro else choices:
    size = need + activation_bytes(facts, mesh, at_once)
    if fits := size <= FREE * slices.hbm:
      break
  if micro:
    changes['batch.micro_rows'] = at_once
  seconds = step_seconds(facts, slices, of_mesh, mesh, links, at_once)
  return Layout(mesh, changes, seconds, state, size, fits)


def _micro_choices(rows: int, split: int) -> list[int]:
  here = -(-rows // split)
  return [0, *(n for n in range(here - 1, 0, -1) if here % n == 0)]
