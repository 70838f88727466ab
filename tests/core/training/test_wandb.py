# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The real wandb, offline: `make wandb`. What it wrote is read back."""

import json
import pathlib
import struct

import pytest

from gpt_jax.__main__ import main
from gpt_jax.core.training import metrics
from tests.core.training.test_trackers import WANDB, training
from tests.support import tiny

wandb = pytest.importorskip('wandb')

# wandb's own warnings are none of ours.
pytestmark = pytest.mark.filterwarnings('default')


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
  """Keeps wandb's caches and settings off the user's."""
  home = str(tmp_path_factory.mktemp('home'))
  for name in ('HOME', 'WANDB_CACHE_DIR', 'WANDB_CONFIG_DIR', 'WANDB_DATA_DIR'):
    monkeypatch.setenv(name, home)


def records(path):
  """Reads wandb's file: LevelDB's log of protocol buffers, behind 7 bytes."""
  internal = pytest.importorskip('wandb.proto.wandb_internal_pb2')
  data, at, parts, found = path.read_bytes(), 7, [], []
  while at + 7 <= len(data):
    left = 32768 - at % 32768
    if left < 7:
      at += left
      continue
    _, size, kind = struct.unpack_from('<IHB', data, at)
    parts.append(data[at + 7 : at + 7 + size])
    at += 7 + size
    if kind in (1, 4):  # whole, or its last part
      found.append(internal.Record.FromString(b''.join(parts)))
      parts = []
  return found


def sessions(workdir):
  """Of each time that the run was opened: its id and what was logged."""
  # Ends wandb's service, which may still hold the end of a file.
  wandb.teardown()
  found = []
  for path in sorted(pathlib.Path(workdir).glob('wandb/offline-run-*/*.wandb')):
    read = records(path)
    ids = [r.run.run_id for r in read if r.WhichOneof('record_type') == 'run']
    logged = []
    for record in read:
      if record.WhichOneof('record_type') == 'history':
        items = {
          item.key or '/'.join(item.nested_key): json.loads(item.value_json)
          for item in record.history.item
        }
        logged.append({k: v for k, v in items.items() if k[0] != '_'})
    found.append((ids[0], logged))
  return found


def test_a_resumed_run_goes_on_in_the_same_run(tmp_path):
  for step in (0, 2):
    log = training(tmp_path, WANDB).open_metrics(step)
    for at in (3, 5):
      log.write(at, loss=at / 2, event='x')
      log.write(at, **{'eval/validation/loss': at / 4})
    log.close()
  first, second = sessions(tmp_path)
  assert first[0] == second[0]
  assert first[0] == (tmp_path / 'wandb/run_id').read_text().strip()
  # All of the steps that were taken again are there.
  assert second[1] == first[1]
  assert first[1] == [
    {'step': 3, 'loss': 1.5},
    {'step': 3, 'eval/validation/loss': 0.75},
    {'step': 5, 'loss': 2.5},
    {'step': 5, 'eval/validation/loss': 1.25},
  ]


def test_a_training_run(tmp_path):
  code = main(
    [
      'train',
      *tiny.SMOKE,
      *tiny.flags(
        model=dict(num_layers=1, d_model=24, context_length=31),
        batch=dict(size=8),
        schedule=dict(num_steps=7, name='constant(peak=1e-2)'),
        log=dict(every_steps=3, trackers=f'tensorboard, {WANDB}', sample_tokens=0),
      ),
      f'--workdir={tmp_path / "w"}',
    ]
  )
  assert code == 0
  ((_, logged),) = sessions(tmp_path / 'w')
  wanted = [
    (line['step'], line['loss']) for line in metrics.read(str(tmp_path / 'w')) if 'loss' in line
  ]
  assert [(v['step'], v['loss']) for v in logged if 'loss' in v] == wanted
  assert [step for step, _ in wanted] == [3, 6, 7]
  assert [*(tmp_path / 'w' / 'tensorboard').iterdir()]
