# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What recurrent layers need of a config."""

from gpt_jax.core.config.fields import Config
from gpt_jax.core.entries import Option
from gpt_jax.core.nn.build import ModelChoices, recurrent
from gpt_jax.core.spec import UsageError


def check_layers(config: Config) -> None:
  """Checks the fields that recurrent layers do not support."""
  model = config.model
  choices = ModelChoices.of(model)
  plain = choices.block.places is None
  given = f'model.attention={model.attention!r}'
  stacks = {'attention': choices.attention}
  if model.num_encoder_layers:
    stacks['encoder_attention'] = choices.encoder_attention
  for field, patterns in stacks.items():
    layers = recurrent(patterns)
    if (layers or plain) and (len(layers) < len(patterns) or not plain):
      raise UsageError(
        f'model.{field}={model[field]!r} and model.block={model.block!r}: '
        "lstm in all layers and model.block='plain' need each other; change "
        'one of them'
      )
    if field == 'encoder_attention' and any(
      layer.attends or layer.residual or layer.directions == 'separate' for layer in layers
    ):
      raise UsageError(
        f"model.encoder_attention={model.encoder_attention!r}: an encoder's "
        'lstm works without attends, residual and separate directions; leave '
        'these out'
      )
  if not plain:
    return
  layers = choices.recurrent
  attend = any(layer.attends for layer in layers)
  if attend != bool(model.num_encoder_layers):
    raise UsageError(
      f'{given} and model.num_encoder_layers={model.num_encoder_layers}: an '
      'encoder and a layer lstm(attends=True), which reads its output, need '
      'each other; change one of them'
    )
  if choices.memory_width not in (None, model.d_model) and (
    model.num_encoder_layers > len(choices.encoder)
  ):
    raise UsageError(
      f'model.encoder_attention={model.encoder_attention!r}: its last layer is '
      f'{choices.memory_width} wide, so that it cannot repeat from d_model='
      f'{model.d_model} on; list model.num_encoder_layers='
      f'{model.num_encoder_layers} layers'
    )
  if len(choices.decoder) > len(layers):
    raise UsageError(
      f'model.ffn={model.ffn!r}: has no effect on the recurrent layers of '
      f'{given}; leave the default'
    )
  if layers[-1].width != model.d_model:
    raise UsageError(
      f'{given}: its last layer is {layers[-1].width} wide; make it as wide as '
      f'model.d_model={model.d_model}'
    )
  if 'separate' in {layer.directions for layer in layers} and not (choices.separate):
    raise UsageError(
      f"{given}: lstm(directions='separate') works in all layers or in none; change the others"
    )
  below = [model.d_model, *(layer.width for layer in layers)]
  for width, layer in zip(below, layers, strict=False):
    if layer.residual and layer.width != width:
      raise UsageError(
        f'{given}: lstm(residual=True): a layer of width {layer.width} cannot '
        f'add its input of width {width}; leave it out, or change a width'
      )


PLAIN = Option(check=check_layers)
LAYERS = PLAIN._replace(
  needs={
    'model.position': 'none',
    'model.share': 'none',
    'model.num_source_layers': 0,
    'model.matmul': 'plain',
  }
)
