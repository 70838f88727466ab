# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times attention patterns in isolation, forward and backward.

Each uses the backend that `model.attention_backend=auto` picks here.
"""

import statistics
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax import config as config_lib
from gpt_jax import spec
from gpt_jax.benchmarks import harness
from gpt_jax.config import Config
from gpt_jax.nn.attend import Request, Visibility
from gpt_jax.nn.backends import attend_rows, auto
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.masks import Pattern
from gpt_jax.spec import UsageError


def measure(config: Config, steps: int) -> dict:
  """Times the patterns of `model.attention` in turn, relative to the first."""
  model = config.model
  patterns = ModelChoices.of(model).attention
  names = [_name(c) for c in spec.parse('model.attention', model.attention)]
  if len(patterns) < 2:
    raise UsageError(
      f'model.attention={model.attention!r}: give two patterns to compare, '
      "such as 'full, local(window=256)'"
    )
  rows = config_lib.ramp(config).stages[-1].rows
  shape = (rows, model.context_length)
  q = jnp.ones((*shape, model.num_heads, model.head_size))
  k, v = (
    jnp.ones((*shape, model.num_kv_heads, size))
    for size in (model.head_size, model.value_size or model.head_size)
  )
  compiled: dict[str, Any] = {
    name: jax.jit(_gradient(pattern)).lower(q, k, v).compile()
    for name, pattern in zip(names, patterns, strict=True)
  }
  times = harness.in_turns(
    {
      name: lambda call=call: jax.block_until_ready(call(q, k, v))
      for name, call in compiled.items()
    },
    steps,
  )
  return {
    'length': model.context_length,
    'steps': steps,
    'patterns': {
      name: {
        'seconds': times[name].median,
        'cpu_seconds': statistics.median(times[name].cpu),
        'bytes': call.memory_analysis().temp_size_in_bytes,
      }
      for name, call in compiled.items()
    },
  }


def _name(call: spec.Call) -> str:
  inside = ', '.join(f'{k}={v}' for k, v in call.kwargs.items())
  return f'{call.name}({inside})' if inside else call.name


def _gradient(pattern: Pattern):
  def total(q, k, v):
    scale = q.shape[-1] ** -0.5
    request = Request(q, k, v, pattern, Visibility(), scale)
    out = attend_rows(request._replace(layer=jnp.int32(0)), backend=auto())
    return jnp.sum(jnp.square(out))

  return jax.grad(total, argnums=(0, 1, 2))


def report(result: dict) -> str:
  """Formats the result."""
  base = next(iter(result['patterns'].values()))
  lines = [f'{result["length"]} tokens, forward and backward']
  for name, found in result['patterns'].items():
    lines.append(
      f'{name}: {found["seconds"] * 1e3:,.1f} ms '
      f'({found["seconds"] / base["seconds"]:.1%}), '
      f'{found["cpu_seconds"] * 1e3:,.1f} ms of CPU time '
      f'({found["cpu_seconds"] / base["cpu_seconds"]:.1%}), '
      f'{found["bytes"] / 2**20:,.0f} MiB '
      f'({found["bytes"] / base["bytes"]:.1%})'
    )
  return '\n'.join(lines)
