# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what train --against torch`: turns and their times; and, where
torch is installed (`make torch`), the whole: both sides have the same losses.
"""

import importlib.util
import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import against, worker

ROOT = pathlib.Path(__file__).parents[2]
INSTALLED = all(map(importlib.util.find_spec, ('torch', 'transformers')))
FLAGS = [
  '--config.model.num_layers=2',
  '--config.model.d_model=24',
  '--config.model.num_heads=6',
  '--config.model.head_size=4',
  '--config.model.d_ff=40',
  '--config.model.vocab_size=97',
  '--config.model.context_length=13',
  '--config.batch.size=5',
  '--against=torch',
  '--steps=6',
]


class Recorded:
  """A side whose step number n takes 2^n seconds, and half of that in CPU."""

  def __init__(self):
    self.turns, self._steps = [], 0

  def tell(self, steps):
    self.turns.append(steps)

  def answer(self):
    numbers = range(self._steps, self._steps + self.turns[-1])
    self._steps += self.turns[-1]
    return {
      'seconds': [2**n for n in numbers],
      'cpu_seconds': [2**n / 2 for n in numbers],
      'losses': [10 - n for n in numbers],
      'peak_bytes': 7 * self._steps,
    }


def test_turns_are_put_together_without_those_of_warming_up():
  both = {'ours': Recorded(), 'torch': Recorded()}
  rounds = against._train_turns(both, steps=10)
  assert [side.turns for side in both.values()] == [[4, 4, 2]] * 2
  found = against._train_result(rounds['torch'], 640, 3e3, 1e9)
  # Of 8, 16, ..., 512 s.
  assert found['step_seconds'] == 64
  assert found['cpu_seconds_a_step'] == 32
  assert found['tokens_per_second'] == 10
  assert found['mfu'] == pytest.approx(10 * 3e3 / 1e9)
  assert found['peak_bytes'] == 70
  assert found['losses'] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]


def test_a_worker_goes_on_with_the_next_batch():
  batches = [{'inputs': i} for i in range(3)]
  seen = []

  def step(batch):
    seen.append(batch['inputs'])
    return 0.5

  first = worker.steps(step, batches, 0, 2)
  second = worker.steps(step, batches, 2, 3)
  assert seen == [0, 1, 2, 0, 1]
  assert first['losses'] == [0.5, 0.5]
  assert len(second['seconds']) == len(second['cpu_seconds']) == 3
  assert second['peak_bytes'] > 0


def test_other_batches_are_refused(capsys, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  config = f'--config={ROOT}/configs/benchmark.py:char'
  flags = [*FLAGS, '--config.data.rows=documents']
  assert main(['benchmark', config, *flags]) == 2
  said = capsys.readouterr().err
  assert 'with positions, segments, which --against=torch' in said
  assert said.count('\n') == 1


@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.parametrize(
  'name, layers', [('benchmark.py:char', 0), ('t5.py:cpu', 2)]
)
def test_both_sides_have_the_same_losses(name, layers, capsys):
  flags = [f'--config={ROOT}/configs/{name}', *FLAGS, '--json']
  flags.append(f'--config.model.num_encoder_layers={layers}')
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['rows'] == 5
  assert found['loss_difference'] < 1e-4
  one, two = found['ours'], found['torch']
  ratio = one['tokens_per_second'] / two['tokens_per_second']
  assert found['speedup'] == pytest.approx(ratio)
