# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what rollouts|serve|start|checkpoint`, on tiny models."""

import json
import pathlib
import time

import jax
import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import checkpoint, rollouts, serve
from gpt_jax.benchmarks.start import PARTS
from gpt_jax.resilience.local import LocalCheckpoints
from tests.core.checkpoints.test_checkpointer import HERE, place, state_at
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
TINY = [
  f'--config={ROOT}/configs/benchmark.py:rollouts',
  *tiny.flags(model=dict(num_layers=1, d_model=24, num_heads=3, context_length=22)),
]
ROLLOUTS = [*TINY, '--config.model.vocab_size=97', '--what=rollouts', '--steps=1']


@pytest.mark.long
@pytest.mark.slow  # compiles all programs of two methods
def test_both_sides_and_all_parts(capsys):
  assert main(['benchmark', *ROLLOUTS, '--config.batch.size=16', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['rows'] == 16
  assert found['prompt_tokens'] == found['completion_tokens'] == 11
  assert [*found['methods']] == ['grpo', 'ppo']
  for method in found['methods'].values():
    for part in method['parts'].values():
      assert part['seconds'] > 0
      # Python alone takes this, and no part a hundred times as much.
      assert 50 * 2**20 < part['peak_bytes'] < 5000 * 2**20
  told = rollouts.report(found)
  assert 'grpo: rollouts ' in told and told.count(' MiB') == 8
  for method in found['methods'].values():
    method['rollout_tokens_per_second'] = 3.0
    method['generate_tokens_per_second'] = 4.0
  assert 'rollouts 3.0 tokens/s, generate 4.0: 75%' in rollouts.report(found)


@pytest.mark.parametrize(
  ('field', 'message'),
  [
    ('batch.size=12', 'batch.size=12: GRPO samples 8 completions'),
    ('model.vocab_size=70000', 'give at most 60000'),
  ],
)
def test_rollouts_refuse(field, message, capsys):
  assert main(['benchmark', *ROLLOUTS, f'--config.{field}']) == 2
  assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow  # compiles all programs of a server
def test_clients_are_answered(capsys):
  flags = [
    *TINY,
    '--config.model.vocab_size=260',
    '--what=serve',
    '--clients=3',
    '--seconds=1',
    '--json',
  ]
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert (found['clients'], found['seconds']) == (3, 1)
  assert found['requests'] >= 3 and found['tokens_per_second'] > 0
  waits = [found['percentiles'][q] for q in ('50', '90', '99', '100')]
  assert waits[0] > 0 and waits == sorted(waits)
  # All were compiled before.
  assert found['programs'] == 0
  assert '3 clients, 1 s: ' in serve.report(found)


START = [
  'benchmark',
  '--config=configs/smoke.py',
  '--what=start',
  '--steps=2',
  *tiny.flags(
    data=dict(source="text('configs/b*.py')", holdout='none'),
    tokenizer=dict(name='bytes'),
    model=dict(vocab_size=262, num_layers=1, d_model=16, num_heads=2, context_length=17),
  ),
]


@pytest.mark.long
@pytest.mark.slow  # three processes
def test_the_parts_of_a_start(capsys):
  began = time.monotonic()
  assert main([*START, '--json']) == 0
  seconds = time.monotonic() - began
  found = json.loads(capsys.readouterr().out)
  starts = [found['first'], *map(dict, zip(*_named(found), strict=True))]
  assert [[*x] for x in starts] == [[*PARTS]] * 3
  assert all(part > 0 for x in starts for part in x.values())
  # Processes end after their first step.
  assert sum(sum(x.values()) for x in starts) < seconds


@pytest.mark.slow  # a process
def test_why_a_start_fails(capsys):
  """In a line, as `train` says it."""
  assert main([*START, '--config.model.vocab_size=5']) == 1
  said = capsys.readouterr().err.strip().splitlines()[-1]
  assert 'train failed: model.vocab_size=5: is smaller than' in said
  assert 'File' not in said


def _named(found):
  return [[(name, x) for x in xs] for name, xs in found['parts'].items()]


def test_local_saves_are_timed_and_leave_nothing(tmp_path):
  (tmp_path / 'memory').mkdir()
  local = LocalCheckpoints(str(tmp_path / 'w'), str(tmp_path / 'memory'))
  state = place(state_at(3), *HERE)
  after, found = checkpoint.local_saves(
    lambda state, batch: (state._replace(step=state.step + 1), batch), state, {}, local
  )
  assert int(after.step) == 3 + 7 * 2 + 3
  assert not [*(tmp_path / 'memory').iterdir()]
  size = sum(x.nbytes for x in jax.tree.leaves(state))
  # One save is kept, and has a list of its arrays.
  assert size < found['gib_of_a_process'] * 2**30 < size + 5000
  assert found['blocked_seconds'] > 0
  result = {
    'parameters': 1234,
    'state_gib': 0.5,
    'processes': 4,
    'local': dict.fromkeys(found, 2.0) | {'blocked_seconds': 0.5},
  }
  assert '0.500 s of the training thread, 25% of a step' in checkpoint.report(result)
  assert checkpoint.report(result).endswith('4 processes, 2.00 GiB each')
