# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the fields of `config.model` that are call-strings can name."""

from collections.abc import Callable, Mapping
from typing import Any

from gpt_jax import spec
from gpt_jax.nn.backends import BACKENDS
from gpt_jax.nn.bias import BIASES
from gpt_jax.nn.block import BLOCKS, NORMS
from gpt_jax.nn.dropout import DROPOUTS
from gpt_jax.nn.embed import INPUTS, OUTPUTS
from gpt_jax.nn.ffn import FFNS
from gpt_jax.nn.init import INITS
from gpt_jax.nn.masks import PATTERNS
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.scales import SCALES
from gpt_jax.nn.sharing import SHARES

CHOICES: dict[str, Mapping[str, Callable[..., Any]]] = {
  'input': INPUTS,
  'position': POSITIONS,
  'attention': PATTERNS,
  'attention_scale': SCALES,
  'attention_backend': BACKENDS,
  'ffn': FFNS,
  'encoder_ffn': FFNS,
  'norm': NORMS,
  'block': BLOCKS,
  'bias': BIASES,
  'output': OUTPUTS,
  'dropout': DROPOUTS,
  'init_weights': INITS,
  'share': SHARES,
}


def build(model: Any, field: str) -> Any:
  """What the call-string of a field of a `Transformer` names."""
  return spec.build(f'model.{field}', getattr(model, field), CHOICES[field])
