# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What decides training comes from the checkpoint, and nothing else does."""

import json
import shutil

import jax
import numpy as np
import pytest

from gpt_jax.commands import train
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.optim import spikes as policies
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.rows import batch_rows
from gpt_jax.core.runtime import preemption
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens import prepare
from gpt_jax.core.training import metrics, store_data
from gpt_jax.core.training import past as past_lib
from gpt_jax.core.training.past import History
from tests.support import tiny

SKIP = batch_rows.Skip(5, 7, 11)
LATER = batch_rows.Skip(13, 3, 17)


def at(step):
  """A state small enough to save at once."""
  params = {'a': np.float32([1, 2, 3]) + step}
  return TrainState(np.int32(step), params, {'b': np.float32([step])})


def save(workdir, past, step):
  checkpointer = Checkpointer(str(workdir), keep=9, record=past.record)
  checkpointer.finish(jax.device_put(at(step)))


def restored(workdir):
  """The history that a process has after it restored the newest checkpoint."""
  past = History(str(workdir))
  checkpointer = Checkpointer(str(workdir), read_only=True)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), at(0))
  assert checkpointer.restore(abstract) is not None
  past.restart(checkpointer.restored)
  return past


def log(workdir, past, *lines):
  """Writes lines as a run does."""
  log = metrics.Metrics(str(workdir), step=0, active=True, keep=past.add)
  for line in lines:
    log.write(**line)
  log.close()


LINES = [
  {'step': 1, 'loss': 5.25, 'tokens_per_second': 3.0},
  {'step': 2, 'event': 'skipped', 'spike': 'spikes/2.json'},
  {'step': 2, 'loss': 0.1 + 0.2},
  {'step': 3, 'event': 'unlogged', 'routers': [{'x': 1.5}]},
  {'step': 4, 'eval/validation/loss': 4.5, 'eval_seconds': 1.0},
  {'step': 5, 'eval/validation/loss': float('nan')},
  {'step': 5, 'event': 'unlogged', 'routers': [{'x': 2.5}]},
]
KEPT = [
  {'step': 1, 'loss': 5.25},
  {'step': 2, 'event': 'skipped'},
  {'step': 2, 'loss': 0.1 + 0.2},
  {'step': 4, 'eval/validation/loss': 4.5},
  {'step': 5, 'eval/validation/loss': float('nan')},
  {'step': 5, 'event': 'unlogged', 'routers': [{'x': 2.5}]},
]


def same(found, wanted):
  """NaN is NaN."""
  assert repr(found) == repr(wanted)


def warnings(caplog):
  return [r.getMessage() for r in caplog.records if r.name == 'gpt_jax']


LOST = {
  'whole': '',
  'deleted': 'is missing or empty',
  'cut': 'lacks lines of the steps 2 to 5',
  'empty': 'is missing or empty',
  'without the first': 'lacks lines of the steps 1 to 1',
}


@pytest.mark.parametrize('how', LOST)
def test_the_past_is_that_of_the_checkpoint(tmp_path, how, caplog):
  past = History(str(tmp_path))
  log(tmp_path, past, *LINES)
  save(tmp_path, past, 5)
  file = tmp_path / 'metrics.jsonl'
  if how == 'deleted':
    file.unlink()
  elif how == 'cut':
    file.write_bytes(file.read_bytes()[:200])
  elif how == 'empty':
    file.write_bytes(b'')
  elif how == 'without the first':
    # As where it was emptied while the run went on.
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b''.join(lines[2:]))
  with caplog.at_level('WARNING', 'gpt_jax'):
    same(restored(tmp_path).lines(5), KEPT)
  (said,) = warnings(caplog) or ['']
  assert said.startswith(f'{file}: {LOST[how]}; ' if LOST[how] else '')
  assert ('will have a gap' in said) == (how != 'whole')


def test_a_lost_log_is_told_of_though_nothing_was_logged_in_time(tmp_path, caplog):
  """The checkpoint was saved before the first loss was due."""
  past = History(str(tmp_path))
  checkpointer = Checkpointer(str(tmp_path), record=past.record)
  checkpointer.finish(jax.device_put(at(2)))
  with caplog.at_level('WARNING', 'gpt_jax'):
    restored(tmp_path)
  (said,) = warnings(caplog)
  assert said.startswith(f'{tmp_path}/metrics.jsonl: is missing or empty; ')


def test_only_the_losses_that_count_are_kept():
  past = History('nowhere')
  for step in range(1, 150):
    past.add({'step': step, 'loss': float(step)})
  past.add({'step': 3, 'eval/validation/loss': 2.0})
  lines = past.record(131)['lines']
  found = [line['loss'] for line in lines if 'loss' in line]
  assert found == [float(step) for step in range(32, 132)]
  assert {'step': 3, 'eval/validation/loss': 2.0} in lines


# Rows left out ------------------------------------------------------------


@pytest.fixture
def skipped(tmp_path):
  """A workdir whose checkpoint of step 13 was trained without some rows."""
  past_lib.write_skips(str(tmp_path), batch_rows.Skips((SKIP,)))
  save(tmp_path, History(str(tmp_path)), 13)
  return tmp_path


def test_missing_rows_left_out_are_those_of_the_checkpoint(skipped):
  (skipped / 'skips.json').unlink()
  assert past_lib.known_skips(str(skipped)).skips == (SKIP,)
  assert restored(skipped).skips.skips == (SKIP,)
  assert past_lib.read_skips(str(skipped)).skips == (SKIP,)


def test_a_rewind_since_the_checkpoint_is_in_the_file(skipped):
  past_lib.write_skips(str(skipped), batch_rows.Skips((SKIP, LATER)))
  assert restored(skipped).skips.skips == (SKIP, LATER)


@pytest.mark.parametrize(
  'other', [(), (SKIP._replace(rows=8),), (LATER,), (SKIP._replace(step=4),)]
)
def test_other_rows_left_out_are_refused(skipped, other):
  past_lib.write_skips(str(skipped), batch_rows.Skips(other))
  for check in (restored, lambda w: past_lib.known_skips(str(w))):
    with pytest.raises(UsageError, match='the checkpoint of step 13') as e:
      check(skipped)
    assert str(e.value).startswith(f'{skipped}/skips.json: ')


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: text.replace('"rows": 7', '"rows": 8'),
    lambda text: text[:-20],
    lambda text: '\0' * len(text),
    lambda text: '',
    lambda text: '[]',
    lambda text: 'ÿ',
  ],
)
def test_a_changed_file_is_refused(skipped, damage):
  file = skipped / 'skips.json'
  file.write_text(damage(file.read_text()), encoding='latin-1')
  with pytest.raises(UsageError, match=r'skips\.json: is damaged or was cha'):
    History(str(skipped))


# Whole runs ---------------------------------------------------------------


def config(folder, **changes):
  return tiny.config(
    **{
      **tiny.MESHABLE,
      'model.vocab_size': 264,
      'model.num_layers': 1,
      'data.source': f"text('{folder}/*.txt')",
      'data.holdout': 'none',
      'tokenizer.name': 'bytes',
      'schedule.num_steps': 17,
      'schedule.name': 'constant(peak=1e-3)',
      'checkpoint.every_steps': 11,
      'log.every_steps': 1,
      'log.sample_prompt': '',
      **changes,
    }
  )


def write_text(folder, num_words):
  rng = np.random.default_rng(0)
  words = ' '.join(str(n) for n in rng.integers(1000, size=num_words))
  (folder / 'a.txt').write_text(words)


@pytest.mark.slow
def test_a_spike_is_measured_from_the_same_losses(tmp_path, monkeypatch):
  """A run goes on without its metrics.jsonl as it would have with it."""
  write_text(tmp_path, 2000)
  changes = {'data.store': f'{tmp_path}/data', 'optim.on_spike': 'stop(threshold=50)'}
  seen = {}

  def is_spike(policy, loss, grad_norm, logged):
    seen[loss] = [*logged]
    return policies.is_spike(policy, loss, grad_norm, logged)

  monkeypatch.setattr(past_lib, 'is_spike', is_spike)
  train.train(config(tmp_path, **changes), f'{tmp_path}/whole')
  whole, seen = seen, {}
  boundaries = iter(range(1, 100))
  with monkeypatch.context() as m:
    m.setattr(preemption, 'reached', lambda: next(boundaries) == 13)
    with pytest.raises(preemption.Preempted, match='saved step 13'):
      train.train(config(tmp_path, **changes), f'{tmp_path}/resumed')
  (tmp_path / 'resumed/metrics.jsonl').unlink()
  train.train(config(tmp_path, **changes), f'{tmp_path}/resumed')
  assert len(whole) == 17
  assert max(map(len, whole.values())) == 16
  assert seen == whole


@pytest.mark.slow
def test_another_token_store_is_refused(tmp_path, monkeypatch):
  """Prepared again with more text, or of that name elsewhere."""
  write_text(tmp_path, 2000)
  workdir = tmp_path / 'w'
  changes = {'schedule.num_steps': 3}
  train.train(config(tmp_path, **changes), str(workdir))
  shutil.move(workdir / 'data', tmp_path / 'moved')

  write_text(tmp_path, 2100)
  for more in ({}, {'data.store': f'{tmp_path}/other'}):
    with pytest.raises(UsageError, match='was trained on the token store') as e:
      train.train(config(tmp_path, **changes, **more), str(workdir))
    assert str(e.value).startswith(f'--workdir={workdir}: its checkpoint of s')
  # What took long to prepare stays.
  assert (tmp_path / 'other/manifest.json').exists()
  with pytest.raises(UsageError, match='was trained on the token store'):
    store_data.rows(str(workdir), '2')
  (workdir / 'spikes').mkdir()
  spike = dict.fromkeys(('step', 'learning_rate', *past_lib.FIGURES), 2)
  spike |= {'first_row': 16, 'num_rows': 16}
  length = config(tmp_path).model.context_length
  spike |= {'row_tokens': length, 'first_index': 16}
  (workdir / 'spikes/2.json').write_text(json.dumps(spike))
  with pytest.raises(UsageError, match='was trained on the token store'):
    store_data.spike(str(workdir / 'spikes/2.json'))

  # The same store elsewhere, and in another compression.
  shutil.rmtree(workdir / 'data')
  moved = {'data.store': f'{tmp_path}/moved'}
  train.train(config(tmp_path, **changes, **moved), str(workdir))
  write_text(tmp_path, 2000)
  zstd = config(tmp_path, **{'data.compression': 'zstd'})
  prepare.prepare(zstd, str(workdir / 'data'))
  _, rows = store_data.rows(str(workdir), '2')
  assert len([*rows]) == 16
  store_data.spike(str(workdir / 'spikes/2.json'))


def test_a_checkpoint_without_a_record_is_refused(tmp_path):
  past = History(str(tmp_path))
  with pytest.raises(UsageError, match='step 7 holds no record of the run'):
    past.restart(restore.Restored(7, None))
