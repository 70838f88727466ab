# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes and micro-batches for a config: bytes per device, time of a step.

Nothing is compiled here: sizes follow from shapes and rules, times from a
roofline model of TPU slices.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.costs import flops
from gpt_jax.costs.topologies import Slices
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.pipeline import Schedule
from gpt_jax.optim import train_state
from gpt_jax.optim.micro_batches import divided
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check
from gpt_jax.training import parts as parts_lib

Mesh = dict[str, int]  # the size of each axis, in the order of `sharding.AXES`


class Leaf(NamedTuple):
  """An array, and the mesh axes that split each dimension."""

  shape: tuple[int, ...]
  itemsize: int
  axes: tuple[tuple[str, ...], ...]

  def size(self, mesh: Mesh) -> float:
    """Elements per device; dimensions that do not divide stay whole."""
    size = 1.0
    for n, axes in zip(self.shape, self.axes, strict=True):
      parts = math.prod(mesh[axis] for axis in axes)
      size *= n if n % parts else n / parts
    return size


class State(NamedTuple):
  """The training state of a config under its rules, for any mesh sizes."""

  abstract: Any  # parameters with their logical axes
  trained: list[Leaf]  # parameters with gradients
  leaves: list[Leaf]  # parameters, optimizer state and average
  parameters: int  # their number
  matmul: float  # parameters in matrix products, per token

  def bytes(self, mesh: Mesh) -> float:
    """Bytes per device on a mesh."""
    return sum(leaf.itemsize * leaf.size(mesh) for leaf in self.leaves)

  def gradients(self, mesh: Mesh) -> float:
    """Bytes per device of the gradients, in float32."""
    return sum(4 * leaf.size(mesh) for leaf in self.trained)


_STATES: dict[str, State] = {}
# Fields that change neither the state nor its rules.
_ASIDE = {
  *('model.remat', 'model.attention_backend', 'batch.micro_rows'),
  *(f'mesh.{axis}' for axis in sharding.AXES),
}


def state_of(config: Config) -> State:
  """The state of a resolved config; cached, since its layouts share it."""
  fields = config_lib.flatten(config)
  key = str({name: x for name, x in fields.items() if name not in _ASIDE})
  if key not in _STATES:
    one: Any = jax.sharding.AbstractMesh(
      (1,) * len(sharding.AXES), sharding.AXES
    )
    parts = parts_lib.build(config, one)
    state = parts_lib.abstract_state(parts)
    trained = train_state.trained(state.params, parts.objective.frozen)
    abstract = parts.objective.shapes
    _STATES[key] = State(
      abstract,
      _leaves(trained),
      _leaves((state.params, state.opt_state, state.ema)),
      sum(x.size for x in jax.tree.leaves(state.params)),
      flops.met_parameters(config, abstract),
    )
  return _STATES[key]


def _leaves(tree: Any) -> list[Leaf]:
  """The arrays of an abstract tree that are in the devices' memory."""
  found = []
  for x in jax.tree.leaves(tree):
    if x.sharding.memory_kind == 'pinned_host':
      continue
    axes = [(a,) if isinstance(a, str) else a or () for a in x.sharding.spec]
    axes += [()] * (x.ndim - len(axes))
    found.append(Leaf(x.shape, x.dtype.itemsize, tuple(axes)))
  return found


# Cost model: memory and time of a step, estimated before it is compiled.
#
# A roofline of compute and traffic. It is good enough to rank layouts and to
# skip those that cannot fit, and for nothing else.


# Fraction of the peak that published runs reach (planning/schedule.py).
EFFICIENCY = 0.73
# Fraction of the overlappable communication that is not overlapped: a guess.
EXPOSED = 0.3
FREE = 0.9  # share of HBM that an estimate may fill


class Links(NamedTuple):
  """Links per device along an axis, and whether they form rings."""

  count: int
  whole: bool


class Layout(NamedTuple):
  """A mesh, and the other changes to the config that it needs."""

  sizes: Mesh
  changes: dict[str, Any]  # config fields, including the mesh
  seconds: float  # per step, by the cost model: for ranking only
  state: float  # bytes on one device
  bytes: float  # estimated, with gradients and activations
  fits: bool  # by that estimate


class MemoryModel:
  """Estimates the memory of a resolved config's step, with any mesh.

  Its own mesh is ignored. `micro_rows` is as `batch.micro_rows`.
  """

  def __init__(self, config: Config):
    """Reads the facts that all meshes share."""
    model, ramp = config.model, config_lib.ramp(config)
    self.config = config
    self.rules = sharding.parse_rules(config.mesh.rules)
    self.shapes = [stage.shape for stage in ramp.stages]  # of the batches
    self.last = self.shapes[-1]
    layers = ModelChoices.of(model).decoder
    self.period = len(layers)
    # Of layers with experts, over one period.
    self.routers = [x.ffn.router for x in layers if x.ffn.router]
    # Layers that a token of text passes through. In an encoder-decoder, the
    # mean over its sides, weighted by how many tokens each side has per token
    # of text.
    of_encoder, of_decoder = config_lib.sides(config, ramp.longest)
    tokens = model.num_layers * of_decoder
    if model.num_encoder_layers:
      before = model.num_encoder_layers + model.num_source_layers
      tokens += of_encoder * before
    self.layers = tokens / ramp.longest

  def num_shards(self, mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return math.prod(mesh[axis] for axis in dict(self.rules)['batch'])

  def schedule(self, mesh: Mesh, micro_rows: int | None, rows: int) -> Schedule:
    """How a micro-batch goes through the stages of `mesh`.

    Args:
      mesh: axis sizes.
      micro_rows: as `batch.micro_rows`.
      rows: of the batch.
    """
    split = self.num_shards(mesh)
    parts = divided(rows, num_shards=split, micro_rows=micro_rows)
    here = parts.rows(rows) // split
    how = ModelChoices.of(self.config.model).pipeline
    each = here // how.at_once(here)
    return Schedule(mesh['stage'], how.repeats, mesh['stage'] * each)

  def micro_choices(self, mesh: Mesh) -> list[int]:
    """Values of `batch.micro_rows`, largest first.

    0 is the whole batch; the others take the last stage in equal parts.
    """
    here = -(-self.last.rows // self.num_shards(mesh))
    return [0, *(n for n in range(here - 1, 0, -1) if here % n == 0)]

  def fewer_rows(self, mesh: Mesh) -> list[int]:
    """The choices that are less than the config's, largest first."""
    given = self.config.batch.micro_rows
    choices = self.micro_choices(mesh)
    return [n for n in choices if n and (not given or n < given)]

  def halved(self, mesh: Mesh, micro_rows: int) -> int | None:
    """The largest choice of at most half the rows; None: there is none."""
    here = -(-self.last.rows // self.num_shards(mesh))
    now = min(micro_rows or here, here)
    choices = self.micro_choices(mesh)
    return next((n for n in choices if n and 2 * n <= now), None)

  def rows_that_fit(
    self, mesh: Mesh, least: float, limit: float
  ) -> tuple[int, float, bool]:
    """The most rows of a micro-batch that are estimated to fit.

    The most, since each micro-batch gathers all parameters again.

    Args:
      mesh: axis sizes.
      least: bytes per device of everything but the activations.
      limit: bytes of a device.

    Returns:
      `batch.micro_rows`, the estimated bytes, and whether they fit: if nothing
      does, the fewest rows.
    """
    micro_rows, size = 0, math.inf
    for micro_rows in self.micro_choices(mesh):
      size = least + self.activations(mesh, micro_rows)
      if size <= FREE * limit:
        return micro_rows, size, True
    return micro_rows, size, False

  def activations(self, mesh: Mesh, micro_rows: int | None) -> float:
    """Bytes per device that the forward pass keeps."""
    model = self.config.model
    split = self.num_shards(mesh)
    largest, rows = max(
      (
        divided(s.rows, num_shards=split, micro_rows=micro_rows).rows(s.rows)
        * s.length,
        s.rows,
      )
      for s in self.shapes
    )
    tokens = largest / split / mesh['context']
    if ModelChoices.of(model).recurrent:
      return tokens * self._of_recurrent_layers()
    gated = 'glu' in model.ffn
    d_ff = max(model.d_ff, model.encoder_d_ff)
    values = model.num_kv_heads * (model.value_size or model.head_size)
    heads = (model.num_heads + model.num_kv_heads) * model.head_size + values
    wide = (heads + (2 if gated else 1) * d_ff) / mesh['tensor']
    # The residual stream is split over tensor too.
    stream = model.d_model / mesh['tensor']
    one = 2 * tokens * (2 * model.d_model + 6 * stream + 2 * wide)
    # Experts without a capacity have room for all tokens of the devices that
    # split them: for their inputs, hidden values and outputs.
    each = 2 * model.d_model + 2 * (2 if gated else 1) * d_ff / mesh['tensor']
    parts = mesh['expert']
    more = sum(
      parts * min(x.top_k, x.num_experts // parts) - 1
      for x in self.routers
      if not x.limited(training=True)
    )
    period = one * self.period + 2 * tokens * each * more
    kept = {
      'full': 2 * tokens * stream * self.layers / self.period,
      'dots': 2 * tokens * (2 * stream + wide) * self.layers,
      # What `full` keeps stays on the device.
      'offload': 2 * tokens * stream * self.layers / self.period,
      # Three times the outputs of the matrix products: float32 copies inside
      # norms and the like. Fitted to compiled programs.
      'none': 3 * period * self.layers / self.period,
    }[model.remat]
    if mesh['stage'] == 1:
      return kept + period
    # All micro-batches of a stage are kept, also in steps that it is idle, and
    # one of them is computed at a time; each device has a share of the inputs
    # and of the results.
    schedule = self.schedule(mesh, micro_rows, rows)
    S, R, M = schedule
    waiting = 2 * tokens * stream * (2 + S * (R > 1))
    kept *= schedule.steps / (R * M)
    if ModelChoices.of(model).pipeline.weights == 'stage':
      # Of each weight of a stage a copy in bfloat16 and the sum of its
      # gradients in float32, and the gradients of one step in bfloat16.
      whole = mesh | {'data': 1, 'fsdp': 1, 'expert': 1}
      kept += 8 * sum(
        leaf.size(whole)
        for leaf in state_of(self.config).trained
        if ('stage',) in leaf.axes
      )
    return kept + period * S / M + waiting

  def _of_recurrent_layers(self) -> float:
    """`activations` of a token in LSTMs, which `tensor` does not split."""
    model = self.config.model
    itemsize = np.dtype(model.dtype).itemsize
    period, largest, width = 0, 0, model.d_model
    for pattern in ModelChoices.of(model).attention:
      layer = pattern.recurrent
      assert layer is not None
      cells = layer.cells * (1 if pattern.causal else 2)
      # In float32 the gates before their activations, and the cells; the inputs
      # and, thrice, the hidden state: as read, as written, after dropout.
      period += 4 * (4 + 1) * cells + itemsize * (width + 3 * layer.width)
      # The gates without the state or, backwards, their gradient.
      largest, width = max(largest, 4 * 4 * cells), layer.width
    periods = model.num_layers / self.period
    if model.remat in ('full', 'offload'):
      return itemsize * model.d_model * periods + period + largest
    # The products that `dots` keeps are as large as the gates.
    return period * periods + largest


class CostModel(MemoryModel):
  """Estimates memory and time on TPU slices."""

  def __init__(self, config: Config, slices: Slices):
    """Reads the facts that all meshes share."""
    super().__init__(config)
    self.slices = slices
    # The products in int8, and the share of them among all.
    self._int8, self._narrow = ModelChoices.of(config.model).matmul, 0.0
    if self._int8:
      abstract = state_of(config).abstract
      self._narrow = flops.share_of_layers(config, abstract)

  def may_fit(self, mesh: Mesh) -> bool:
    """Whether the config may fit: the activations may be half the estimate."""
    activations = self.activations(mesh, self.config.batch.micro_rows)
    state = state_of(self.config).bytes(mesh)
    return state + activations / 2 <= self.slices.hbm

  def seconds(
    self, mesh: Mesh, links: dict[str, Links], micro_rows: int | None
  ) -> float:
    """The time of one step of the last stage."""
    slices, model, rows = self.slices, self.config.model, self.last.rows
    state, split = state_of(self.config), self.num_shards(mesh)
    parts = divided(rows, num_shards=split, micro_rows=micro_rows)
    # Including rows that only pad the batch to fill all devices.
    tokens = parts.filled(rows) * self.last.length
    again = {'full': 4 / 3, 'dots': 1.1, 'offload': 1.1, 'none': 1.0}
    work = 6 * state.matmul * tokens * again[model.remat]
    both = self._int8 and self._int8.gradients == 'both'
    # The gradients of kernels are a third of the work.
    narrow = self._narrow * (1 if both else 2 / 3)
    work *= 1 - narrow * (1 - 1 / slices.chip.int8)
    compute = work / (slices.devices * slices.peak * EFFICIENCY)
    schedule, gathers = self.schedule(mesh, micro_rows, rows), parts.num_micro
    if mesh['stage'] > 1:
      compute /= 1 - schedule.bubble
      if ModelChoices.of(model).pipeline.weights == 'layer':
        gathers *= schedule.steps / schedule.repeats

    def over(axis: str, sent: float) -> float:
      if mesh[axis] == 1:
        return 0.0
      rate = max(links[axis].count, 1) * slices.chip.link
      return sent * (mesh[axis] - 1) / mesh[axis] / rate

    weights = 2 * state.parameters / mesh['tensor'] / mesh['expert']
    weights /= mesh['stage']
    # A reduce-scatter; or, where fsdp spans the whole slice or shares a
    # dimension, an all-reduce, which sends twice the bytes.
    alone = mesh['fsdp'] == slices.devices // slices.number
    scatter = 1 if links['fsdp'].whole and not alone else 2
    # Kernels are gathered in int8, sums of their gradients sent in int32.
    gathered = 2 * (1 - self._narrow / 2)
    summed = scatter * (1 + (self._narrow if both else 0))
    fsdp = over('fsdp', gathers * (gathered + summed) * weights)
    here = 2 * tokens / split / mesh['context'] * model.d_model
    meets = 2 if model.block.startswith('parallel') else 4
    # Half of them are sums, which int8 has in int32.
    of_sums = 1.5 if self._int8 else 1
    tensor = over('tensor', 3 * meets * of_sums * here * self.layers)
    expert = over('expert', 6 * here * self.layers / mesh['expert'])
    # Keys and values of the other parts of a row: forward, again, and back.
    kv = 2 * model.num_kv_heads * model.head_size / mesh['tensor']
    context = over('context', 3 * 2 * tokens / split * kv * self.layers)
    gradient = weights / mesh['fsdp']
    # As `sharding.make_mesh` lays them over the slices.
    slow = slices.chip.dcn / slices.chip.devices
    of_stage = math.gcd(mesh['stage'], slices.number)
    of_data = slices.number // of_stage
    inside = mesh['data'] // of_data
    data = over('data', 2 * gradient) if inside > 1 else 0.0
    if of_data > 1:
      data += 2 * gradient / slow
    stage = 0.0
    if mesh['stage'] > 1:
      # The inputs of a step, and what moves between the first and the last
      # stage; then their gradients. The next step waits for each.
      S, R, M = schedule
      sent = 4 * here / mesh['tensor'] * schedule.steps * S / M
      if R > 1:  # the layers move to their stages in float32, gradients back
        sent += 4 * parts.num_micro * gradient
      links_of_stage = max(links['stage'].count, 1) * slices.chip.link
      stage = sent / (slow if of_stage > 1 else links_of_stage)
    exposed = EXPOSED * (min(compute, fsdp) + tensor + context)
    return max(compute, fsdp) + exposed + expert + data + stage

  def check(self, mesh: Mesh) -> None:
    """Refuses the meshes that `train` refuses."""
    device_check.check_mesh(self.config, mesh, dict(self.rules))
    sharding.check_divisible(
      state_of(self.config).abstract,
      jax.sharding.AbstractMesh(tuple(mesh.values()), sharding.AXES),
      self.rules,
    )

  def check_candidate(self, mesh: Mesh) -> None:
    """Refuses meshes that are not worth trying, too."""
    model = self.config.model
    if mesh['expert'] > 1 and not self.routers:
      raise UsageError('mesh.expert: the model has no experts')
    # Sizes that tensor splits but that are no parameter's dimension: they would
    # stay whole, or be padded.
    for name in ('num_heads', 'encoder_num_heads', 'd_model'):
      if model[name] % mesh['tensor']:
        raise UsageError(
          f'model.{name}={model[name]} does not divide over '
          f'mesh.tensor={mesh["tensor"]}'
        )

  def layout(
    self, mesh: Mesh, links: dict[str, Links], *, micro: bool
  ) -> Layout:
    """The layout of a mesh; with `micro` it chooses `batch.micro_rows` too."""
    self.check(mesh)
    state = state_of(self.config).bytes(mesh)
    need = state + state_of(self.config).gradients(mesh)
    changes: dict[str, Any] = {f'mesh.{a}': n for a, n in mesh.items()}
    limit = self.slices.hbm
    if micro:
      micro_rows, size, fits = self.rows_that_fit(mesh, need, limit)
      changes['batch.micro_rows'] = micro_rows
    else:
      micro_rows = self.config.batch.micro_rows
      size = need + self.activations(mesh, micro_rows)
      fits = size <= FREE * limit
    seconds = self.seconds(mesh, links, micro_rows)
    return Layout(mesh, changes, seconds, state, size, fits)


# Candidate meshes for a config on TPU slices, most promising first.
#
# An axis that covers whole dimensions of the slice keeps their rings, and with
# them the reduce-scatter of gradients; an axis that shares a dimension does
# not. So each dimension is assigned to one axis, and only tensor may take part
# of one. `CostModel` ranks the candidates; what is reported comes from the
# compiled program.


# The config's defaults, which mean that no mesh was chosen.
UNSET = {axis: 1 for axis in sharding.AXES} | {'fsdp': -1}
# Axes of meshes whose devices have whole rows, and all layers.
WHOLE_ROWS = ('data', 'fsdp', 'expert', 'tensor')
SPLIT_ROWS = ('data', 'fsdp', 'expert', 'context', 'tensor')
# Parts of a dimension that tensor may take.
PARTS = (2, 4, 8)


def is_open(config: Config) -> bool:
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


def candidates(config: Config, slices: Slices, *, micro: bool) -> list[Layout]:
  """All meshes that a resolved config can use: those that fit first, by time.

  `micro`: whether `batch.micro_rows` may change too.
  """
  costs = CostModel(config, slices)
  # Rows are split where there are fewer than devices, or where one alone is
  # estimated to fill a device.
  mesh = {axis: 1 for axis in sharding.AXES} | {'fsdp': slices.devices}
  few = costs.last.rows < slices.devices
  split = few or costs.activations(mesh, 1) > FREE * slices.hbm
  axes = (*(SPLIT_ROWS if split else WHOLE_ROWS), 'stage')
  found, refused = [], {}
  for key, links in _meshes(slices, axes).items():
    mesh = dict(zip(sharding.AXES, key, strict=True))
    try:
      costs.check_candidate(mesh)
      found.append(costs.layout(mesh, links, micro=micro))
    except UsageError as e:
      refused[key] = e
  if not found:
    # Report the one with the most devices in fsdp, which people try first.
    fsdp = sharding.AXES.index('fsdp')
    _, reason = max(refused.items(), key=lambda item: item[0][fsdp])
    raise UsageError(f'no mesh of {slices} serves this config: {reason}')
  return sorted(found, key=rank)


def rank(layout: Layout) -> tuple[bool, float]:
  """Orders layouts: by time if they fit, then by the memory that they need."""
  return not layout.fits, layout.seconds if layout.fits else layout.bytes


def given(config: Config, slices: Slices, *, micro: bool = False) -> Layout:
  """The layout of the config's own mesh.

  `micro`: whether `batch.micro_rows` may change.
  """
  mesh = mesh_of(config, slices)
  broken = {axis: Links(1, False) for axis in sharding.AXES}
  axes = SPLIT_ROWS if mesh['context'] > 1 else WHOLE_ROWS
  axes += ('stage',) * (mesh['stage'] > 1)
  links = _meshes(slices, axes).get(tuple(mesh.values()), broken)
  layout = CostModel(config, slices).layout(mesh, links, micro=micro)
  changed = {'batch.micro_rows'} & layout.changes.keys()
  return layout._replace(changes={f: layout.changes[f] for f in changed})


def mesh_of(config: Config, slices: Slices) -> Mesh:
  """Axis sizes of a config's mesh, with -1 filled in."""
  sizes = sharding.fill_sizes(
    [config.mesh[axis] for axis in sharding.AXES],
    slices.devices,
    config_lib.width(config),
  )
  return dict(zip(sharding.AXES, sizes, strict=True))


def _meshes(
  slices: Slices, axes: tuple[str, ...]
) -> dict[tuple[int, ...], dict[str, Links]]:
  """Axis sizes and links of each mesh; the most links if there are several.

  One of data and stage is over the slices, if there are several.
  """
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
    for axis in ('data', 'stage') if 'stage' in axes else ('data',):
      across = mesh | {axis: mesh[axis] * slices.number}
      if across['stage'] > 1:
        # `sharding.make_mesh` has stages over the slices first, and a pipeline
        # is for many rows, of which parts are only where there are few.
        over_slices = across['stage'] == slices.number and axis == 'stage'
        if across['context'] > 1 or not (over_slices or slices.number == 1):
          continue
      found[tuple(across.values())] = links
  for key, links in list(found.items()):
    mesh = dict(zip(sharding.AXES, key, strict=True))
    fsdp = mesh['fsdp']
    for part in PARTS if mesh['tensor'] == 1 else ():
      # Tensor takes part of a dimension of fsdp: neither keeps its rings.
      if fsdp % part == 0 and fsdp > part:
        broken = {'tensor': Links(1, False), 'fsdp': Links(2, False)}
        cut = mesh | {'fsdp': fsdp // part, 'tensor': part}
        found.setdefault(tuple(cut.values()), links | broken)
  return found
