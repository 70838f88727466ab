# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs whose rows get longer: what they consume, log, and resume to."""

import json
import types

import numpy as np
import pytest

from gpt_jax.commands import inspect, train
from gpt_jax.core import config as config_lib
from gpt_jax.core.rows import ledger
from gpt_jax.core.runtime import preemption
from gpt_jax.core.runtime.preemption import Preempted
from gpt_jax.core.tokens import prepare
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import metrics, store_data
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.opening import models as trained_lib
from gpt_jax.reports import goodput
from tests.support import reference, tiny, whole_runs

STEPS, SEED = 11, 3
# Steps 0 to 3 have 8 rows of 3 tokens, 4 and 5 of 7, the others 16 of 7.
SHAPES = [(8, 3)] * 4 + [(8, 7)] * 2 + [(16, 7)] * 5
STAGED = {'batch.size': 'ramp(8, 6_steps:16)', 'batch.length': 'stages(3, 30%:7)'}


def config(data, **changes):
  return tiny.config(
    **{
      **tiny.MESHABLE,
      'seed': SEED,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'model.position': 'rope',
      'batch.micro_rows': 1,
      'data.source': "text('configs/s*.py')",
      'data.holdout': 'tail(fraction=0.03)',
      'data.store': str(data),
      'tokenizer.name': 'bytes',
      'schedule.num_steps': STEPS,
      'schedule.name': "cosine(peak=1e-3, warmup='200_tokens')",
      'checkpoint.every_steps': 4,
      'eval.every_steps': 0,
      'eval.num_batches': 2,
      'eval.rows': 8,
      'log.every_steps': 1,
      'log.sample_prompt': '',
      **changes,
    }
  )


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return tmp_path_factory.mktemp('lengths') / 'data'


@pytest.fixture(scope='module')
def whole(data, tmp_path_factory):
  """A run that nothing disturbed."""
  workdir = tmp_path_factory.mktemp('lengths') / 'whole'
  train.train(config(data, **STAGED), str(workdir))
  return workdir


def lines(workdir, event=None):
  return [m for m in metrics.read(str(workdir)) if m.get('event') == event]


def test_each_stage_takes_rows_of_its_length(data):
  """The batches against plain JAX's, and the ledger."""
  settled = config_lib.resolve(config(data, **STAGED))
  store = prepare.ensure(settled, str(data))
  parts = parts_lib.build(settled)
  source = store_data.StoreData(store, lengths=[3, 7], seed=SEED)
  order = config_lib.order(parts.ramp)
  batches = [*source.batches(parts, 0, order)]
  named = ledger.steps(store, seed=SEED, start=0, stop=STEPS, rows=order)
  rows = [row for step in named for row in step.rows]
  assert [row.row for row in rows] == [*range(4 * 8 + 2 * 8 + 5 * 16)]
  ends = store.document_ends
  stages = tuple((SHAPES.index(shape), *shape) for shape in dict.fromkeys(SHAPES))
  plain = reference.of({'shape_of': 'ramped_batch'}, STAGES=stages, ORDER=str(SEED))
  tokens = store.tokens(0, len(store))
  stored, number = {'tokens': tokens, 'num_tokens': len(tokens)}, 0
  for step, (_, length) in enumerate(SHAPES):
    wanted = plain.ramped_stream_batch(stored, step)
    for name, expected in wanted.items():
      np.testing.assert_array_equal(batches[step][name], expected)
    for inputs in wanted['inputs']:
      row = rows[number]
      assert row.begin == row.position * length
      np.testing.assert_array_equal(tokens[row.begin : row.begin + length], inputs)
      at = row.begin
      for span in row.spans:
        begin = ends[span.document - 1] if span.document else 0
        assert begin + span.start == at
        at = begin + span.stop
      assert at == row.begin + length + 1
      number += 1
  # In any part of the run, on any host.
  later = [*source.batches(parts, 3, order)]
  for one, other in zip(batches[3:], later, strict=True):
    np.testing.assert_array_equal(one['inputs'], other['inputs'])


@pytest.mark.long
@pytest.mark.slow
def test_what_a_staged_run_logs(whole, data):
  tokens = np.cumsum([rows * length for rows, length in SHAPES]).tolist()
  rows = np.cumsum([rows for rows, _ in SHAPES]).tolist()
  steps = [line for line in lines(whole) if 'loss' in line]
  assert [line['tokens'] for line in steps] == tokens
  assert [line['rows'] for line in steps] == rows
  shapes = [(line['batch_rows'], line['row_tokens']) for line in steps]
  assert shapes == SHAPES
  # An epoch is the store's tokens, whatever the length of its rows.
  total = len(TokenStore.open(str(data)))
  for line in steps:
    exact = line['tokens'] / total
    assert line['epochs'] == pytest.approx(exact, abs=(7 + exact * 14) / total)
  # In tokens: the warm-up lasts 200 of them.
  rates = [line['learning_rate'] for line in steps]
  assert rates[0] == pytest.approx(1e-3 * 24 / 200)
  assert rates[4] == pytest.approx(1e-3 * (96 + 56) / 200)
  # All were compiled before the first step.
  events = [m['event'] for m in metrics.read(str(whole)) if 'event' in m]
  compiled = [(m['rows'], m['length']) for m in lines(whole, 'compiled')]
  assert compiled == [(8, 3), (8, 7), (16, 7)]
  assert events[:5] == ['start', *['compiled'] * 3, 'first_step']
  account = goodput.account(metrics.read(str(whole)))
  assert (account.tokens, account.rows) == (tokens[-1], rows[-1])
  assert account.epochs == steps[-1]['epochs']
  # What they consumed is named by their numbers in the run.
  numbers = [row['row'] for row in store_data.rows(str(whole), '5')[1]]
  assert numbers == [*range(32, 40)]
  # Held-out text in rows of 7: every token of two batches of 8.
  (held_out,) = [line for line in lines(whole) if metrics.HELD_OUT in line]
  assert held_out['eval/validation/tokens'] == 2 * 8 * 7


def test_inspect_adds_up_the_stages(data, capsys):
  given = config(data, **STAGED)
  inspect.main(_inspected(given))
  found = json.loads(capsys.readouterr().out)
  stages = [
    (s['step'], s['rows'], s['row_tokens'], s['tokens_per_step'], s['tokens'])
    for s in found['schedule']
  ]
  assert stages == [(1, 8, 3, 24, 0), (5, 8, 7, 56, 96), (7, 16, 7, 112, 208)]
  assert found['tokens_total'] == 208 + 5 * 112
  # One layer: each token costs 6 times the matrices, and 12 times 8 heads of
  # size 2 for each token of its row.
  matmul = 264 * 24 + 24 * 16 * 2 + 24 * 8 * 2 + 2 * 24 * 40
  cost = 6 * matmul * 768 + 12 * 16 * (96 * 3 + (768 - 96) * 7)
  assert found['flops_total'] == cost
  inspect.main(_inspected(given, json=False))
  assert 'tokens a row' in capsys.readouterr().out


def _inspected(given, **changes):
  flags = dict(config=given, json=True, mfu=False, spike='', table=False)
  flags |= {'field': '', 'fields': False, 'sharding': '', 'metrics': False}
  flags |= {'attention': '', 'order': '', 'path': False}
  return types.SimpleNamespace(**flags | {'steps': '', 'workdir': ''} | changes)


@pytest.mark.long
@pytest.mark.slow
def test_stopped_around_a_boundary(whole, data, tmp_path, monkeypatch):
  """After step 4, the last of 3 tokens, and in the middle of the next stage."""
  saved = []
  for count in (4, 1, 100):
    left = [count]

    def reached(left=left):
      left[0] -= 1
      return left[0] <= 0

    monkeypatch.setattr(preemption, 'reached', reached)
    try:
      train.train(config(data, **STAGED), str(tmp_path))
      break
    except Preempted:
      saved.append(int(trained_lib.load(str(tmp_path)).state.step))
  assert saved == [4, 5]
  assert whole_runs.logged(tmp_path) == whole_runs.logged(whole)
  whole_runs.same_state(tmp_path, whole)


@pytest.mark.long
@pytest.mark.slow
def test_one_stage_is_the_context(data, tmp_path):
  """Bit for bit, as the model's parameters do not depend on the context."""
  changes = {'schedule.num_steps': 5, 'model.ffn': 'switch(num_experts=2)'}
  same = {'model.context_length': 5}
  train.train(config(data, **changes, **same), str(tmp_path / 'a'))
  same = {'batch.length': 'stages(5)'}
  train.train(config(data, **changes, **same), str(tmp_path / 'b'))
  assert whole_runs.logged(tmp_path / 'a') == whole_runs.logged(tmp_path / 'b')
  whole_runs.same_state(tmp_path / 'a', tmp_path / 'b')
