# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""After which steps each duty of the training loop is due."""

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.training import loop
from gpt_jax.core.training.loop import Cadence
from tests.support import tiny


@pytest.mark.parametrize(
  'every, last, steps',
  [
    (3, 10, [3, 6, 9, 10]),
    (5, 10, [5, 10]),
    (1, 3, [1, 2, 3]),
    (10, 10, [10]),
    (11, 10, [10]),
    (0, 10, [10]),
    (7, 1, [1]),
  ],
)
def test_should(every, last, steps):
  found = [s for s in range(1, last + 1) if loop.should(s, every, last)]
  assert found == steps


# Steps 1 to 13, by the letters of what is due after each.
@pytest.mark.parametrize(
  'made, expected',
  [
    (Cadence(13, 2, 3, 5), '. l s l e ls . l s le . ls lse'),
    # None but after the last step.
    (Cadence(13, 13, 0, 0), '. . . . . . . . . . . . lse'),
    (Cadence(13, 20, 13, 14), '. . . . . . . . . . . . lse'),
    (Cadence(13, 1, 7, 0), 'l l l l l l ls l l l l l lse'),
    # Local saves.
    (Cadence(13, 20, 5, 0, False, 4), '. . . m s . . m . s . m lse'),
    # Where an evaluation may be the last of the run, its step is logged.
    (Cadence(13, 4, 0, 5, True), '. . . l le . . l . le . l lse'),
  ],
)
def test_what_is_due_after_each_step(made, expected):
  found = []
  for step in range(1, 14):
    due = made.due(step)
    assert not due.stop
    all_due = due.log, due.save, due.evaluate, due.save_local
    letters = zip('lsem', all_due, strict=True)
    found.append(''.join(letter for letter, is_due in letters if is_due) or '.')
  assert found == expected.split()


@pytest.mark.parametrize('step, others', [(6, (True, False, True)), (7, ())])
def test_told_to_stop_it_does_what_else_is_due(step, others):
  due = Cadence(11, 2, 4, 3).due(step, stop=True)
  assert due == (*(others or (False, False, False)), True, False)
  assert any(due)


@pytest.mark.parametrize('patience, logged', [(0, False), (2, True)])
def test_the_cadence_of_a_config(patience, logged):
  fields = {
    'schedule.num_steps': 17,
    'log.every_steps': 3,
    'checkpoint.every_steps': 5,
    'eval.every_steps': 7,
    'checkpoint.local_every_steps': 2,
  }
  config = config_lib.resolve(tiny.config(**fields))
  assert loop.cadence_of(config, patience=patience) == (17, 3, 5, 7, logged, 2)
