# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What decoding can reach at most: its matrix products alone.

A decoded token is multiplied with every kernel of the decoder, but for those
that make keys and values of an encoder's output. These products are timed
without anything between them, with kernels as decoding on one CPU has them (see
`nn.transposed`). Each is read from memory, which is what takes the time for few
rows.
"""

import collections
import functools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpt_jax.config import Config
from gpt_jax.costs import flops
from gpt_jax.nn import dense
from gpt_jax.nn.stack import separate
from gpt_jax.nn.transformer import DTYPES, Transformer
from gpt_jax.objectives import choices as objectives
from gpt_jax.spec import UsageError
from gpt_jax.training.state import init_params

# Before the clock starts, to warm up.
_WARM_UP = 2
# Kernels of one shape that are multiplied in turn: more than a core's cache
# holds, and no more than compile in seconds.
_LEAST_BYTES, _MOST = 1 << 29, 128

Shape = tuple[int, int]  # [F, D] of a kernel


def measure(config: Config, steps: int, batches: Sequence[int]) -> dict:
  """Times the products of one decoded token of each row.

  Args:
    config: of a decoder, or an encoder-decoder.
    steps: how often each is timed.
    batches: numbers of rows.
  """
  shapes, dtype = kernels(config), DTYPES[config.model.dtype]
  return {
    'steps': steps,
    'batches': [_batch(shapes, rows, dtype, steps) for rows in batches],
  }


def kernels(config: Config) -> dict[Shape, int]:
  """The kernels that each token is multiplied with: how many of each shape."""
  model = Transformer(**config.model)
  objective = objectives.build(config.objective.name, model)
  params = jax.eval_shape(
    functools.partial(init_params, objective), jax.random.key(0)
  )
  split = jax.eval_shape(lambda p: dense.transpose(separate(p)), params)
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
      '--what=products: has no such count of this model (experts, layers that '
      'are shared, distances, a head of an encoder); take another config, '
      'such as configs/benchmark.py:gpt2'
    )
  return dict(shapes)


def _batch(
  shapes: dict[Shape, int], rows: int, dtype: Any, steps: int
) -> dict[str, Any]:
  """What the products of so many rows take: all, and each of its kind."""
  every = [shape for shape, count in shapes.items() for _ in range(count)]
  products = []
  for (F, D), count in shapes.items():
    size = F * D * jnp.dtype(dtype).itemsize
    num = min(max(-(-_LEAST_BYTES // size), 2), _MOST)
    all_of_them, cpu = _seconds([(F, D)] * num, rows, dtype, steps)
    wall = all_of_them / num
    products.append(
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
  return {'rows': rows, 'products': products, 'seconds': seconds}


def _seconds(
  shapes: Sequence[Shape], rows: int, dtype: Any, steps: int
) -> tuple[float, float]:
  """Wall and CPU time of products with new kernels of these shapes."""
  kernels = [jnp.ones(shape, dtype) for shape in shapes]
  inputs = {D: jnp.ones((rows, D), dtype) for _, D in shapes}

  @jax.jit
  def run(kernels: list[jax.Array], inputs: dict[int, jax.Array]) -> Any:
    # Each waits for the one before, as the layers of a model do.
    last_N1: Any = 0
    for kernel_FD in kernels:
      x_ND = inputs[kernel_FD.shape[1]] + last_N1
      last_N1 = 1e-6 * dense.dot(x_ND, kernel_FD)[:, :1]
    return last_N1

  walls, cpus = [], []
  for _ in range(_WARM_UP + steps):
    wall, cpu = time.perf_counter(), time.process_time()
    run(kernels, inputs).block_until_ready()
    walls.append(time.perf_counter() - wall)
    cpus.append(time.process_time() - cpu)
  return statistics.median(walls[_WARM_UP:]), statistics.median(cpus[_WARM_UP:])


def report(result: dict) -> str:
  """Formats the result."""
  lines = []
  for batch in result['batches']:
    rows, seconds = batch['rows'], batch['seconds']
    lines.append(
      f'{rows} row(s): {1e3 * seconds:.1f} ms, {rows / seconds:,.1f} tokens/s '
      'at most'
    )
    lines += [
      f'  {x["count"]:>4} of [{x["d"]}, {x["features"]}]: '
      f'{1e6 * x["seconds"]:,.0f} us each, '
      f'{1e-9 * x["bytes_per_second"]:.1f} GB/s, '
      f'{1e-9 * x["flops_per_second"]:.0f} GFLOP/s, {x["cores"]:.1f} cores'
      for x in batch['products']
    ]
  return '\n'.join(lines)
