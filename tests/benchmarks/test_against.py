# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --against torch`: turns and their times; and, where torch is
installed (`make torch`), the whole: both sides have the same losses and tokens.
"""

import importlib.util
import io
import json
import pathlib

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import against, worker
from gpt_jax.benchmarks.worker import Turns
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
INSTALLED = all(map(importlib.util.find_spec, ('torch', 'transformers')))
CONFIG = f'--config={ROOT}/configs/benchmark.py'
SIZES = [
  *tiny.flags(
    model=dict(num_layers=2, d_model=24, num_heads=6, head_size=4, d_ff=40, vocab_size=97)
  ),
  '--against=torch',
]
DECODE = [
  *SIZES,
  '--config.model.context_length=64',
  '--what=decode',
  '--batches=1,3',
  '--prompts=7,17',
  '--steps=5',
]
TRAIN = [*SIZES, '--config.model.context_length=13', '--config.batch.size=5', '--steps=6']


def test_turns_are_answered_and_add_up():
  """Turns of 1, 4 and 2 tokens; the clock stands while the other side runs."""
  said, asked = [], []
  lines = io.StringIO('1\n4\n2\n')

  def decode(prompts, num, beams, token):
    assert beams == 4
    asked.append((prompts.shape, prompts.max() < 11, num))
    for _ in range(num):
      token()
    return [[5] * num] * len(prompts), 13

  case = {'batch': 2, 'prompt': 3, 'tokens': 7, 'vocab_size': 11, 'beams': 4}
  Turns(lines, said.append).run(decode, case)
  assert asked == [((2, 3), True, 7)]
  assert [len(answer['seconds']) for answer in said] == [1, 4, 2]
  assert [len(answer['cpu_seconds']) for answer in said] == [1, 4, 2]
  assert all('ids' not in answer for answer in said[:-1])
  assert said[-1]['ids'] == [[5] * 7] * 2
  assert said[-1]['cache_bytes'] == 13 < said[-1]['peak_bytes']


def test_results_are_medians_over_rounds():
  """First tokens by themselves: of 9, 5 and 7; steps of 2, 4, 2, 8, 2, 2."""
  rounds = [
    {'seconds': [9, 2, 4], 'cpu_seconds': [1, 1, 1]},
    {'seconds': [5, 2, 8], 'cpu_seconds': [1, 3, 3]},
    {'seconds': [7, 2, 2], 'cpu_seconds': [1, 5, 5]},
  ]
  rounds = [{**r, 'cache_bytes': 3, 'peak_bytes': i} for i, r in enumerate(rounds)]
  assert against._decode_result(rounds, batch=6) == {
    'tokens_per_second': 3.0,
    'cpu_seconds_a_step': 3.0,
    'first_token_seconds': 7,
    'cache_bytes': 3,
    'peak_bytes': 2,
  }


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.parametrize('name, kv_heads', [('smollm2-135m', 2), ('gpt2', 6)])
def test_both_sides_draw_the_same_tokens(name, kv_heads, capsys):
  """In every case; the caches have the sizes of what they hold."""
  flags = [f'{CONFIG}:{name}', *DECODE, '--json']
  flags.append(f'--config.model.num_kv_heads={kv_heads}')
  assert main(['benchmark', *flags]) == 0
  cases = json.loads(capsys.readouterr().out)['cases']
  shapes = [(case['batch'], case['prompt']) for case in cases]
  assert shapes == [(1, 7), (3, 7), (1, 17), (3, 17)]
  for case in cases:
    assert case['same_ids'] == 1
    # Keys and values, layers, heads, head size, float32; theirs holds all but
    # the last token.
    slot = case['batch'] * 2 * 2 * kv_heads * 4 * 4
    assert case['torch']['cache_bytes'] == (case['prompt'] + 5) * slot
    assert case['ours']['cache_bytes'] >= (case['prompt'] + 5) * slot
    one, two = case['ours'], case['torch']
    np.testing.assert_allclose(case['speedup'], one['tokens_per_second'] / two['tokens_per_second'])


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.parametrize('name, layers', [('t5.py:small', 2), ('benchmark.py:gpt2', 0)])
def test_both_sides_find_the_same_tokens(name, layers, capsys):
  """By beam search; sources of 59 tokens leave the decoder its context."""
  flags = [f'--config={ROOT}/configs/{name}', *DECODE, '--json', '--what=beam']
  flags.append('--config.model.dtype=float32')
  flags.append(f'--config.model.num_encoder_layers={layers}')
  flags.append('--config.model.num_kv_heads=6')
  if layers:
    flags.append('--prompts=7,59')
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['beams'] == 4 and len(found['cases']) == 4
  assert [case['same_ids'] for case in found['cases']] == [1] * 4


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
  rounds = against.train_turns(both, steps=10)
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


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
def test_both_sides_train_the_same_lstms(capsys):
  """A projected layer below a plain one; the loss falls as they are trained."""
  flags = [
    f'{CONFIG}:awd-lstm',
    *tiny.flags(
      model=dict(
        attention='lstm(11, projection=5), lstm(7)', num_layers=2, d_model=7, context_length=13
      ),
      batch=dict(size=3),
    ),
    '--what=lstm',
    '--against=torch',
    '--steps=6',
  ]
  assert main(['benchmark', *flags, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['sizes'] == [7, 5, 7]
  gates = 4 * 11 * (7 + 5 + 2) + 11 * 5 + 4 * 7 * (5 + 7 + 2)
  assert found['parameters'] == gates
  assert found['loss_difference'] < 1e-5
  seconds = {x: found[x]['step_seconds'] for x in ('ours', 'torch', 'products')}
  assert found['speedup'] == pytest.approx(seconds['torch'] / seconds['ours'])
  assert found['most'] == pytest.approx(seconds['torch'] / seconds['products'])


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs torch: pip install '.[hf]'")
@pytest.mark.parametrize('name, layers', [('benchmark.py:char', 0), ('t5.py:cpu', 2)])
def test_both_sides_have_the_same_losses(name, layers, capsys):
  flags = [f'--config={ROOT}/configs/{name}', *TRAIN, '--json']
  flags.append(f'--config.model.num_encoder_layers={layers}')
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['rows'] == 5
  assert found['loss_difference'] < 1e-4
  one, two = found['ours'], found['torch']
  ratio = one['tokens_per_second'] / two['tokens_per_second']
  assert found['speedup'] == pytest.approx(ratio)
