# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes train as one does.

Stopped and killed on the way, sent back by a spike, and continued by another
number of processes, and of devices.
"""

import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Sequence

import numpy as np
import pytest

from gpt_jax.core.rows import row_order
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import metrics
from tests.support import quick, tiny

ROOT = pathlib.Path(__file__).parents[3]
STEPS = 44
LENGTH, ROWS = 29, 12
SPIKE = 33  # the step, from 1, with a row that is unlike the others
FLAGS = [
  '--config=configs/smoke.py',
  *tiny.flags(
    tokenizer=dict(name='bytes'),
    model=dict(vocab_size=262, num_layers=1, d_model=32, context_length=LENGTH),
    mesh=dict(data=2, fsdp=2, tensor=2),
    batch=dict(size=ROWS),
    optim=dict(on_spike='rewind(threshold=0.25, before=2, batches=1)'),
    schedule=dict(num_steps=STEPS, name='constant(1e-2, warmup=3)'),
    checkpoint=dict(every_steps=10),
    eval=dict(every_steps=22, rows=8),
    log=dict(every_steps=2, sample_prompt=''),
    hosts=dict(heartbeat_seconds=10),
  ),
]


def write_text(folder: pathlib.Path) -> list[str]:
  """Writes texts in which step `SPIKE` jumps; returns their flags."""
  rows = STEPS * ROWS * 2

  class Store:
    folder, mixture, rows = 'none', '', 'stream'
    manifest = types.SimpleNamespace(pairs=False)
    parts = TokenStore.parts

    def __len__(self):
      return rows * LENGTH + 1

    def once(self, name, make):
      return make()

  source = row_order.RowSource(Store(), length=LENGTH, seed=0)
  bad = int(source.row_numbers([(SPIKE - 1) * ROWS + 5])[0])
  text = list(('ab' * LENGTH * rows)[: rows * LENGTH])
  noise = np.random.default_rng(0).integers(ord('A'), ord('Z'), LENGTH - 1)
  text[bad * LENGTH + 1 : (bad + 1) * LENGTH] = map(chr, noise)
  folder.mkdir()
  (folder / 'train.txt').write_text(''.join(text))
  (folder / 'held_out.txt').write_text('ab' * 300)
  return [
    f"--config.data.source=text('{folder}/train.txt')",
    f"--config.data.holdout=text('{folder}/held_out.txt')",
  ]


def start(
  workdir: pathlib.Path, num_processes: int, *flags: str, devices: int = 8
) -> list[subprocess.Popen]:
  """Starts the processes of a run on so many devices in all."""
  flags = ('train', *FLAGS, *flags, f'--workdir={workdir}')
  return start_command(flags, num_processes, devices)


def start_command(
  command: Sequence[str], num_processes: int, devices: int
) -> list[subprocess.Popen]:
  """Starts the processes of any command."""
  command = ['-m', 'gpt_jax', *command]
  command += ['--distributed'] * (num_processes > 1)
  return start_python(command, num_processes, devices)


def start_python(
  arguments: Sequence[str], num_processes: int, devices: int
) -> list[subprocess.Popen]:
  """Starts the processes of any program.

  In its arguments {process} is the number of a process.
  """
  devices //= num_processes
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': quick.xla_flags(devices)}
  if num_processes > 1:
    with socket.socket() as s:
      s.bind(('127.0.0.1', 0))
      env['JAX_COORDINATOR_ADDRESS'] = f'127.0.0.1:{s.getsockname()[1]}'
    env['JAX_NUM_PROCESSES'] = str(num_processes)
  return [
    subprocess.Popen(
      [sys.executable, *(a.replace('{process}', str(i)) for a in arguments)],
      cwd=ROOT,
      env={**env, 'JAX_PROCESS_ID': str(i)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(num_processes)
  ]


def ends(processes: list[subprocess.Popen]) -> tuple[list[int], list[str]]:
  """Exit codes and what was said on stderr."""
  said = [process.communicate()[1] for process in processes]
  return [process.returncode for process in processes], said


def reach(workdir: pathlib.Path, step: int, processes) -> None:
  """Waits until the run has logged a step."""
  while not any(m['step'] >= step for m in metrics.read(str(workdir))):
    if any(process.poll() is not None for process in processes):
      pytest.fail(str(ends(processes)))
    time.sleep(0.01)


def losses(workdir: pathlib.Path) -> dict[int, float]:
  return {m['step']: m['loss'] for m in metrics.read(str(workdir)) if 'loss' in m}


# Eight processes; tests/core/rows/test_row_order.py has shares.
@pytest.mark.slow
def test_processes_equal_one(tmp_path):
  text = write_text(tmp_path / 'text')
  one, many = tmp_path / 'one', tmp_path / 'many'
  alone = start(one, 1, *text)
  # Told to stop: both save the same step, together.
  two = start(many, 2, *text)
  reach(many, 4, two)
  two[1].send_signal(signal.SIGTERM)
  codes, said = ends(two)
  assert codes == [75, 75], said
  last = {text.splitlines()[-1].partition(' in ')[0] for text in said}
  (saved,) = last
  assert saved.startswith('gpt-jax train: stopped; saved step ')
  step = int(saved.split()[5])
  assert (many / f'checkpoints/{step}').is_dir()
  early = losses(many)

  # Killed: the others end too, and by themselves.
  four = start(many, 4, *text)
  reach(many, step + 2, four)
  four[3].kill()
  codes, said = ends(four)
  assert codes[3] == -signal.SIGKILL
  assert all(code not in (0, 75) for code in codes), said

  # On half of the devices; sent back on the way.
  flags = [*text, '--config.mesh.tensor=1']
  codes, said = ends(start(many, 2, *flags, devices=4))
  assert codes == [0, 0], said
  codes, said = ends(alone)
  assert codes == [0], said
  for workdir in (one, many):
    [rewind] = [m for m in metrics.read(str(workdir)) if m.get('event') == 'rewind']
    assert (rewind['step'], rewind['spike_step']) == (30, SPIKE)
    assert int(rewind['rows_skipped']) == (SPIKE - 30) * ROWS
    assert {p.name for p in (workdir / 'checkpoints').iterdir()} == {'30', '40', '44'}
  a, b = losses(one), losses(many)
  assert [*a] == [*b] == [*range(2, STEPS + 1, 2)]
  # Float32 sums in another order, over the steps.
  np.testing.assert_allclose([*a.values()], [*b.values()], rtol=1e-3)
  np.testing.assert_allclose([a[step] for step in early], [*early.values()], rtol=1e-5)
  evaluations = [
    [m[metrics.HELD_OUT] for m in metrics.read(str(w)) if metrics.HELD_OUT in m]
    for w in (one, many)
  ]
  assert len(evaluations[0]) == 2
  np.testing.assert_allclose(*evaluations, rtol=1e-3)

  # Each host traces its own devices; the first one tells.
  profile = ['profile', f'--workdir={many}', '--steps=43:45', '--distributed']
  processes = start_command(profile, 2, devices=4)
  # On stdout is what Gloo says, too.
  told, silent, *said = itertools.chain(
    *zip(*(process.communicate() for process in processes), strict=True)
  )
  assert [process.returncode for process in processes] == [0, 0], said
  assert '2 steps of ' in told
  assert 'on 2 device(s) of this host\n' in told
  assert 'of this host' not in silent
  [folder] = (many / 'profile/plugins/profile').iterdir()
  traces = sorted(file.name for file in folder.iterdir())
  assert [name[:10] for name in traces] == ['process_0_', 'process_1_']


ENDS = """
import os, time
from gpt_jax.core.runtime import hosts
hosts.initialize(join_seconds=60, heartbeat_seconds=10)
with hosts.together():
  if os.environ['JAX_PROCESS_ID'] == '1':
    time.sleep(3)
    raise ValueError('no disk')
"""


def test_one_that_fails_last_ends_those_at_their_end():
  codes, said = ends(start_python(['-c', ENDS], 2, 2))
  assert codes == [1, 1], said
  assert said[0].splitlines()[-1] == ('gpt-jax: failed: process 1 failed: ValueError: no disk')


@pytest.mark.slow
def test_preparation_that_fails_ends_the_others(tmp_path):
  source = "--config.data.source=text('nothing/of/this/name')"
  codes, said = ends(start(tmp_path / 'w', 2, source))
  assert codes == [2, 1], said
  reason = said[0].splitlines()[-1].partition(': ')[2]
  assert 'nothing/of/this/name' in reason
  assert said[1].splitlines()[-1] == (
    f'gpt-jax train: failed: process 0 failed: UsageError: {reason}'
  )
