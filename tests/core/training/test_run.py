# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""When a run gives up, and where it begins again."""

import types
from typing import Any

import pytest

from gpt_jax.core import config as config_lib
from gpt_jax.core.tokens import prepare
from gpt_jax.core.training import run
from gpt_jax.core.training.past import History, Spike
from gpt_jax.core.training.store_data import StoreData
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


@pytest.mark.parametrize(
  ('rows', 'steps', 'said'),
  [
    # There are 690 rows of 13 tokens: 10 epochs are 6,900 rows.
    (5, 1380, []),
    (5, 1518, ['the run reads its corpus 11 times over all its steps: expect']),
    (690, 10, []),
    (691, 10, ['reads its corpus 10 times', 'a batch of 691 rows is more than']),
    ('ramp(0:1, 3_steps:700)', 5, ['a batch of 700 rows is more than the']),
  ],
)
def test_a_corpus_that_is_small_for_the_run(corpus, make_config, rows, steps, said):
  """8,972 tokens, of 37 texts."""
  store = prepare.ensure(make_config(holdout='none'), 'D')
  num_rows = (len(store) - 1) // 13
  config = tiny.config(**{'batch.size': rows, 'schedule.num_steps': steps})
  ramp = config_lib.ramp(config)
  parts: Any = types.SimpleNamespace(config=config, ramp=ramp)
  data = StoreData(store, lengths=[13], seed=0)
  found = [*run._too_little_text(parts, data, held_out=True)]
  assert num_rows == 690
  assert len(found) == len(said)
  for line, part in zip(found, said, strict=True):
    assert part in line


def test_a_small_source_of_a_mixture_is_named(corpus, make_config):
  sources = {'a': "text('docs/00.txt')", 'b': "text('docs/[1-3]*.txt')"}
  source = 'mixture(a:0.5, b:0.5)'
  made = make_config(source, 'none', sources=sources)
  store = prepare.ensure(made, 'D')
  config = tiny.config(**{'batch.size': 5, 'schedule.num_steps': 100})
  parts: Any = types.SimpleNamespace(config=config, ramp=config_lib.ramp(config))
  data = StoreData(store, lengths=[13], seed=0)
  # Half of 500 rows are of `a`.
  times = 250 / ((store.parts()['a'][1] - 1) // 13)
  (line,) = run._too_little_text(parts, data, held_out=False)
  assert line.startswith(f'the run reads a {times:.0f} times over all its steps')
  assert 'no held-out loss will show (data.holdout)' in line


@pytest.mark.parametrize(
  ('sizes', 'said'), [((1, 1, 1), ''), ((2, 2, 2), 'mesh data=2, fsdp=2, tensor=2; ')]
)
def test_a_mesh_of_ones_is_not_told(sizes, said):
  parts = tiny.build(tiny.config(**tiny.MESHABLE), sizes)
  data: Any = types.SimpleNamespace(epochs=lambda rows: {'epochs': 1.5}, rows_per_epoch=12)
  told = run._about(parts, 2000, data)
  assert told.startswith(f'2,000 tokens, 1.50 epochs of 12 rows; {said}batches of 16 rows, ')
