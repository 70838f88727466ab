# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The overhead of experts: a config with `switch` layers against a dense one.

The dense config replaces each `switch` layer by a single expert, so that the
FLOPs per token are the same. Loss and gradient are timed separately from the
optimizer's update, which touches the parameters of all experts.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import sharding, spec
from gpt_jax.benchmarks import harness
from gpt_jax.config import Config
from gpt_jax.nn.choices import FFNS
from gpt_jax.objectives import causal
from gpt_jax.rows.rows import cut
from gpt_jax.spec import UsageError
from gpt_jax.training import device_check
from gpt_jax.training import parts as parts_lib
from gpt_jax.training.step import mean_gradients

# Factor for a third config, with more experts at the same number of tokens.
MORE = 8


def measure(config: Config, steps: int) -> dict:
  """Times the dense config, the config, and one with more experts, in turn."""
  calls = spec.bind_all('model.ffn', config.model.ffn, FFNS)
  experts = [c.kwargs['num_experts'] for c in calls if c.name == 'switch']
  if not experts:
    raise UsageError(
      f'model.ffn={config.model.ffn!r}: has no experts; give a config such as '
      'configs/switch.py:tiny'
    )

  def more(call: spec.Call) -> str:
    num = MORE * call.kwargs['num_experts']
    return spec.written(
      call._replace(kwargs={**call.kwargs, 'num_experts': num})
    )

  variants = {
    'dense twin': _replaced(config, calls, lambda c: c.kwargs['expert']),
    f'{experts[0]} experts': config,
    f'{MORE * experts[0]} experts': _replaced(config, calls, more),
  }
  parts = {name: _compile_parts(variant) for name, variant in variants.items()}
  times = harness.in_turns(
    {
      f'{name}, {part}': lambda call=call: jax.block_until_ready(call())
      for name, (gradient, update, _) in parts.items()
      for part, call in (('gradient', gradient), ('update', update))
    },
    steps,
  )
  return {
    'rows': config_lib.ramp(config).stages[-1].rows,
    'length': config.model.context_length,
    'steps': steps,
    'variants': {
      name: {
        'seconds': times[f'{name}, gradient'].median,
        'seconds_min': min(times[f'{name}, gradient'].wall),
        'update_seconds': times[f'{name}, update'].median,
        'bytes': num_bytes,
      }
      for name, (_, _, num_bytes) in parts.items()
    },
  }


def _replaced(
  config: Config, calls: list[spec.Call], change: Callable[[spec.Call], str]
) -> Config:
  """The config with its expert layers replaced."""
  config = config_lib.unlocked(config)
  config.model.ffn = ', '.join(
    change(call) if call.name == 'switch' else spec.written(call)
    for call in calls
  )
  return config_lib.resolve(config.lock())


def _compile_parts(config: Config) -> tuple[Callable, Callable, int]:
  """Loss and gradient, the update, and the temporary bytes of the first."""
  parts = parts_lib.build(config, device_check.check_devices(config))
  state = parts_lib.initial_state(parts)
  model, rows = config.model, parts.ramp.stages[-1].rows
  ids = np.random.default_rng(0).integers(
    model.vocab_size, size=(rows, model.context_length + 1), dtype=np.int32
  )
  batch = parts.put(causal.make_batch(cut(ids)), rows)
  key = jax.random.key(0)

  def gradient(params, batch, key):
    return mean_gradients(
      params,
      batch,
      key,
      objective=parts.objective,
      **parts.micro_batches(parts.ramp.stages[-1].shape)._asdict(),
    )

  with sharding.use(parts.mesh, parts.rules):
    gradient = jax.jit(gradient).lower(state.params, batch, key).compile()
    grads = gradient(state.params, batch, key)[-1]
    update = jax.jit(parts.optimizer.update)
    update = update.lower(grads, state.opt_state, state.params).compile()
  memory: Any = gradient.memory_analysis()
  return (
    lambda: gradient(state.params, batch, key),
    lambda: update(grads, state.opt_state, state.params),
    memory.temp_size_in_bytes,
  )


def report(result: dict) -> str:
  """Formats the result."""
  base = next(iter(result['variants'].values()))
  lines = [f'{result["rows"]} rows of {result["length"]} tokens']
  for name, found in result['variants'].items():
    lines.append(
      f'{name:12}: loss and gradient {found["seconds"] * 1e3:,.1f} ms '
      f'({found["seconds"] / base["seconds"]:.2f}x), '
      f'{found["bytes"] / 2**20:,.0f} MiB; '
      f'update {found["update_seconds"] * 1e3:,.1f} ms'
    )
  return '\n'.join(lines)
