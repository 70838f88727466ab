# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""`benchmark --what malloc`: the same training, each with another malloc."""

import json
import pathlib

import pytest

from gpt_jax import malloc
from gpt_jax.__main__ import main
from gpt_jax.benchmarks import allocators

ROOT = pathlib.Path(__file__).parents[2]
MALLOC = [
  'benchmark',
  f'--config={ROOT}/configs/benchmark.py',
  '--config.model.num_layers=1',
  '--config.model.d_model=24',
  '--config.model.context_length=13',
  '--config.batch.size=5',
  '--what=malloc',
  '--steps=2',
]


@pytest.mark.slow
def test_the_losses_are_the_same_to_the_last_bit(capsys):
  if not malloc.tuned({}):
    pytest.skip('needs Linux with glibc 2.35 and huge pages')
  assert main([*MALLOC, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['same_losses'] is True
  assert {'keeps memory', 'huge pages'} <= {*found['allocators']}
  for one in found['allocators'].values():
    assert one['peak_bytes'] > 2**20 and one['tokens_per_second'] > 0
  table = allocators.report(found)
  assert '| huge pages | ' in table
  assert table.endswith('losses: the same, to the last bit')
  assert 'DIFFERENT' in allocators.report({**found, 'same_losses': False})


def test_without_huge_pages_there_is_nothing_to_compare(monkeypatch, capsys):
  monkeypatch.setattr(malloc, 'tuned', lambda environment: {})
  assert main(MALLOC) == 2
  assert '--what=malloc: needs Linux with glibc' in capsys.readouterr().err
