# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Goodput under failures, against Daly's formula and the papers' counts."""

import json
import math

import numpy as np
import pytest

from gpt_jax.__main__ import main
from gpt_jax.planning import failures
from gpt_jax.planning.failures import SOURCES, Tiers, simulate


def daly(every, blocks, recovery, mean):
  """The goodput of one tier, in seconds, from the complete model (eq. 13)."""
  wall = mean * math.exp(recovery / mean) * math.expm1((every + blocks) / mean)
  return every / wall


@pytest.mark.parametrize('a_day', [1, 7, 30])
def test_one_tier_is_dalys(a_day):
  times = Tiers(every=1800, blocks=20, restore=240, restart=500)
  found = simulate(a_day, 1.0, times, local=False, days=3000)
  expected = daly(1800, 20, 740, 86400 / a_day)
  assert found.goodput == pytest.approx(expected, rel=0.01)
  assert sum(found) == pytest.approx(1)


def test_a_local_tier_alone_is_dalys_too():
  """Where no failure takes both copies, the workdir is never read."""
  times = Tiers(1e9, 0, 0, 1e9, local_every=300, local_blocks=3, local_restore=40, both=0)
  found = simulate(7, 1.0, times, local=True, days=3000)
  # The first save comes a little after the start.
  assert found.goodput == pytest.approx(daly(300, 3, 640, 86400 / 7), rel=0.01)


def test_where_all_copies_are_lost_the_local_tier_only_costs():
  times = Tiers(both=1, local_blocks=0, restore=30, local_restore=30)
  found = [simulate(9, 1.0, times, local=local, days=2000).goodput for local in (False, True)]
  # Other random numbers.
  assert found[0] == pytest.approx(found[1], rel=0.01)


@pytest.mark.parametrize('a_day, blocks', [(1, 10), (14, 10), (14, 300)])
def test_the_best_interval_is_dalys_maximum(a_day, blocks):
  times, mean = Tiers(blocks=blocks, restore=240, restart=500), 86400 / a_day
  every = np.arange(60, 30_000)
  goodput = every / np.expm1((every + blocks) / mean)
  best = failures.best_every(a_day, times)
  assert best == pytest.approx(every[goodput.argmax()], rel=0.01)
  assert failures.best_every(a_day, times._replace(writes=9000)) == 9000


def test_the_published_rates():
  """Llama 3 405B was interrupted every 3 hours, by hardware in 78%."""
  opt, llama = SOURCES
  assert 24 / (llama.a_day * llama.hosts) == pytest.approx(3.1, abs=0.05)
  assert llama.hardware == pytest.approx(0.78, abs=0.015)
  assert opt.a_day * opt.hosts == pytest.approx(1.75)


def test_the_command(capsys, monkeypatch):
  monkeypatch.setattr(failures, 'DAYS', 50)
  assert main(['plan', '--failures=1000', '--tiers=tiers(every=7200)']) == 0
  assert 'Llama 3 405B' in capsys.readouterr().out
  assert main(['plan', '--failures=1000', '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert [row['failures_a_day'] for row in found['rows']] == pytest.approx([14.11, 3.79], abs=0.01)
  for row in found['rows']:
    assert row['best']['goodput'] > row['workdir']['goodput']
    assert row['both_tiers']['goodput'] > row['workdir']['goodput']
  assert main(['plan', '--failures=1000', '--tiers=tiers(every=0)']) == 2
  assert 'every=0' in capsys.readouterr().err
