# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory and time of a step from a config's sizes, before it is compiled.

A roofline of compute and traffic, good enough to put layouts in order and to
leave out what cannot fit, and for nothing else.
"""

import math
from typing import Any, NamedTuple

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.nn.pattern import period
from gpt_jax.planning.sizes import Split
from gpt_jax.planning.topologies import Slices

# Of the peak, as published runs reach it (gpt_jax/planning/estimate.py).
EFFICIENCY = 0.73
# Of what could be hidden behind compute, so much is not: a guess.
EXPOSED = 0.3


class Links(NamedTuple):
  """Links a device may use at once for an axis, and whether they are rings."""

  count: int
  whole: bool


class Facts(NamedTuple):
  """What of a config does not depend on the mesh."""

  config: Config
  model: Any  # its section
  rows: tuple[int, ...]  # of each stage
  rules: sharding.Rules
  period: int  # layers after which the pattern repeats
  experts: tuple[int, ...]  # of each layer of a period that has some

  @property
  def last(self) -> int:
    """Rows of the last stage."""
    return self.rows[-1]


def facts_of(config: Config) -> Facts:
  """Of a resolved config."""
  layers = period(config.model.attention, config.model.ffn)
  return Facts(
    config,
    config.model,
    tuple(stage.rows for stage in config_lib.ramp(config).stages),
    sharding.parse_rules(config.mesh.rules),
    len(layers),
    tuple(x.ffn.router.num_experts for x in layers if x.ffn.router),
  )


def activations(
  facts: Facts, mesh: dict[str, int], micro_rows: int | None
) -> float:
  """Bytes on one device that the forward pass keeps, roughly."""
  model = facts.model
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  tokens = (micro_rows or facts.last) * model.context_length / split
  gated = 'glu' in model.ffn
  heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
  wide = (heads + (2 if gated else 1) * model.d_ff) / mesh['tensor']
  # What goes from layer to layer is split over tensor too.
  stream = model.d_model / mesh['tensor']
  one = 2 * tokens * (2 * model.d_model + 6 * stream + 2 * wide)
  kept = {
    'full': 2 * tokens * stream * model.num_layers / facts.period,
    'dots': 2 * tokens * (2 * stream + wide) * model.num_layers,
    # Three times what the products give: float32 inside norms and the like,
    # by programs that were compiled.
    'none': 3 * one * model.num_layers,
  }[model.remat]
  return kept + one * facts.period


def seconds(
  facts: Facts,
  slices: Slices,
  sizes: Split,
  mesh: dict[str, int],
  links: dict[str, Links],
  micro_rows: int | None,
) -> float:
  """A step of the last stage, roughly.

  Args:
    facts: of the config.
    slices: that it runs on.
    sizes: of its state.
    mesh: sizes of the axes.
    links: of each axis.
    micro_rows: taken at a time; 0 or None: all at once.
  """
  model, rows = facts.model, facts.last
  micro = rows // (micro_rows or rows)
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
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  here = 2 * tokens / split * model.d_model
  meets = 2 if model.block.startswith('parallel') else 4
  tensor = over('tensor', 3 * meets * here * model.num_layers)
  expert = over('expert', 6 * here * model.num_layers / mesh['expert'])
  gradient = weights / mesh['fsdp']
  inside = mesh['data'] // slices.number
  data = over('data', 2 * gradient) if inside > 1 else 0.0
  if slices.number > 1:
    data += 2 * gradient / (slices.chip.dcn / slices.chip.devices)
  exposed = EXPOSED * (min(compute, fsdp) + tensor)
  return max(compute, fsdp) + exposed + expert + data
