# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the routers of a run did: metrics of each layer with experts.

The names are `router/STACK/layer_N/NAME`; N counts all layers of the stack from
0. NAME is one of `nn.moe.Stats`, with `load_E` as the list `load`, or `dead`:
how many experts got no token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpt_jax.config import Config
from gpt_jax.nn.pattern import period

# Of the experts that a warning names; it counts the others.
NAMED = 8


def layers(config: Config, stack: str) -> list[int]:
  """Which layers of `decoder` or `encoder` have experts."""
  model = config.model
  if stack == 'decoder':
    pattern, count = period(model.attention, model.ffn), model.num_layers
  else:
    pattern = period('bidirectional', model.encoder_ffn or model.ffn)
    count = model.num_encoder_layers
  return [
    layer
    for layer in range(count)
    if pattern[layer % len(pattern)].ffn.router is not None
  ]


def metrics(
  config: Config, outputs: Sequence[dict[str, Any]]
) -> dict[str, float | list[float]]:
  """The means over some steps; none where no layer has experts.

  Args:
    config: resolved.
    outputs: of `step.train_step`, one for each step since the last log line.
      Arrays `router/STACK/NAME` have a leading axis of layers with experts.
  """
  found = {}
  for name in outputs[0] if outputs else ():
    if not name.startswith('router/'):
      continue
    _, stack, statistic = name.split('/')
    # In float64, so that the smallest load of one step is not lost.
    steps = np.array([out[name] for out in outputs], np.float64)
    pooled = np.asarray(np.mean(steps, axis=0))
    for layer, value in zip(layers(config, stack), pooled, strict=True):
      place = f'router/{stack}/layer_{layer}'
      if statistic == 'load_E':
        found[f'{place}/load'] = [_short(load) for load in value]
        found[f'{place}/dead'] = int(np.sum(value == 0))
      else:
        found[f'{place}/{statistic}'] = float(value)
  return found


def plain(output: dict[str, Any]) -> dict[str, Any]:
  """What routers did in one step, as JSON: `metrics` takes it as well."""
  return {
    name: np.asarray(value, np.float64).tolist()
    for name, value in output.items()
    if name.startswith('router/')
  }


def dead_experts(values: dict[str, Any]) -> str:
  """A warning that names the experts without a token; '' if there are none.

  Args:
    values: of one log line, with those of `metrics`.
  """
  dead = [
    (*name.split('/')[1:3], expert)
    for name, loads in values.items()
    if is_load(name)
    for expert, load in enumerate(loads)
    if load == 0
  ]
  if not dead:
    return ''
  named = [
    f'{stack} {layer.replace("_", " ")} expert {expert}'
    for stack, layer, expert in dead[:NAMED]
  ]
  if len(dead) > NAMED:
    named.append(f'and {len(dead) - NAMED} more')
  return 'dead experts, which no token chose since the last log line: ' + (
    ', '.join(named)
  )


def is_load(name: str) -> bool:
  """Whether a metric is the load of a layer's experts."""
  return name.startswith('router/') and name.endswith('/load')


def _short(load: float) -> float:
  """Four digits: there may be thousands of them in a line."""
  return float(f'{load:.4g}')
