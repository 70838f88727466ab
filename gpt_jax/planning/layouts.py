# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes and micro-batches for a config: bytes per device, time of a step.

Nothing is compiled here: sizes follow from shapes and rules, times from a
roofline model of TPU slices.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core import sharding
from gpt_jax.core.config import Config
from gpt_jax.core.costs import flops
from gpt_jax.core.costs.chips import CHIPS
from gpt_jax.core.costs.slice_names import SOLD
from gpt_jax.core.costs.topologies import Slices
from gpt_jax.core.nn import int8
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.layers import FORMS
from gpt_jax.core.nn.pipeline import Schedule
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives.cross_entropy import most_logits
from gpt_jax.core.optim import train_state
from gpt_jax.core.optim.micro_batches import divided
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import device_check
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.fitting import Mesh, MicroRows
from gpt_jax.planning import residuals


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


class StateLayout(NamedTuple):
  """The training state of a config under its rules, for any mesh sizes."""

  abstract: Any  # parameters with their logical axes
  trained: list[Leaf]  # parameters with gradients
  stacked: list[Leaf]  # those of them in scanned layers, of all layers
  tables: list[Leaf]  # those with an entry for each token of the vocabulary
  leaves: list[Leaf]  # parameters, optimizer state and average
  parameters: int  # their number
  matmul: float  # parameters in matrix products, per token

  def bytes(self, mesh: Mesh) -> float:
    """Bytes per device on a mesh."""
    return sum(leaf.itemsize * leaf.size(mesh) for leaf in self.leaves)

  def gradients(self, mesh: Mesh) -> float:
    """Bytes per device of the gradients, in float32."""
    return sum(4 * leaf.size(mesh) for leaf in self.trained)


_STATES: dict[str, StateLayout] = {}
# Fields that change neither the state nor its rules.
_ASIDE = {
  'model.remat',
  'model.attention_backend',
  'batch.micro_rows',
  *(f'mesh.{axis}' for axis in sharding.AXES),
}


def state_of(config: Config) -> StateLayout:
  """The state of a resolved config; cached, since its layouts share it."""
  fields = config_lib.flatten(config)
  key = str({name: x for name, x in fields.items() if name not in _ASIDE})
  if key not in _STATES:
    one: Any = sharding.abstract_mesh()
    parts = parts_lib.build(config, one)
    state = parts_lib.abstract_state(parts)
    trained = _leaves(train_state.trained(state.params, parts.objective.frozen))
    axes = jax.tree.leaves(parts_lib.logical_axes(parts.objective))
    named = list(zip(trained, axes, strict=True))
    abstract = parts.objective.shapes
    _STATES[key] = StateLayout(
      abstract,
      trained,
      [x for x, names in named if names[:1] == ('layers',)],
      [x for x, names in named if {'vocab', 'embed'} <= {*names}],
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
# Memory is that of the traced step, within 15% of the compiler's for most plans
# (tests/planning/test_memory.py); time is a roofline of compute and traffic,
# good enough to rank layouts and for nothing else.


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
  bytes: float  # estimated, with gradients and temporaries
  fits: bool  # by that estimate


class MemoryModel(MicroRows):
  """Estimates the memory of a resolved config's step, with any mesh.

  Its own mesh is ignored. `micro_rows` is as `batch.micro_rows`.
  """

  def __init__(self, config: Config):
    """Reads the facts that all meshes share."""
    super().__init__(config)
    model, ramp = config.model, config_lib.ramp(config)
    self.shapes = [stage.shape for stage in ramp.stages]  # of the batches
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

  def schedule(self, mesh: Mesh, micro_rows: int | None, rows: int) -> Schedule:
    """How a micro-batch goes through the stages of `mesh`.

    Args:
      mesh: axis sizes.
      micro_rows: as `batch.micro_rows`.
    """
    split = self.num_shards(mesh)
    parts = divided(rows, num_shards=split, micro_rows=micro_rows)
    here = parts.rows(rows) // split
    how = ModelChoices.of(self.config.model).pipeline
    each = here // how.at_once(here)
    return Schedule(mesh['stage'], how.repeats, mesh['stage'] * each)

  def fewer_rows(self, mesh: Mesh) -> list[int]:
    """The choices that are less than the config's, largest first."""
    given = self.config.batch.micro_rows
    choices = self.micro_choices(mesh)
    return [n for n in choices if n and (not given or n < given)]

  def rows_that_fit(
    self, mesh: Mesh, least: float, limit: float, *, scattered: bool = False
  ) -> tuple[int, float, bool]:
    """The most rows of a micro-batch that are estimated to fit.

    The most, since each micro-batch gathers all parameters again.

    Args:
      mesh: axis sizes.
      least: bytes per device of the state and its gradients.
      limit: bytes of a device.
      scattered: see `temporaries`.

    Returns:
      `batch.micro_rows`, the estimated bytes, and whether they fit: if nothing
      does, the fewest rows.
    """
    micro_rows, size = 0, math.inf
    for micro_rows in self.micro_choices(mesh):
      size = least + self.temporaries(mesh, micro_rows, scattered=scattered)
      if size <= FREE * limit:
        return micro_rows, size, True
    return micro_rows, size, False

  def temporaries(self, mesh: Mesh, micro_rows: int | None, *, scattered: bool = False) -> float:
    """Bytes per device beside the state and the gradients of one batch.

    Args:
      mesh: axis sizes.
      micro_rows: as `batch.micro_rows`.
      scattered: gradients are reduce-scattered over `fsdp`, so that none is
        whole on a device.
    """
    split = self.num_shards(mesh)

    def at_once(shape: Shape) -> tuple[int, int]:
      parts = divided(shape.rows, num_shards=split, micro_rows=micro_rows)
      return parts.rows(shape.rows) * shape.length, shape.rows

    shape = max(self.shapes, key=at_once)
    tokens = at_once(shape)[0] / split / mesh['context']
    parts = divided(shape.rows, num_shards=split, micro_rows=micro_rows)
    state, saved = state_of(self.config), residuals.of(self.config)
    size = tokens * (saved.gathered + saved.split / mesh['tensor'])
    layers = self._layers(mesh, tokens)
    if mesh['stage'] > 1:
      # All micro-batches of a stage are kept, also in steps that it is idle,
      # and one of them is computed at a time; each device has a share of the
      # inputs and of the results.
      schedule = self.schedule(mesh, micro_rows, shape.rows)
      S, R, M = schedule
      stream = self.config.model.d_model / mesh['tensor']
      size *= schedule.steps / (R * M)
      size += 2 * tokens * stream * (2 + S * (R > 1))
      layers *= S / M
      if ModelChoices.of(self.config.model).pipeline.weights == 'stage':
        # Of each weight of a stage a copy in bfloat16 and the sum of its
        # gradients in float32, and the gradients of one step in bfloat16.
        copies = mesh | {'data': 1, 'fsdp': 1, 'expert': 1}
        size += 8 * sum(leaf.size(copies) for leaf in state.trained if ('stage',) in leaf.axes)
    if parts.num_micro > 1:
      # Sums of gradients beside those of a micro-batch; and the parameters in
      # bfloat16, which the compiler makes once for all of them.
      size += state.gradients(mesh) * (1 + 2 / 4)
    # The layer, or the table, at work is gathered in bfloat16, and where it is
    # all-reduced its gradient is whole too, in float32.
    whole, one = mesh | {'fsdp': 1}, dict.fromkeys(mesh, 1)
    if saved.weights and state.stacked:
      here, all_of = (sum(x.size(m) for x in state.stacked) for m in (whole, one))
      size += saved.weights * here / all_of
    gathered = mesh['fsdp'] > 1
    reduced = gathered and not scattered
    # Its rows are padded where tensor does not divide them.
    table = max((x.size(one) for x in state.tables), default=0) / mesh['tensor']
    words = objectives.needs(self.config.objective.name).candidates
    ids = (words or self.config.model.vocab_size) // mesh['tensor']
    logits = min(most_logits(ids, 'tpu'), tokens * ids)
    output = 2 * table + 4 * table * reduced + (2 + 4) * logits
    # Those of the layers have no gradients yet.
    output -= 4 * sum(x.size(mesh) for x in state.stacked)
    ends = [output]
    if gathered:
      period = sum(x.size(whole) / x.shape[0] for x in state.stacked)
      layers += (2 + 4 * reduced) * period / self.period
    if len(state.tables) == 1:
      # Its gradient from the output waits for that from the input.
      layers += 4 * table * reduced
      ends.append(4 * table * (1 + reduced))
    return size + max(layers, *ends)

  def _layers(self, mesh: Mesh, tokens: float) -> float:
    """Bytes per device of the layers between two that are saved, of tokens."""
    model = self.config.model
    if ModelChoices.of(model).recurrent:
      # The gates or, backwards, their gradient, in float32.
      patterns = [x.recurrent for x in ModelChoices.of(model).attention]
      return 4 * 4 * tokens * max(x.cells for x in patterns if x)
    gated = any(form.gated and name in model.ffn for name, form in FORMS.items())
    d_ff = max(model.d_ff, model.encoder_d_ff)
    values = model.num_kv_heads * (model.value_size or model.head_size)
    heads = (model.num_heads + model.num_kv_heads) * model.head_size + values
    wide = (heads + (2 if gated else 1) * d_ff) / mesh['tensor']
    # The residual stream is split over tensor too.
    stream = model.d_model / mesh['tensor']
    # Of each layer what its backward pass reads; of one their gradients too.
    read = 2 * tokens * (model.d_model + 3 * stream + wide)
    # Experts without a capacity have room for all tokens of the devices that
    # split them: for their inputs, hidden values and outputs.
    each = 2 * model.d_model + 2 * (2 if gated else 1) * d_ff / mesh['tensor']
    parts = mesh['expert']
    more = sum(
      parts * min(x.top_k, x.num_experts // parts) - 1
      for x in self.routers
      if not x.limited(training=True)
    )
    return read * (self.period + 1) + 2 * tokens * each * more


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
    """Whether the config may fit: the temporaries may be half the estimate."""
    temporaries = self.temporaries(mesh, self.config.batch.micro_rows)
    state = state_of(self.config).bytes(mesh)
    return state + temporaries / 2 <= self.slices.hbm

  def seconds(self, mesh: Mesh, links: dict[str, Links], micro_rows: int | None) -> float:
    """The time of one step of the last stage."""
    slices, model, rows = self.slices, self.config.model, self.last.rows
    state, split = state_of(self.config), self.num_shards(mesh)
    parts = divided(rows, num_shards=split, micro_rows=micro_rows)
    # Including rows that only pad the batch to fill all devices.
    tokens = parts.filled(rows) * self.last.length
    again = {'full': 4 / 3, 'dots': 1.1, 'offload': 1.1, 'none': 1.0}
    work = 6 * state.matmul * tokens * again[model.remat]
    both = isinstance(self._int8, int8.Int8) and self._int8.gradients == 'both'
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
    # An all-reduce sends twice the bytes.
    scatter = 1 if self.scattered(mesh, links) else 2
    # Kernels are gathered in int8, sums of their gradients sent in int32, if that
    # holds those of all tokens.
    gathered = 2 * (1 - self._narrow / 2)
    wide = both and parts.rows(rows) * self.last.length <= int8.LONGEST
    summed = scatter * (1 + (self._narrow if wide else 0))
    fsdp = over('fsdp', gathers * (gathered + summed) * weights)
    here = 2 * tokens / split / mesh['context'] * model.d_model
    meets = 2 if model.block.startswith('parallel') else 4
    tensor = over('tensor', 3 * meets * here * self.layers)
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
    if outer := config_lib.outer(self.config):
      data /= outer.steps
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

  def scattered(self, mesh: Mesh, links: dict[str, Links]) -> bool:
    """Whether gradients are reduce-scattered over `fsdp`, not all-reduced.

    They are unless it spans the whole slice, or shares a dimension.
    """
    alone = mesh['fsdp'] == self.slices.devices // self.slices.number
    return links['fsdp'].whole and not alone

  def check(self, mesh: Mesh) -> None:
    """Refuses the meshes that `train` refuses."""
    device_check.check_mesh(self.config, mesh, dict(self.rules))
    sharding.check_divisible(
      state_of(self.config).abstract, sharding.abstract_mesh([*mesh.values()]), self.rules
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
          f'model.{name}={model[name]} does not divide over mesh.tensor={mesh["tensor"]}'
        )

  def layout(self, mesh: Mesh, links: dict[str, Links], *, micro: bool) -> Layout:
    """The layout of a mesh; with `micro` it chooses `batch.micro_rows` too."""
    self.check(mesh)
    state = state_of(self.config).bytes(mesh)
    need = state + state_of(self.config).gradients(mesh)
    changes: dict[str, Any] = {f'mesh.{a}': n for a, n in mesh.items()}
    limit, scattered = self.slices.hbm, self.scattered(mesh, links)
    if micro:
      micro_rows, size, fits = self.rows_that_fit(mesh, need, limit, scattered=scattered)
      changes['batch.micro_rows'] = micro_rows
    else:
      micro_rows = self.config.batch.micro_rows
      size = need + self.temporaries(mesh, micro_rows, scattered=scattered)
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


# Axes of meshes whose devices have whole rows, and all layers.
WHOLE_ROWS = ('data', 'fsdp', 'expert', 'tensor')
SPLIT_ROWS = ('data', 'fsdp', 'expert', 'context', 'tensor')
# Parts of a dimension that tensor may take.
PARTS = (2, 4, 8)


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


def best_mesh(config: Config, devices: Sequence[Any]) -> Mesh | None:
  """The mesh of a resolved config that leaves it open: the first candidate.

  None: the devices form no slice that is sold.
  """
  slices, micro = slices_of(devices), config.batch.micro_rows is None
  return slices and candidates(config, slices, micro=micro)[0].sizes


def slices_of(devices: Sequence[Any]) -> Slices | None:
  """The slices that JAX devices form; None if they form none that is sold."""
  kinds = {device.device_kind for device in devices}
  chip = next((c for c in CHIPS.values() if {c.kind} == kinds), None)
  if chip is None:
    return None
  sold = SOLD[chip.name]
  places = [device.coords[: sold.dimensions] for device in devices]
  shape = tuple(max(along) + 1 for along in zip(*places, strict=True))
  slices = Slices(chip, shape, sharding.num_slices(devices))
  is_sold = shape in sold.shapes and slices.devices == len(devices)
  return slices if is_sold else None


def first_rows(config: Config, mesh: Mesh, least: float, limit: float) -> int:
  """The `batch.micro_rows` to try first: see `MemoryModel.rows_that_fit`."""
  return MemoryModel(config).rows_that_fit(mesh, least, limit)[0]


def candidates(config: Config, slices: Slices, *, micro: bool) -> list[Layout]:
  """All meshes that a resolved config can use: those that fit first, by time.

  `micro`: whether `batch.micro_rows` may change too.
  """
  costs = CostModel(config, slices)
  # Rows are split where there are fewer than devices, or where one alone is
  # estimated to fill a device.
  mesh = {axis: 1 for axis in sharding.AXES} | {'fsdp': slices.devices}
  few = costs.last.rows < slices.devices
  split = few or costs.temporaries(mesh, 1) > FREE * slices.hbm
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
    [config.mesh[axis] for axis in sharding.AXES], slices.devices, config_lib.width(config)
  )
  return dict(zip(sharding.AXES, sizes, strict=True))


def _meshes(slices: Slices, axes: tuple[str, ...]) -> dict[tuple[int, ...], dict[str, Links]]:
  """Axis sizes and links of each mesh; the most links if there are several.

  One of data and stage is over the slices, if there are several.
  """
  dimensions = [
    (n, 2 if closed else 1) for n, closed in zip(slices.shape, slices.wrap, strict=False)
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
