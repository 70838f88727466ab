# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what rollouts`, on a tiny model."""

import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import rollouts

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
FLAGS = [
  f'--config={CONFIGS}/benchmark.py:rollouts',
  '--config.model.num_layers=1',
  '--config.model.d_model=24',
  '--config.model.num_heads=3',
  '--config.model.vocab_size=97',
  '--config.model.context_length=22',
  '--what=rollouts',
  '--steps=1',
]


@pytest.mark.slow  # compiles all programs of two methods
def test_both_sides_and_all_parts(capsys):
  assert main(['benchmark', *FLAGS, '--config.batch.size=16', '--json']) == 0
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
def test_what_is_refused(field, message, capsys):
  assert main(['benchmark', *FLAGS, f'--config.{field}']) == 2
  assert message in capsys.readouterr().err
