# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which layers look back over a window: `layer_types` in config.json."""

from typing import Any

from gpt_jax.hf.base import Options, layers, shortest_period
from gpt_jax.nn.transformer import Transformer

FULL, SLIDING = 'full_attention', 'sliding_attention'


def read(options: Options, default: list[str], window: int | None) -> str:
  """`model.attention`.

  Args:
    options: of config.json.
    default: the kind of each layer, where they do not say.
    window: of sliding layers; None: there may be none.
  """
  kinds = options.get('layer_types', default)
  count = len(default)
  if not isinstance(kinds, list) or len(kinds) != count:
    raise options.fail('layer_types', f'must be a list of {count} names')
  patterns = {FULL: 'full'}
  if window is not None:
    patterns[SLIDING] = f'local(window={window})'
  for kind in kinds:
    if kind not in patterns:
      raise options.fail(
        'layer_types',
        f'{kind!r} is not supported'
        + (' without sliding_window' if kind == SLIDING else ''),
      )
  return shortest_period([patterns[kind] for kind in kinds])


def write(model: Transformer) -> dict[str, Any]:
  """The way back; with several windows the first, so that `save` refuses."""
  patterns = layers(model)
  windows = [p.kwargs['window'] for p in patterns if p.name == 'local']
  return {
    'layer_types': [SLIDING if p.name == 'local' else FULL for p in patterns],
    'sliding_window': windows[0] if windows else None,
  }
