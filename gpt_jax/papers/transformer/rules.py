# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an encoder and a decoder that share their parameters need of a config."""

from gpt_jax.core import spec
from gpt_jax.core.config.fields import Config
from gpt_jax.core.entries import Option
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.spec import UsageError


def check_stacks(config: Config) -> None:
  """Checks that encoder and decoder are equal where they share parameters."""
  model = config.model
  choices = ModelChoices.of(model)
  given = f'model.share={model.share!r}'
  if model.num_encoder_layers != model.num_layers:
    raise UsageError(
      f'{given}: needs as many layers in both stacks; set '
      f'model.num_encoder_layers={model.num_encoder_layers} and '
      f'model.num_layers={model.num_layers} to the same number'
    )
  texts = (model.encoder_ffn or model.ffn, model.ffn)
  encoder, decoder = (spec.parse('model.ffn', text) for text in texts)
  if len(choices.encoder) != len(choices.decoder) or encoder != decoder:
    raise UsageError(
      f'{given}: needs equal layers in both stacks; give one kind of layer in '
      f'model.attention={model.attention!r}, and the same one in model.ffn='
      f'{model.ffn!r} and model.encoder_ffn={model.encoder_ffn!r}'
    )


STACKS = Option(needs={'model.encoder_num_heads': 0, 'model.encoder_d_ff': 0}, check=check_stacks)
