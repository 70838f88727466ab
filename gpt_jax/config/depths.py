# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layers of a stack are whole periods, and whole groups that share."""

from gpt_jax.config.fields import Config
from gpt_jax.nn.pattern import period, sharing
from gpt_jax.spec import UsageError


def check_depths(config: Config) -> None:
  """Checks that both stacks divide as their fields ask.

  Raises:
    UsageError: one does not.
  """
  model = config.model
  layers = period(model.attention, model.ffn)
  if model.num_layers % len(layers):
    raise UsageError(
      f'model.num_layers={model.num_layers}: does not divide by the '
      f'{len(layers)} layers after which model.attention={model.attention!r} '
      f'and model.ffn={model.ffn!r} repeat'
    )
  ffn = model.encoder_ffn or model.ffn
  encoder = period('bidirectional', ffn)
  if model.num_encoder_layers % len(encoder):
    raise UsageError(
      f'model.num_encoder_layers={model.num_encoder_layers}: does not divide '
      f'by the {len(encoder)} layers after which {ffn!r} repeats; set '
      'model.encoder_ffn'
    )
  _check_groups(config, 'num_layers', model.attention, model.ffn)
  _check_groups(config, 'num_encoder_layers', 'bidirectional', ffn)


def _check_groups(config: Config, field: str, attention: str, ffn: str) -> None:
  """Checks that a stack divides into groups that share."""
  model = config.model
  shared = sharing(model.share)
  inner = len(period(attention, ffn, model.share))
  if shared.parts and model[field] % (shared.groups * inner):
    raise UsageError(
      f'model.{field}={model[field]}: does not divide by {shared.groups} '
      f'groups of model.share={model.share!r} times the {inner} layers that '
      'each repeats; change one of them'
    )
