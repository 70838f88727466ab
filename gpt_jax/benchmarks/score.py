# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Speed of evaluation, also compared with lm-eval and transformers.

All sides score the same passages, as long as LAMBADA's, with the same random
weights. lm-eval runs in its own process, once for each batch size. The sides
take turns of a few seconds, so that a busy machine slows all of them down; a
side's clock stops while it is another's turn. Compilation counts.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gpt_jax import hf
from gpt_jax.benchmarks import harness, worker
from gpt_jax.benchmarks.decode import random_params
from gpt_jax.benchmarks.harness import WorkerProcess
from gpt_jax.core import malloc
from gpt_jax.core.config import Config
from gpt_jax.core.tokenizers.simple import Bytes
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.evaluation.forward import ScoredRow
from gpt_jax.evaluation.score import Journal, Scorer

_LIBRARIES = ('torch', 'transformers', 'accelerate', 'lm_eval')


def passages(count: int, vocab_size: int, context_length: int) -> list[ScoredRow]:
  """Random ids; lengths as in LAMBADA, where 75 tokens are the mean.

  Only the last word is scored, 1 to 4 tokens.
  """
  rng = np.random.default_rng(0)
  out = []
  for _ in range(count):
    length = round(rng.normal(75, 18))
    length = min(max(length, 25), context_length + 1)
    ids = rng.integers(vocab_size, size=length, dtype=np.int32)
    out.append(ScoredRow(ids, min(int(rng.geometric(0.7)), 4)))
  return out


def measure(config: Config, steps: int, batches: Sequence[int] = ()) -> dict:
  """Scores `steps` passages; lm-eval does too, in batches of these sizes."""
  if batches:
    harness.check_installed(*_LIBRARIES, extras=('eval', 'hf'))
  parts = parts_lib.build(config)
  params = random_params(parts.objective, config.seed)
  rows = passages(steps, config.model.vocab_size, config.model.context_length)
  with contextlib.ExitStack() as stack:
    others: dict[int, WorkerProcess] = {}
    if batches:
      folder = stack.enter_context(tempfile.TemporaryDirectory())
      hf.save(folder, parts.model, jax.device_get(params))
      np.savez(
        os.path.join(folder, worker.ROWS),
        *(row.ids for row in rows),
        scored=[row.num_scored for row in rows],
      )
      for size in batches:
        others[size] = stack.enter_context(harness.side('score', folder, size))
      malloc.reset_peak()  # the sides have the parameters
    scorer, clock = Scorer(parts, params, Bytes()), harness.TurnsClock()

    def report(stage: str, done: int, total: int | None) -> None:
      del stage, done, total
      if clock.take() >= worker.TURN_SECONDS:
        _catch_up([*others.values()], clock.seconds)
        clock.go_on()

    clock.go_on()
    scores = scorer.rows(rows, Journal(None, ''), report)
    clock.take()
    peak = {'peak_bytes': malloc.peak_bytes()} if batches else {}
    _catch_up([*others.values()], math.inf)
    found = {size: side.last for size, side in others.items()}
  compared: dict[str, Any] = {}
  if found:
    ours = np.array([score.log_prob for score in scores])
    fastest = min(x['seconds'] for x in found.values())
    compared = {
      'lm_eval': {
        str(size): {
          **{k: v for k, v in x.items() if k != 'log_probs'},
          'passages_per_second': len(scores) / x['seconds'],
          'difference': float(np.abs(ours - x['log_probs']).max()),
        }
        for size, x in found.items()
      },
      'speedup': fastest / clock.seconds,
    }
  return {
    'parameters': sum(x.size for x in jax.tree.leaves(params)),
    'dtype': config.model.dtype,
    'passages': len(rows),
    'tokens': sum(row.length for row in rows),
    'ours': {**clock.result(), 'passages_per_second': len(rows) / clock.seconds, **peak},
    **compared,
  }


def report(result: dict) -> str:
  """Formats the result."""
  sides = {'ours': result['ours']}
  for size, found in result.get('lm_eval', {}).items():
    sides[f'lm-eval, batch {size}'] = found
  lines = [
    f'{result["passages"]:,} passages, {result["tokens"]:,} tokens; '
    f'{result["parameters"]:,} parameters, {result["dtype"]}'
  ]
  for name, found in sides.items():
    line = (
      f'{name}: {found["seconds"]:,.1f} s, CPU {found["cpu_seconds"]:,.1f} s, '
      f'{found["passages_per_second"]:,.2f} passages/s'
    )
    if 'peak_bytes' in found:
      line += f', peak {found["peak_bytes"] / harness.MIB:,.0f} MiB'
    if 'difference' in found:
      line += f'; log-probabilities differ by {found["difference"]:.1e} at most'
    lines.append(line)
  if 'speedup' in result:
    lines.append(f'{result["speedup"]:.2f}x the speed of the fastest of lm-eval')
  return '\n'.join(lines)


def _catch_up(sides: list[WorkerProcess], seconds: float) -> None:
  """Gives turns to sides until each has worked `seconds`, or is done."""
  while waiting := [
    side for side in sides if 'log_probs' not in side.last and side.last['seconds'] < seconds
  ]:
    for side in waiting:
      side.tell(None)
      side.answer()
