# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of evaluation: what it scores, and whose turn it is."""

import pytest

from gpt_jax.benchmarks import score
from gpt_jax.core import config as config_lib
from tests.support import tiny

CONTEXT = 83


def config():
  changes = {'model.context_length': CONTEXT}
  return config_lib.resolve(tiny.config(**tiny.MESHABLE | changes))


def test_passages_are_as_long_as_lambadas():
  rows = score.passages(997, 101, CONTEXT)
  lengths = [row.length for row in rows]
  assert min(lengths) >= 24 and max(lengths) == CONTEXT
  assert 65 < sum(lengths) / len(lengths) < 75
  assert {row.num_scored for row in rows} == {1, 2, 3, 4}
  assert max(row.ids.max() for row in rows) == 100


def test_passages_are_scored():
  found = score.measure(config(), 11)
  assert found['passages'] == 11
  assert found['tokens'] == sum(row.length for row in score.passages(11, 48, CONTEXT))
  rate = found['ours']['passages_per_second']
  assert rate == pytest.approx(11 / found['ours']['seconds'])
  assert f'{rate:,.2f} passages/s' in score.report(found)


def test_sides_take_turns_until_they_have_worked_as_long():
  turns = []

  class Side:
    def __init__(self, name, step, total):
      self.name, self.step, self.total = name, step, total
      self.last = {'seconds': 0}

    def tell(self, line):
      turns.append(self.name)

    def answer(self):
      self.last['seconds'] += self.step
      if self.last['seconds'] >= self.total:
        self.last['log_probs'] = []

  sides = [Side('a', 5, 10), Side('b', 7, 28)]
  score._catch_up(sides, 13)
  assert ''.join(turns) == 'abab'
  score._catch_up(sides, 13)
  assert ''.join(turns) == 'abab'
  score._catch_up(sides, float('inf'))
  assert ''.join(turns) == 'ababbb'
