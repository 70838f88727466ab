# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cost model: memory and time of a step, estimated before it is compiled.

A roofline of compute and traffic. It is good enough to rank layouts and to
skip those that cannot fit, and for nothing else.
"""

import math
from typing import Any, NamedTuple

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.nn.pattern import period
from gpt_jax.optim.consumption import Shape
from gpt_jax.optim.micro_batches import divided
from gpt_jax.planning.sizes import Split
from gpt_jax.planning.topologies import Slices

# Fraction of the peak that published runs reach (planning/estimate.py).
EFFICIENCY = 0.73
# Fraction of the overlappable communication that is not overlapped: a guess.
EXPOSED = 0.3


class Links(NamedTuple):
  """Links per device along an axis, and whether they form rings."""

  count: int
  whole: bool


class Facts(NamedTuple):
  """The parts of a config that do not depend on the mesh."""

  config: Config
  model: Any  # its section
  shapes: tuple[Shape, ...]  # of the batches of each stage
  rules: sharding.Rules
  period: int  # layers in one repeat of the pattern
  # Layers that a token meets; of an encoder-decoder the mean of its sides, as
  # often as they have tokens for each of the text.
  layers: float
  experts: tuple[int, ...]  # per layer with experts, over one period

  @property
  def last(self) -> Shape:
    """That of the last stage."""
    return self.shapes[-1]


def facts_of(config: Config) -> Facts:
  """Extracts them from a resolved config."""
  model = config.model
  layers = period(model.attention, model.ffn, model.share)
  return Facts(
    config,
    model,
    tuple(stage.shape for stage in config_lib.ramp(config).stages),
    sharding.parse_rules(config.mesh.rules),
    len(layers),
    _layers(config),
    tuple(x.ffn.router.num_experts for x in layers if x.ffn.router),
  )


def _layers(config: Config) -> float:
  """See `Facts`."""
  model, length = config.model, config_lib.ramp(config).longest
  of_encoder, of_decoder = config_lib.sides(config, length)
  tokens = model.num_layers * of_decoder
  if model.num_encoder_layers:
    tokens += of_encoder * (model.num_encoder_layers + model.num_source_layers)
  return tokens / length


def activations(
  facts: Facts, mesh: dict[str, int], micro_rows: int | None
) -> float:
  """Estimates the bytes per device that the forward pass keeps."""
  model = facts.model
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


def seconds(
  facts: Facts,
  slices: Slices,
  sizes: Split,
  mesh: dict[str, int],
  links: dict[str, Links],
  micro_rows: int | None,
) -> float:
  """Estimates the time of one step of the last stage.

  Args:
    facts: of the config.
    slices: it runs on.
    sizes: of its state.
    mesh: axis sizes.
    links: for each axis.
    micro_rows: `batch.micro_rows`.
  """
  model, rows = facts.model, facts.last.rows
  split = math.prod(mesh[axis] for axis in dict(facts.rules)['batch'])
  parts = divided(rows, num_shards=split, micro_rows=micro_rows)
  micro = parts.num_micro
  # With those that only fill the devices up.
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
