# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what serve`, on a tiny model."""

import json
import pathlib

import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks import serve

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
FLAGS = [
  f'--config={CONFIGS}/benchmark.py:rollouts',
  '--config.model.num_layers=1',
  '--config.model.d_model=24',
  '--config.model.num_heads=3',
  '--config.model.vocab_size=260',
  '--config.model.context_length=22',
  '--what=serve',
]


@pytest.mark.slow  # compiles all programs of a server
def test_clients_are_answered(capsys):
  flags = [*FLAGS, '--clients=3', '--seconds=1', '--json']
  assert main(['benchmark', *flags]) == 0
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert (found['clients'], found['seconds']) == (3, 1)
  assert found['requests'] >= 3 and found['tokens_per_second'] > 0
  waits = [found['percentiles'][q] for q in ('50', '90', '99', '100')]
  assert waits[0] > 0 and waits == sorted(waits)
  # All were compiled before.
  assert found['programs'] == 0
  assert '3 clients, 1 s: ' in serve.report(found)
