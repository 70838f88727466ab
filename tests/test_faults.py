# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ledger of kills and damages: sittings add up, and no failure is left."""

import collections
import random

import pytest

from tests.support import crash, damage, faults, subjects


def test_sittings_add_up(tmp_path):
  path = tmp_path / 'faults.jsonl'
  first = faults.open_ledger(str(path), 'kill', None)
  assert first.seed == 1
  shares = {'dear': 1, 'cheap': 3}
  drawn = []
  for _ in range(9):
    drawn.append(first.furthest_behind(shares))
    first.add(drawn[-1], 'step, SIGINT', 'same bits')
  assert sorted(drawn) == ['cheap'] * 6 + ['dear'] * 3
  other = faults.open_ledger(str(path), 'damage', None)
  assert (other.seed, other.furthest_behind(shares)) == (1, 'dear')
  second = faults.open_ledger(str(path), 'kill', None)
  assert (second.seed, second.furthest_behind(shares)) == (2, 'cheap')
  second.add('dear', 'end, SIGKILL', 'failed', 'x' * 999)
  *_, last = rows = faults.read(path)
  assert len(rows) == 10 and last['why'] == 'x' * 300
  table = faults.tally([*rows, {**last, 'mended': 'so'}, {**last, 'what': 'damage'}])
  assert table.splitlines()[2:] == [
    '| kill | cheap | 6 | 0 | 0 | 0 | 0 | 6 |',
    '| kill | dear | 3 | 0 | 0 | 1 | 1 | 5 |',
    '| kill | all | 9 | 0 | 0 | 1 | 1 | 11 |',
    '| damage | dear | 0 | 0 | 0 | 1 | 0 | 1 |',
    '| damage | all | 0 | 0 | 0 | 1 | 0 | 1 |',
  ]


def test_all_failures_are_mended():
  """Of the ledger in the repository; what is mended has a test of its own."""
  rows = faults.read(faults.PATH)
  counts = collections.Counter(row['what'] for row in rows)
  assert counts.keys() == {'kill', 'damage'} and min(counts.values()) >= 1000  # as README says
  assert {row['kind'] for row in rows} <= {*subjects.KINDS, *subjects.TINY, *subjects.JOBS}
  assert not [row for row in rows if row['outcome'] == 'failed' and not row.get('mended')]


@pytest.mark.parametrize('kind', ['decoder', 'local'])
def test_three_runs_are_killed_in_each_phase_by_each_signal(kind):
  drawn = crash.rounds(kind, random.Random(3))
  three = [next(drawn) for _ in range(3)]
  assert {len(kills) for kills in three} == {crash.shares()[kind]}
  found = {kill for kills in three for kill in kills}
  assert found == {crash.Kill(p, n) for p in crash.phases(kind) for n in crash.SIGNALS}


def test_a_file_is_of_the_kind_of_its_like():
  name = 'checkpoints/56/state/ocdbt.process_0/d/243959b9b9cc435b32d6244bfb6024d8'
  assert damage.kind_of(name) == 'checkpoints/*/state/ocdbt.process_0/d/*'
