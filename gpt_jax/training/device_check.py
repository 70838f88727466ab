# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a config fits the devices: its mesh, batch, attention, experts."""

import math
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from gpt_jax import config as config_lib
from gpt_jax import sharding
from gpt_jax.config import Config
from gpt_jax.data.rows import PACKED
from gpt_jax.nn.pattern import period
from gpt_jax.nn.preflight import check_attention
from gpt_jax.spec import UsageError, parse

Devices = Sequence[Any] | None


def check_devices(config: Config, devices: Devices = None) -> None:
  """Checks that the config fits the devices; quick, and before any work.

  That is its mesh, its batch and its attention backend.

  Args:
    config: resolved.
    devices: all of the run's; None: those of this process's backend.

  Raises:
    UsageError: they do not.
  """
  mesh = sharding.make_mesh(config.mesh, devices)
  rules = sharding.parse_rules(config.mesh.rules)
  axes = dict(rules)['batch']
  parts = math.prod(mesh.shape[a] for a in axes)
  named = {
    config_lib.stage_name(config, stage.rows): stage.rows
    for stage in config_lib.ramp(config).stages
  }
  if config.batch.micro_rows is not None:
    micro_rows = config.batch.micro_rows
    named[f'batch.micro_rows={micro_rows}:'] = micro_rows
  for name, rows in named.items():
    if rows % parts:
      raise UsageError(
        f'{name} does not divide over the {parts} devices of mesh axes '
        f'{", ".join(axes)}; give a multiple of {parts}'
      )
  of_length = {
    s.length: s.rows for s in reversed(config_lib.ramp(config).stages)
  }
  with sharding.use(mesh, rules):
    for name in ('', *config.models):
      with config_lib.named(name):
        for length, first in of_length.items():
          part = config_lib.of_part(config, name).model
          rows = config.batch.micro_rows or first
          of_encoder, of_decoder = config_lib.sides(config, length)
          packed = parse('data.rows', config.data.rows)[0].name in PACKED
          check_attention(
            part, part.attention, (rows, of_decoder), packed=packed
          )
          if part.num_encoder_layers:
            check_attention(
              *(part, 'bidirectional', (rows, of_encoder)),
              packed=packed,
              padded=True,
            )
  _check_experts(config, mesh, dict(rules))


def _check_experts(config: Config, mesh: Mesh, rules: dict) -> None:
  """Checks the layers with experts; see `check_devices`."""
  model = config.model
  axes = rules.get('expert', ())
  parts = math.prod(mesh.shape[a] for a in axes)
  longest = config_lib.sides(config, config_lib.ramp(config).longest)
  stacks = [(longest[1], period(model.attention, model.ffn))]
  if model.num_encoder_layers:
    ffn = model.encoder_ffn or model.ffn
    stacks.append((longest[0], period('bidirectional', ffn)))
  for length, layer in ((n, layer) for n, stack in stacks for layer in stack):
    router = layer.ffn.router
    if router is None:
      continue
    if router.num_experts % parts:
      raise UsageError(
        f'model.ffn={model.ffn!r}: {router.num_experts} experts do not divide '
        f'over the {parts} devices of mesh axes {", ".join(axes)}; change '
        'num_experts or the mesh'
      )
    if router.limited(training=False):
      router.group_of(eval_rows(config, mesh, rules), length)


def eval_rows(config: Config, mesh: Mesh, rules: dict) -> int:
  """`eval.rows`, raised to a multiple of the parts of a batch."""
  parts = math.prod(mesh.shape[a] for a in rules['batch'])
  return -(-config.eval.rows // parts) * parts
