# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `model.position` can say and no export writes."""

from gpt_jax.hf.base import choice
from gpt_jax.nn.transformer import Transformer
from gpt_jax.spec import UsageError

# By name and argument ('': whatever they are): what exports write instead.
_OURS = {
  ('learned_by_layer', ''): 'position=learned',
  ('transformer_xl', 'segment'): 'segment=0',
  ('transformer_xl', 'biases'): "biases='own'",
}


def check(model: Transformer) -> None:
  """Refuses what is ours alone.

  Raises:
    UsageError: names it.
  """
  call = choice(model, 'position')
  for (name, argument), theirs in _OURS.items():
    said = f'{argument}={call.kwargs.get(argument)!r}' if argument else name
    if call.name == name and said != theirs:
      raise UsageError(
        f'model.position={model.position!r}: no export writes {said}; take a '
        f'run with {theirs}'
      )
