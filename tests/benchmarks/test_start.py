# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of a start are those of a process that trains."""

import json
import time

import pytest

from gpt_jax.__main__ import main
from gpt_jax.benchmarks.start import PARTS

FLAGS = [
  'benchmark',
  '--config=configs/smoke.py',
  '--what=start',
  '--steps=2',
  "--config.data.source=text('configs/b*.py')",
  '--config.data.holdout=none',
  '--config.tokenizer.name=bytes',
  '--config.model.vocab_size=262',
  '--config.model.num_layers=1',
  '--config.model.d_model=16',
  '--config.model.num_heads=2',
  '--config.model.context_length=17',
]


@pytest.mark.slow  # three processes
def test_the_parts_of_a_start(capsys):
  began = time.monotonic()
  assert main([*FLAGS, '--json']) == 0
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
  assert main([*FLAGS, '--config.model.vocab_size=5']) == 1
  said = capsys.readouterr().err.strip().splitlines()[-1]
  assert 'train failed: model.vocab_size=5: is smaller than' in said
  assert 'File' not in said


def _named(found):
  return [[(name, x) for x in xs] for name, xs in found['parts'].items()]
