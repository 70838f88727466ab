# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding speed: multi-head against multi-query attention, and its limit.

A decoded token is multiplied with every kernel of the decoder, except those for
keys and values of an encoder's output. `products` times these products alone,
with kernels laid out as in decoding on one CPU (see `nn.layers`): an upper
bound of decoding's speed. With few rows, reading the kernels from memory
dominates.
"""

import collections
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.benchmarks import harness
from gpt_jax.core import config as config_lib
from gpt_jax.core.config import Config
from gpt_jax.core.costs import flops
from gpt_jax.core.nn import layers
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.params import unstack
from gpt_jax.core.nn.transformer import DTYPES, make_model
from gpt_jax.core.objectives import choices as objectives
from gpt_jax.core.objectives.base import Objective
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.parts import init_params
from gpt_jax.decoding import programs
from gpt_jax.decoding.engine import Engine
from gpt_jax.decoding.programs import Decoder
from gpt_jax.decoding.requests import Request
from gpt_jax.decoding.settings import Sampler

# Tokens decoded before the clock starts, to compile and warm up.
WARM_UP = 3
# Bounds on the kernels of one shape that are multiplied in turn: more than fit
# in a core's cache, but few enough to compile in seconds.
_LEAST_BYTES, _MOST = 1 << 29, 128

Shape = tuple[int, int]  # [F, D] of a kernel


def measure(config: Config, steps: int) -> dict:
  """Times `steps` tokens with each number of key/value heads, in turn."""
  engines = {kv_heads: _engine(config, kv_heads) for kv_heads in (config.model.num_heads, 1)}
  sizes = {kv_heads: engine.cache_bytes for kv_heads, engine in engines.items()}
  times = harness.in_turns(
    {str(kv_heads): engine.step for kv_heads, engine in engines.items()}, steps, WARM_UP
  )
  half = steps // 2 + 1
  rows = config_lib.ramp(config).stages[-1].rows
  decode_step: Any = programs.decode_step
  return {
    'rows': rows,
    'prompt_tokens': config.model.context_length // 2,
    'steps': steps,
    'compilations': decode_step._cache_size(),
    'kv_heads': {
      str(kv_heads): {
        'tokens_per_second': rows / times[str(kv_heads)].median,
        'first_tokens_per_second': rows / statistics.median(times[str(kv_heads)].wall[:half]),
        'last_tokens_per_second': rows / statistics.median(times[str(kv_heads)].wall[-half:]),
        'cache_bytes': size,
      }
      for kv_heads, size in sizes.items()
    },
  }


def random_params(objective: Objective, seed: int) -> Any:
  """The parameters that a run of this seed begins with."""
  draw = jax.jit(functools.partial(init_params, objective))
  return draw(jax.random.key(seed))


def _engine(config: Config, num_kv_heads: int) -> Engine:
  """An engine with random weights that has read prompts of half the context."""
  model = make_model(**{**config.model, 'num_kv_heads': num_kv_heads})
  rows = config_lib.ramp(config).stages[-1].rows
  params = random_params(Causal().bind(model), config.seed)
  engine = Engine(Decoder(model, params), slots=rows)
  length = config.model.context_length // 2
  prompts = np.random.default_rng(0).integers(config.model.vocab_size, size=(rows, length))
  for ids in prompts.tolist():
    engine.add(Request(ids, length, Sampler(temperature=0)))
  engine.step()
  return engine


def report(result: dict) -> str:
  """Formats the result."""
  lines = [
    f'{result["rows"]} rows, prompts of {result["prompt_tokens"]} tokens, '
    f'{result["steps"]} tokens each; {result["compilations"]} compilations'
  ]
  for kv_heads, found in result['kv_heads'].items():
    lines.append(
      f'{kv_heads:>3} key/value heads: '
      f'{found["tokens_per_second"]:,.1f} tokens/s (first half '
      f'{found["first_tokens_per_second"]:,.1f}, second '
      f'{found["last_tokens_per_second"]:,.1f}), cache '
      f'{found["cache_bytes"] / 2**20:,.0f} MiB'
    )
  most, one = result['kv_heads'].values()
  ratio = one['tokens_per_second'] / most['tokens_per_second']
  smaller = most['cache_bytes'] / one['cache_bytes']
  lines.append(f'one head: {ratio:.2f}x the speed, cache {smaller:g}x smaller')
  return '\n'.join(lines)


def products(config: Config, steps: int, batches: Sequence[int]) -> dict:
  """Times the products of one decoded token, at each number of rows."""
  shapes, dtype = kernels(config), DTYPES[config.model.dtype]
  return {'steps': steps, 'batches': [_batch(shapes, rows, dtype, steps) for rows in batches]}


def kernels(config: Config) -> dict[Shape, int]:
  """Number of kernels of each shape that a token is multiplied with."""
  model = make_model(**config.model)
  objective = objectives.build(config.objective.name, model)
  params = jax.eval_shape(functools.partial(init_params, objective), jax.random.key(0))
  split = jax.eval_shape(lambda p: params_lib.transpose(unstack(p)), params)
  head = model.vocab_size, model.d_model
  shapes, known = collections.Counter({head: 1}), math.prod(head)
  for path, leaf in jax.tree_util.tree_leaves_with_path(split):
    if path[-1].key != 'transposed':
      continue
    stack, *_, part, layer, _ = (key.key for key in path)
    known += leaf.size
    once = part == 'cross' and layer in ('key', 'value')
    if stack == 'decoder' and not once:
      shapes[leaf.shape] += 1
  if known != flops.matmul_parameters(config, params):
    raise UsageError(
      "--what=products: cannot count this model's products (experts, shared "
      "layers, distances, an encoder's head); take another config, such as "
      'configs/benchmark.py:gpt2'
    )
  return dict(shapes)


def _batch(shapes: dict[Shape, int], rows: int, dtype: Any, steps: int) -> dict[str, Any]:
  """Seconds of the products with `rows` rows, in total and for each shape."""
  every = [shape for shape, count in shapes.items() for _ in range(count)]
  found = []
  for (F, D), count in shapes.items():
    size = F * D * jnp.dtype(dtype).itemsize
    num = min(max(-(-_LEAST_BYTES // size), 2), _MOST)
    all_of_them, cpu = _seconds([(F, D)] * num, rows, dtype, steps)
    wall = all_of_them / num
    found.append(
      {
        'features': F,
        'd': D,
        'count': count,
        'seconds': wall,
        'cores': cpu / all_of_them,
        'bytes_per_second': size / wall,
        'flops_per_second': 2 * rows * F * D / wall,
      }
    )
  seconds, _ = _seconds(every, rows, dtype, steps)
  return {'rows': rows, 'products': found, 'seconds': seconds}


def _seconds(shapes: Sequence[Shape], rows: int, dtype: Any, steps: int) -> tuple[float, float]:
  """Wall and CPU time of products with new kernels of these shapes."""
  kernels = [jnp.ones(shape, dtype) for shape in shapes]
  inputs = {D: jnp.ones((rows, D), dtype) for _, D in shapes}

  @jax.jit
  def run(kernels: list[jax.Array], inputs: dict[int, jax.Array]) -> Any:
    # Each product depends on the one before, as in the layers of a model.
    last_N1: Any = 0
    for kernel_FD in kernels:
      x_ND = inputs[kernel_FD.shape[1]] + last_N1
      last_N1 = 1e-6 * layers.dot(x_ND, kernel_FD)[:, :1]
    return last_N1

  times = harness.in_turns({'': lambda: run(kernels, inputs).block_until_ready()}, steps, 2)['']
  return times.median, statistics.median(times.cpu)


def report_products(result: dict) -> str:
  """Formats the result."""
  lines = []
  for batch in result['batches']:
    rows, seconds = batch['rows'], batch['seconds']
    lines.append(f'{rows} row(s): {1e3 * seconds:.1f} ms, {rows / seconds:,.1f} tokens/s at most')
    lines += [
      f'  {x["count"]:>4} of [{x["d"]}, {x["features"]}]: '
      f'{1e6 * x["seconds"]:,.0f} us each, '
      f'{1e-9 * x["bytes_per_second"]:.1f} GB/s, '
      f'{1e-9 * x["flops_per_second"]:.0f} GFLOP/s, {x["cores"]:.1f} cores'
      for x in batch['products']
    ]
  return '\n'.join(lines)
