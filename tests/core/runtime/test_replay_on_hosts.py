# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults of one device are found, and outvoted, by several processes."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.training import metrics
from tests.core.runtime.test_hosts import ends, start_python
from tests.support import tiny, whole_runs

STEPS = 11


class Case(NamedTuple):
  """Processes, the devices of all of them, and the device that is wrong."""

  hosts: int
  devices: int
  bad: int


CASES = {'the second of two': Case(2, 4, 3), 'the third of three': Case(3, 3, 2)}
FLAGS = [
  'train',
  '--config=configs/smoke.py',
  *tiny.flags(
    data=dict(source="text('configs/*.py')", holdout='none'),
    tokenizer=dict(name='bytes'),
    model=dict(
      num_layers=1, d_model=32, context_length=31, dropout='rates(embedding=0.1, attention=0.1)'
    ),
    mesh=dict(data=-1, fsdp=1),
    batch=dict(size=12),
    schedule=dict(num_steps=STEPS, name='constant(1e-3)'),
    checkpoint=dict(every_steps=4),
    log=dict(every_steps=1, sample_prompt=''),
    replay=dict(every_steps=3),
    hosts=dict(heartbeat_seconds=10),
  ),
]
# Trains while a device is wrong: at steps 3 and 7 (`once`), or `always`.
PROGRAM = """
import sys
from gpt_jax.__main__ import main
from gpt_jax.core.training import loop
from gpt_jax.resilience import replay
from tests.resilience import test_replay as faults

faults.BAD, kind, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]

if kind == 'once':
  loop.compile_stages = faults.wrong_at({3, 7})
if kind == 'always':
  compile_prints = replay.compile_shard_prints
  replay.compile_shard_prints = lambda *args: compile_prints(*args)._replace(
    call=faults.faulty(lambda: compile_prints(*args), 'gradient')
  )
sys.exit(main(argv))
"""


def trained(workdir, case, kind):
  """The exit codes of the processes, and what they said."""
  command = ['-c', PROGRAM, str(case.bad), kind, *FLAGS, '--distributed']
  return ends(start_python([*command, f'--workdir={workdir}'], case.hosts, case.devices))


@pytest.mark.long
@pytest.mark.slow  # six or nine processes
@pytest.mark.parametrize('name', CASES)
def test_faults_of_the_last_host(name, tmp_path):
  """Once: the same bits as without; always: the run ends and names it."""
  case = CASES[name]
  found = {kind: trained(tmp_path / kind, case, kind) for kind in ('none', 'once')}
  states, logged = [], []
  for kind, (codes, said) in found.items():
    assert codes == [0] * case.hosts, said
    state = whole_runs.state_of(tmp_path / kind)
    states.append(restore.fingerprint(state))
    lines = metrics.read(str(tmp_path / kind))
    logged.append([(x['step'], x['loss']) for x in lines if 'loss' in x])
  np.testing.assert_array_equal(*states)
  assert logged[0] == logged[1]
  assert len(logged[0]) == STEPS
  assert not (tmp_path / 'none' / 'replays').exists()
  folder = tmp_path / 'once' / 'replays'
  assert sorted(x.name for x in folder.iterdir()) == ['3_step.json', '8_copies.json']
  [device] = json.loads((folder / '8_copies.json').read_text())['devices']
  assert device['host'] == case.hosts - 1

  codes, said = trained(tmp_path / 'always', case, 'always')
  assert codes == [1] * case.hosts, said
  for text in said:
    assert 'did so again' in text.splitlines()[-1]
    assert f'(host {case.hosts - 1})' in text.splitlines()[-1]
