# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spikes: a bad batch neither enters the weights nor ends unexplained."""

import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.commands import inspect, train
from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints.checkpointer import rewind_target
from gpt_jax.core.objectives.loss import Loss
from gpt_jax.core.optim import batch_ramp
from gpt_jax.core.optim.optimizer import OPTIMIZERS
from gpt_jax.core.optim.spikes import SPIKES, SpikePolicy, is_spike
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import row_order
from gpt_jax.core.rows.batch_rows import BatchRows, Skip, Skips
from gpt_jax.core.runtime import preemption
from gpt_jax.core.training import loop, metrics, past
from gpt_jax.core.training import store_data as consumed_lib
from gpt_jax.core.training.past import read_skips, write_skips
from gpt_jax.core.training.step import train_step
from gpt_jax.opening import models as trained_lib
from gpt_jax.reports import goodput
from tests.support import tiny, whole_runs

# On the device --------------------------------------------------------------


def squares(params, batch, key):
  """A loss whose gradient is the batch's number."""
  del key
  return Loss(jnp.sum(params['a'] * batch['x']), jnp.float32(1))


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_never_happens(bad):
  optimizer = OPTIMIZERS['adam']()(None)
  objective = tiny.LossOnly(squares)

  @jax.jit
  def step(state, x):
    return train_step(
      state,
      {'x': x},
      objective=objective,
      optimizer=optimizer,
      schedule=lambda step: 0.1,
      seed=0,
      clip_norm=1.0,
      num_micro=1,
    )

  params = {'a': jnp.float32([1, 2, 3])}
  state = TrainState(jnp.int32(0), params, optimizer.init(params))
  good = jnp.float32([1, -1, 2])
  state, _ = step(state, good)
  after, out = step(state, good.at[1].set(bad))
  assert not np.isfinite(out['grad_norm'])
  assert int(after.step) == 2
  for old, new in zip(jax.tree.leaves(state[1:]), jax.tree.leaves(after[1:]), strict=True):
    np.testing.assert_array_equal(old, new)
  # And a good one is the same as if the bad one had not been.
  for a, b in zip(
    jax.tree.leaves(step(after, good)[0][1:]),
    jax.tree.leaves(step(state, good)[0][1:]),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)


# Policies -------------------------------------------------------------------


@pytest.mark.parametrize(
  'loss, norm, spike',
  [
    (math.nan, 1.0, True),
    (2.0, math.inf, True),
    (2.0, 1e9, False),
    (5.4, 1.0, False),
    (5.6, 1.0, True),
  ],
)
def test_what_a_spike_is(loss, norm, spike):
  """The median of the last hundred of 5, 5, ..., 3, 3, ... is 3."""
  logged = [5.0] * 51 + [3.0] * 51
  assert is_spike(SPIKES['stop'](threshold=2.5), loss, norm, logged) == spike


def test_too_few_losses_have_no_median():
  policy = SPIKES['rewind'](threshold=1.0)
  assert not is_spike(policy, 100.0, 1.0, [1.0] * 9)
  assert is_spike(policy, 100.0, 1.0, [1.0] * 10)


def outputs(*losses):
  return [{'loss': x, 'grad_norm': 1.0} for x in losses]


def test_stop_names_the_first_bad_step():
  guard = past.SpikeGuard(SPIKES['stop'](), [], [])
  assert guard.check(5, outputs(1.0, 2.0)) == []
  with pytest.raises(past.Spike, match='step 8 has loss nan') as error:
    guard.check(9, outputs(1.0, 1.0, math.nan, math.inf))
  assert error.value.step == 8


def test_skip_stops_after_too_many_in_a_thousand():
  policy = SPIKES['skip'](at_most=2)
  guard = past.SpikeGuard(policy, [], [3, 900])
  nan = outputs(math.nan)
  assert [step for step, _ in guard.check(1004, nan)] == [1004]
  with pytest.raises(past.Spike, match='3 of 1000 steps were skipped'):
    guard.check(1800, nan)


@pytest.mark.parametrize(
  'steps, spike, before, target',
  [
    ([10, 20, 30], 35, 10, 20),
    ([10, 20, 30], 35, 5, 30),
    ([10, 20, 30], 35, 0, 30),
    ([20, 30, 40], 35, 30, 20),  # retention left none so old
    ([40], 35, 5, 0),
    ([], 35, 5, 0),
  ],
)
def test_rewind_target(steps, spike, before, target):
  assert target == rewind_target(steps, spike=spike, before=before, every=10)


def test_rewind_target_does_not_depend_on_preemptions():
  """Which leave checkpoints in between."""

  def target(*steps, before=5):
    return rewind_target(steps, spike=35, before=before, every=10)

  assert target(10, 20, 27, 30, 33) == 30
  assert target(10, 20, 27, before=8) == 20
  # every_steps was 7 before.
  assert target(14, 21) == 21
  # The first spike, before any.
  assert rewind_target([7], spike=9, before=0, every=10) == 0


# The data order -------------------------------------------------------------


def ramp(step):
  """Batches of 3 rows, from step 4 on of 5."""
  first = 3 * step if step < 4 else 12 + 5 * (step - 4)
  return BatchRows(first, 3 if step < 4 else 5, 13, first)


def consumed(order, steps):
  return [[*order(step).numbers] for step in steps]


def test_what_was_consumed_up_to_the_spike_is_left_out():
  once = Skips().add(ramp, step=2, spike=6, batches=1)
  order = once.shifted(ramp)
  assert consumed(order, range(2)) == consumed(ramp, range(2))
  # Rows 6 to 21 were those of steps 3 to 6.
  assert consumed(order, [2, 3, 4]) == [[22, 23, 24], [25, 26, 27], [*range(28, 33)]]
  # One more from a checkpoint before the first forgets that one.
  twice = once.add(ramp, step=1, spike=4, batches=0)
  assert [s.step for s in twice.skips] == [1]
  assert consumed(twice.shifted(ramp), [0, 1]) == [[0, 1, 2], [28, 29, 30]]
  # From the same checkpoint again, it adds up.
  again = once.add(ramp, step=2, spike=3, batches=0)
  assert consumed(again.shifted(ramp), [1, 2]) == [[3, 4, 5], [25, 26, 27]]


def test_no_row_comes_again_where_the_length_changes():
  """Sent back from rows of 7 tokens to rows of 3."""
  run = batch_ramp.build('ramp(5, 8_steps:2)', 'stages(3, 6_steps:7)', row_tokens=7)
  plain = config_lib.order(run)
  known = Skips().add(plain, step=3, spike=9, batches=1)
  order = known.shifted(plain)

  def rows(taken):
    return {(taken.length, index) for index in taken.indices}

  before = [rows(plain(step)) for step in range(9)]
  after = [rows(order(step)) for step in range(30)]
  assert before[:3] == after[:3]
  found = [*before, *after[3:]]
  assert len(set.union(*found)) == sum(map(len, found))
  numbers = [n for step in range(9) for n in plain(step).numbers]
  numbers += [n for step in range(3, 30) for n in order(step).numbers]
  assert len({*numbers}) == len(numbers)


def test_as_many_batches_are_left_out_as_asked_for():
  once = Skips().add(ramp, step=3, spike=4, batches=3)
  assert once.skips == (Skip(3, 13, 4),)


def test_skips_are_kept_in_a_file(tmp_path):
  assert read_skips(str(tmp_path)) == Skips()
  some = Skips().add(ramp, step=2, spike=6, batches=1)
  write_skips(str(tmp_path), some)
  assert read_skips(str(tmp_path)) == some
  assert some.pending


# Whole runs -----------------------------------------------------------------

STEPS = 24
BAD = 13  # the step, from 1, whose batch is bad


def config(data, **changes):
  return tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'data.source': "text('configs/*.py')",
      'data.holdout': 'none',
      'data.store': str(data),
      'tokenizer.name': 'bytes',
      'schedule.num_steps': STEPS,
      'schedule.name': 'constant(peak=1e-3)',
      'checkpoint.every_steps': 4,
      'log.every_steps': 2,
      'log.sample_prompt': '',
      **changes,
    }
  )


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return tmp_path_factory.mktemp('spikes') / 'data'


@pytest.fixture
def bad_row(monkeypatch):
  """Makes one row of the run bad: its targets weigh NaN.

  Rows are told by their number in the run, wherever a step finds them.
  """
  row = (BAD - 1) * 16 + 5
  batches = row_order.batches

  def poisoned(store, *, make_batch, **kwargs):
    def make_batch_marked(rows, keys):
      batch = make_batch(rows, keys)
      bad = np.equal(keys.run, row)[:, None]
      batch['weights'] = np.where(bad, np.float32(np.nan), batch['weights'])
      return batch

    return batches(store, make_batch=make_batch_marked, **kwargs)

  monkeypatch.setattr(row_order, 'batches', poisoned)
  return row


def state_of(workdir):
  return jax.device_get(whole_runs.state_of(workdir))


def assert_same(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def losses(workdir):
  return {m['step']: m['loss'] for m in metrics.read(str(workdir)) if 'loss' in m}


def events(workdir, name):
  return [m for m in metrics.read(str(workdir)) if m.get('event') == name]


@pytest.mark.long
@pytest.mark.slow  # two runs; test_rewind stays
def test_stop_then_skip(data, bad_row, tmp_path, capsys):
  """The default stops; the same run goes on when told to skip."""
  workdir = tmp_path / 'w'
  with pytest.raises(past.Spike, match=f'step {BAD} has loss nan') as error:
    train.train(config(data), str(workdir))
  file = workdir / f'spikes/{BAD}.json'
  assert str(file) in str(error.value)
  # Step 14 was taken too, and step 16 would have been saved.
  assert int(state_of(workdir).step) == 12
  capsys.readouterr()

  inspect.main(types.SimpleNamespace(spike=str(file), json=True))
  found = json.loads(capsys.readouterr().out)
  assert found['step'] == BAD and found['loss'] == 'nan'
  assert found['first_row'] <= bad_row < found['first_row'] + 16
  run = trained_lib.load(str(workdir))
  source = row_order.RowSource(row_order.TokenStore.open(str(data)), length=7, seed=0)
  assert found['texts'][5] == run.tokenizer.decode(
    source.read(BatchRows(bad_row, 1, 7, bad_row))[0].tokens[0]
  )
  inspect.main(types.SimpleNamespace(spike=str(file), json=False))
  assert 'gradient norm nan' in capsys.readouterr().out

  changes = {'optim.on_spike': 'skip'}
  train.train(config(data, **changes), str(workdir))
  after = state_of(workdir)
  assert int(after.step) == STEPS
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(after))
  assert [m['step'] for m in events(workdir, 'skipped')] == [BAD]
  assert [*losses(workdir)] == [*range(2, STEPS + 1, 2)]


REWIND = {
  'optim.on_spike': 'rewind(before=2, batches=3)',
  'batch.size': 'ramp(0:16, 10_steps:32)',
  'batch.length': 'stages(3, 10_steps:7)',
  'optim.precision': 'bfloat16',
  'optim.ema': 'ema(decay=0.9)',
}


@pytest.mark.long
@pytest.mark.slow
def test_rewind(data, bad_row, tmp_path):
  """Back over a boundary of the batch, in rows and in length."""
  alone = tmp_path / 'a'
  train.train(config(data, **REWIND), str(alone))
  # The bad row is among the second 32. Back from step 12 to 8: its rows and
  # those of 9 to 11 are left out, as three batches would be too few.
  assert read_skips(str(alone)) == Skips((Skip(8, 96, 12),), False)
  [event] = events(alone, 'rewind')
  assert event.pop('time') > 0
  assert [event] == [{'step': 8, 'event': 'rewind', 'spike_step': 12, 'rows_skipped': 96}]
  assert [*losses(alone)] == [*range(2, STEPS + 1, 2)]
  assert len(events(alone, 'start')) == 2
  account = goodput.account(metrics.read(str(alone)))
  assert (account.starts, account.steps, account.lost_steps) == (1, STEPS, 4)
  assert account.seconds['lost'] > 0
  assert 0 <= account.seconds['downtime'] < 1
  rows = {8: [], 9: [], 10: [], 11: []}
  for row in consumed_lib.rows(str(alone), '8:12')[1]:
    rows[row['step']].append(row['row'])
  assert rows == {
    8: [*range(112, 128)],
    9: [*range(224, 240)],
    10: [*range(240, 256)],
    11: [*range(256, 288)],
  }


@pytest.mark.long
@pytest.mark.slow  # three runs
def test_rewind_is_replayed_exactly(data, bad_row, tmp_path, monkeypatch):
  """Alone, from its file, and preempted."""
  alone, replayed, stopped = (tmp_path / n for n in ('a', 'r', 's'))
  train.train(config(data, **REWIND), str(alone))
  # From scratch with that file the bad row is never met.
  replayed.mkdir()
  (replayed / 'skips.json').write_bytes((alone / 'skips.json').read_bytes())
  never = {**REWIND, 'optim.on_spike': 'stop'}
  train.train(config(data, **never), str(replayed))
  assert_same(state_of(alone), state_of(replayed))
  assert losses(alone) == losses(replayed)

  # Preempted after step 11, which leaves a checkpoint and, where the run goes
  # on, no compiled step for the 16 rows that it is sent back to.
  boundaries = iter(range(1, 100))
  monkeypatch.setattr(preemption, 'reached', lambda: next(boundaries) == 11)
  with pytest.raises(preemption.Preempted, match='saved step 11'):
    train.train(config(data, **REWIND), str(stopped))
  train.train(config(data, **REWIND), str(stopped))
  assert read_skips(str(stopped)) == read_skips(str(alone))
  assert_same(state_of(alone), state_of(stopped))
  assert losses(alone) == losses(stopped)


@pytest.mark.long
@pytest.mark.slow  # two runs; test_rewind stays
def test_a_rewind_that_was_cut_short_is_finished(data, tmp_path, monkeypatch):
  """Killed between the note and the deletion of what was given up."""
  workdir = tmp_path / 'w'
  train.train(config(data, **{'checkpoint.keep': 9}), str(workdir))
  undone = Skips((Skip(8, 48, 13),), pending=True)
  write_skips(str(workdir), undone)
  resumed = []
  fit = loop.fit
  monkeypatch.setattr(
    loop, 'fit', lambda job, state: resumed.append(int(state.step)) or fit(job, state)
  )
  train.train(config(data, **{'checkpoint.keep': 9}), str(workdir))
  assert resumed == [8]
  assert not read_skips(str(workdir)).pending
  assert events(workdir, 'rewind')[0]['rows_skipped'] == 48
  assert int(state_of(workdir).step) == STEPS


def test_policy_of_a_run():
  run = tiny.build(tiny.config(**tiny.MESHABLE), (2, 2, 2))
  assert run.spike_policy == SpikePolicy('stop', 0.0, 0)
