# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run whose hosts do not come back goes on with those that live.

Four processes; one is killed and its memory is gone; then there are fewer, of
which one is killed too; then four again. The state comes from the memory of the
hosts alone, where those that are left have all of it.
"""

import json
import math
import pathlib
import shutil
import signal

import numpy as np
import pytest

from gpt_jax.core.training import metrics
from tests.core.runtime.test_hosts import ends, losses, reach, start_python
from tests.support import tiny

STEPS, ROWS, LENGTH = 40, 10, 31
FLAGS = [
  'train',
  '--config=configs/smoke.py',
  *tiny.flags(
    data=dict(source="text('configs/*.py')", holdout='none'),
    tokenizer=dict(name='bytes'),
    model=dict(
      num_layers=1, d_model=32, context_length=LENGTH, dropout='rates(embedding=0.1, attention=0.1)'
    ),
    batch=dict(size=ROWS),
    schedule=dict(num_steps=STEPS, name='constant(1e-3, warmup=20)'),
    checkpoint=dict(local_every_steps=3),
    log=dict(every_steps=1, sample_prompt=''),
    hosts=dict(heartbeat_seconds=10),
  ),
]
# Trains, and writes which rows of which step a process fed: their hashes.
RECORDS = """
import hashlib, json, sys
from gpt_jax.__main__ import main
from gpt_jax.core.training.store_data import StoreData

batches, file = StoreData.batches, open(sys.argv[1], 'a')

def recorded(self, parts, start, rows, state):
  made = batches(self, parts, start, rows, state)
  for step, batch in enumerate(made, start=start):
    here = parts.host_rows(rows(step).count)
    for i, row in enumerate(batch['inputs']):
      digest = hashlib.sha256(row.tobytes()).hexdigest()
      file.write(json.dumps([step, here.start + i, digest]) + '\\n')
    file.flush()
    yield batch

StoreData.batches = recorded
sys.exit(main(sys.argv[2:]))
"""


def fed(folder: pathlib.Path) -> dict[tuple[int, int], set[str]]:
  """Step and row of its batch -> hashes of what any process fed there."""
  found = {}
  for file in folder.glob('fed*'):
    for line in file.read_text().splitlines():
      step, row, digest = json.loads(line)
      found.setdefault((step, row), set()).add(digest)
  return found


class Runs:
  """Starts of one run, on any number of hosts with memory of their own."""

  def __init__(self, folder: pathlib.Path, *flags: str):
    self.folder, self.workdir, self._flags = folder, folder / 'w', flags
    self.starts = 0
    folder.mkdir()

  def start(self, count: int):
    for i in range(count):
      (self.folder / f'host{i}').mkdir(exist_ok=True)
    self.starts += 1
    record = f'{self.folder}/fed{self.starts}-{{process}}'
    distributed = ['--distributed'] * (count > 1)
    return start_python(
      [
        '-c',
        RECORDS,
        record,
        *FLAGS,
        *self._flags,
        *distributed,
        f'--config.checkpoint.local_dir={self.folder}/host{{process}}',
        f'--workdir={self.workdir}',
      ],
      count,
      count,
    )

  def loses_the_last(self, count: int) -> None:
    """Trains on for a while; one host dies, with its memory."""
    done = max(losses(self.workdir), default=0) if self.starts else 0
    processes = self.start(count)
    # By then a save of each tier, if not the last, is complete on all.
    reach(self.workdir, done + 11, processes)
    processes[-1].kill()
    codes, said = ends(processes)
    assert codes[-1] == -signal.SIGKILL
    assert all(code not in (0, 75) for code in codes), said
    shutil.rmtree(self.folder / f'host{count - 1}')


@pytest.mark.slow  # twelve processes
@pytest.mark.long
@pytest.mark.parametrize(
  'fewer, every, flags, meshes',
  [
    # Neither the batch of 10 nor the width of 32 divides over three. Only the
    # hosts' memory has what is needed.
    (3, 100, (), [{'fsdp': 4}, {'data': 3}, {'fsdp': 4}]),
    # A third host is left out, and its memory with it.
    (
      2,
      5,
      ('--config.mesh.data=-1', '--config.mesh.fsdp=2'),
      [{'data': 2, 'fsdp': 2}, {'fsdp': 2}, {'data': 2, 'fsdp': 2}],
    ),
  ],
)
def test_fewer_hosts_train_as_all_did(tmp_path, fewer, every, flags, meshes):
  alone = Runs(tmp_path / 'alone', '--config.mesh.fsdp=1')
  ends_of_alone = ends(alone.start(1))
  assert ends_of_alone[0] == [0], ends_of_alone
  saves = f'--config.checkpoint.every_steps={every}'
  many = Runs(tmp_path / 'many', *flags, saves, '--config.batch.micro_rows=2')
  many.loses_the_last(4)
  many.loses_the_last(fewer)
  codes, said = ends(many.start(4))
  assert codes == [0] * 4, said
  if every > STEPS:
    assert all('restored from the local checkpoints' in text for text in said)
  # At most two rows at a time on a device.
  before, now = (math.ceil(math.ceil(ROWS / n) / 2) for n in (fewer, 4))
  assert (
    f'; micro-batches: {before} before, {now} now; the {ROWS} rows of a step '
    'are the same, and only rounding differs'
  ) in said[0]

  lines = metrics.read(str(many.workdir))
  starts = [m for m in lines if m.get('event') == 'start']
  assert [m['devices'] for m in starts] == [4, fewer, 4]
  for start, mesh in zip(starts, meshes, strict=True):
    assert {a: n for a, n in start['mesh'].items() if n > 1} == mesh
  assert 0 < starts[1]['step'] < starts[2]['step'] < STEPS
  # The same rows at the same places of each step, whoever fed them, also those
  # that were fed and lost.
  rows, same = fed(alone.folder), fed(many.folder)
  assert rows == same
  assert {*rows} == {(s, r) for s in range(STEPS) for r in range(ROWS)}
  assert {len(digests) for digests in rows.values()} == {1}
  a, b = losses(alone.workdir), losses(many.workdir)
  assert [*a] == [*b] == [*range(1, STEPS + 1)]
  # Float32 sums in another order, over the steps.
  np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-5)
  for workdir in (alone.workdir, many.workdir):
    logged = [m['tokens'] for m in metrics.read(str(workdir)) if 'tokens' in m]
    assert logged == [ROWS * LENGTH * step for step in range(1, STEPS + 1)]
