# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training speed against Hugging Face transformers on torch.

Both sides start from the same random weights, each in a process of its own with
all cores, and take the same steps: the same random tokens, cross-entropy of
all of them, AdamW without decay, gradients clipped, float32, no dropout. So
their losses are the same, which the result shows. They alternate every few
steps, so that a busy machine slows both down. What the matrix products of our
step take alone is the limit of what ours can win.
"""

import os
import statistics
import tempfile
from typing import Any

import jax
import numpy as np

from gpt_jax import config as config_lib
from gpt_jax import hf
from gpt_jax.benchmarks import sides, step_products, train_worker
from gpt_jax.config import Config
from gpt_jax.costs import flops
from gpt_jax.costs import peak as peak_lib
from gpt_jax.spec import UsageError
from gpt_jax.training import compiled as compiled_lib
from gpt_jax.training import parts as parts_lib

# Steps before it is the other side's turn, and before the clock counts.
TURN, WARM_UP = 4, 3
# Batches, which are taken in turn.
BATCHES = 8
# What both sides read of a batch.
_READ = {'inputs', 'targets', 'weights', 'sources', 'source_mask'}
_MIB = 2**20


def measure(config: Config, steps: int) -> dict:
  """Trains `WARM_UP` + `steps` steps on each side."""
  sides.check_installed()
  config = _comparable(config, WARM_UP + steps)
  parts = parts_lib.build(config)
  shape = parts.ramp.stages[-1].shape
  shapes = compiled_lib.abstract_batch(parts, *shape, training=True)
  if unread := sorted(set(shapes) - _READ):
    raise UsageError(
      f'objective.name={config.objective.name!r}, data.rows='
      f'{config.data.rows!r}: give batches with {", ".join(unread)}, which '
      '--against=torch does not measure; give --config.objective.name=causal '
      'and --config.data.rows=stream, or T5 with its span objective'
    )
  params = parts_lib.init_state(parts).params
  per_token = flops.per_token(config, params, shape.length)
  # The peak is measured before and after, since the load of the machine varies.
  device = parts.mesh.devices.flat[0]
  peaks = [peak_lib.of_device(device)]
  with tempfile.TemporaryDirectory() as folder:
    hf.save(folder, parts.model, jax.device_get(params))
    num_params = sum(x.size for x in jax.tree.leaves(params))
    del params
    path = os.path.join(folder, train_worker.CONFIG)
    with open(path, 'w', encoding='utf-8') as file:
      file.write(config_lib.to_json(config))
    np.savez(
      os.path.join(folder, train_worker.BATCHES),
      allow_pickle=False,
      **_random(shapes, config.model.vocab_size),
    )
    with sides.opened(train_worker.__name__, folder) as both:
      rounds = _alternate(both, WARM_UP + steps)
  products = compiled_lib.compile_train_step(parts).products
  alone = step_products.seconds(step_products.measure(products, steps))
  peaks.append(peak_lib.of_device(device))
  found = {
    name: _result(answers, shape.tokens, per_token, max(peaks)[0])
    for name, answers in rounds.items()
  }
  one, two = found.values()
  losses = np.array([one.pop('losses'), two.pop('losses')])
  return {
    'parameters': num_params,
    'rows': shape.rows,
    'length': shape.length,
    'steps': steps,
    'peak_flops': max(peaks)[0],
    'peak_source': max(peaks)[1],
    'formula': flops.FORMULA,
    **found,
    'speedup': one['tokens_per_second'] / two['tokens_per_second'],
    'products_seconds': alone,
    'speedup_at_most': two['step_seconds'] / alone,
    'cpu_speedup': two['cpu_seconds_a_step'] / one['cpu_seconds_a_step'],
    'loss': losses[:, -1].tolist(),
    'loss_difference': float(np.abs(losses[0] - losses[1]).max()),
  }


def _comparable(config: Config, steps: int) -> Config:
  """The config with the optimizer of `train_worker`, and without dropout."""
  config = config_lib.unlocked(config)
  config.model.dtype = 'float32'
  config.model.dropout = 'none'
  b1, b2 = train_worker.BETAS
  config.optim.name = (
    f'adamw(b1={b1}, b2={b2}, eps={train_worker.EPSILON}, weight_decay=0.0)'
  )
  config.optim.clip_norm = train_worker.CLIP
  config.optim.ema = 'none'
  config.schedule.name = f'constant(peak={train_worker.RATE})'
  config.schedule.num_steps = steps
  return config_lib.resolve(config)


def _random(shapes: dict[str, Any], vocab_size: int) -> dict[str, np.ndarray]:
  """Batches [BATCHES, B, ...]: random ids, of which all count."""
  rng = np.random.default_rng(0)
  out = {}
  for name, like in shapes.items():
    size, kind = (BATCHES, *like.shape), like.dtype
    if name in ('weights', 'source_mask'):
      out[name] = np.ones(size, kind)
    else:
      out[name] = rng.integers(vocab_size, size=size).astype(kind)
  return out


def _alternate(
  both: dict[str, sides.Side], steps: int
) -> dict[str, dict[str, Any]]:
  """The answers of each side, put together."""
  out: dict[str, dict[str, Any]] = {
    name: {'seconds': [], 'cpu_seconds': [], 'losses': []} for name in both
  }
  done = 0
  while done < steps:
    turn = min(TURN, steps - done)
    for name, side in both.items():
      side.tell(turn)
      answer = side.answer()
      for field in out[name]:
        if field != 'peak_bytes':
          out[name][field] += answer[field]
      out[name]['peak_bytes'] = answer['peak_bytes']
    done += turn
  return out


def _result(
  answers: dict[str, Any], tokens: int, per_token: float, peak: float
) -> dict:
  seconds = statistics.median(answers['seconds'][WARM_UP:])
  return {
    'step_seconds': seconds,
    'cpu_seconds_a_step': statistics.median(answers['cpu_seconds'][WARM_UP:]),
    'tokens_per_second': tokens / seconds,
    'mfu': flops.mfu(tokens / seconds, per_token, peak),
    'peak_bytes': answers['peak_bytes'],
    'losses': answers['losses'],
  }


def report(result: dict) -> str:
  """Formats the result as a table."""
  one, two = result[sides.OURS], result[sides.TORCH]

  def row(name, field, form, scale=1.0):
    cells = [f'{side[field] * scale:{form}}' for side in (one, two)]
    return f'| {name} | ' + ' | '.join(cells) + ' |'

  return '\n'.join(
    [
      f'{result["parameters"]:,} parameters, {result["rows"]} rows of '
      f'{result["length"]} tokens, float32; median of {result["steps"]} steps',
      '| | ours | torch |',
      '|---|---|---|',
      row('tokens/s', 'tokens_per_second', ',.0f'),
      row('step, ms', 'step_seconds', ',.1f', 1e3),
      row('CPU ms a step', 'cpu_seconds_a_step', ',.1f', 1e3),
      row('MFU', 'mfu', '.1%'),
      row('peak memory, MiB', 'peak_bytes', ',.0f', 1 / _MIB),
      f'speedup {result["speedup"]:.2f}; by CPU time '
      f'{result["cpu_speedup"]:.2f}',
      f'limit   {result["products_seconds"] * 1e3:,.1f} ms our matrix products '
      f'alone: a speedup of {result["speedup_at_most"]:.2f} at most',
      f'loss    {result["loss"][0]:.5f} / {result["loss"][1]:.5f} after the '
      f'last step; they differ by {result["loss_difference"]:.1e} at most',
      f'MFU     of {result["peak_flops"]:.3g} FLOP/s ({result["peak_source"]})',
      f'        {result["formula"]}',
    ]
  )
