# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""When a run gives up, and where it begins again."""

import types

import pytest

from gpt_jax.training import run
from gpt_jax.training.past import History, Spike
from tests.support import tiny


@pytest.mark.parametrize(
  'values, patience, over',
  [
    ([3, 2, 1], 1, False),
    ([3, 2, 2], 1, True),
    ([3, 1, 2, 0.5], 2, False),
    ([3, 1, 2, 1.5], 2, True),
    ([3, 4], 2, False),
    ([1, 2, 3, 4], 0, False),
  ],
)
def test_patience(values, patience, over):
  assert run.gave_up([*enumerate(values)], patience) is over


def test_a_rewind_to_the_start_begins_as_the_run_did(tmp_path):
  """With what it started from, not with parameters that are drawn."""
  config = {**tiny.MESHABLE, 'optim.on_spike': 'rewind(before=1, batches=3)'}
  no_checkpoint = types.SimpleNamespace(
    steps=list,
    restored=None,
    wait=lambda: None,
    forget_after=lambda step: None,
    restore=lambda abstract, at_most: None,
  )
  made = run.Run(
    tiny.build(tiny.config(**config), (1, 1, 1)),
    str(tmp_path),
    types.SimpleNamespace(row_numbers=lambda rows: []),
    no_checkpoint,
    History(str(tmp_path)),
    first=lambda: 'pretrained',
  )
  output = {'loss': 9.0, 'grad_norm': 2.0, 'grad_norms': {}}
  assert made.rewind(Spike('a spike', step=2, output=output)) == 'pretrained'
  (skip,) = made.history.skips.skips
  assert (skip.step, skip.spike) == (0, 2) and not made.history.skips.pending
