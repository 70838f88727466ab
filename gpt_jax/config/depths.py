# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The layers of a stack are whole periods, and whole groups that share."""

from gpt_jax import spec
from gpt_jax.config.fields import Config
from gpt_jax.nn import layer_sizes
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
  _check_encoder(config)
  _check_source(config, ffn)
  _check_stacks(config, ffn)
  _check_groups(config, 'num_layers', model.attention, model.ffn)
  _check_groups(config, 'num_encoder_layers', 'bidirectional', ffn)


def _check_encoder(config: Config) -> None:
  """Checks that there is an encoder for what is its own."""
  model = config.model
  for field in ('encoder_num_heads', 'encoder_d_ff'):
    if model[field] and not model.num_encoder_layers:
      raise UsageError(
        f'model.{field}={model[field]}: is of an encoder; set '
        'model.num_encoder_layers, or 0'
      )
  layer_sizes.of_encoder(model)


def _check_source(config: Config, ffn: str) -> None:
  """Checks that another encoder can stand before the encoder."""
  model = config.model
  if not model.num_source_layers:
    if model.source_vocab_size:
      raise UsageError(
        f'model.source_vocab_size={model.source_vocab_size}: is of an encoder '
        'before the encoder; set model.num_source_layers, or 0'
      )
    return
  given = f'model.num_source_layers={model.num_source_layers}'
  if not model.num_encoder_layers:
    raise UsageError(
      f'{given}: stand before an encoder; set model.num_encoder_layers, or 0'
    )
  layers = period('bidirectional', ffn)
  if len(layers) > 1 or layers[0].ffn.router:
    raise UsageError(
      f'{given}: with layers that are not alike, or experts, in {ffn!r}; give '
      'one dense layer in model.encoder_ffn'
    )
  call = spec.parse('model.input', model.input)[0]
  if model.share != 'none' or call.name != 'tokens' or 'd_embed' in call.kwargs:
    raise UsageError(
      f'{given}: with model.share={model.share!r} and model.input='
      f'{model.input!r}; layers that share and narrow or adaptive tables have '
      "no encoder before them: take 'none' and 'tokens'"
    )


def _check_stacks(config: Config, ffn: str) -> None:
  """Checks that encoder and decoder are alike where they share."""
  model = config.model
  if not sharing(model.share).stacks:
    return
  given = f'model.share={model.share!r}'
  if model.num_encoder_layers != model.num_layers:
    raise UsageError(
      f'{given}: layer i of both stacks is one, and model.num_encoder_layers='
      f'{model.num_encoder_layers} is not model.num_layers={model.num_layers}; '
      'give as many, or another choice'
    )
  for field in ('encoder_num_heads', 'encoder_d_ff'):
    if model[field]:
      raise UsageError(
        f'{given}: the layers of both stacks are not alike, by model.{field}='
        f'{model[field]}; set it to 0'
      )
  sizes = {len(period(x, ffn)) for x in ('bidirectional', model.attention)}
  calls = [spec.parse('model.ffn', text) for text in (ffn, model.ffn)]
  if len(sizes) > 1 or calls[0] != calls[1]:
    raise UsageError(
      f'{given}: the layers of both stacks are not alike, by model.attention='
      f'{model.attention!r}, model.ffn={model.ffn!r} and model.encoder_ffn='
      f'{model.encoder_ffn!r}; give one kind of attention, and one ffn'
    )


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
