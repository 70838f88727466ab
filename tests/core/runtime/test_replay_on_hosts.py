# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults of one device are found, and outvoted, by several processes."""

import json

import numpy as np
import pytest

from gpt_jax.core.checkpoints import restore
from gpt_jax.core.training import metrics
from tests.core.runtime.test_hosts import ends, start_python
from tests.support import whole_runs

STEPS, HOSTS, BAD = 11, 3, 2  # the device, in the mesh; one on each host
FLAGS = [
  'train',
  '--config=configs/smoke.py',
  "--config.data.source=text('configs/*.py')",
  '--config.data.holdout=none',
  '--config.tokenizer.name=bytes',
  '--config.model.num_layers=1',
  '--config.model.d_model=32',
  '--config.model.context_length=31',
  '--config.model.dropout=rates(embedding=0.1, attention=0.1)',
  '--config.mesh.data=3',
  '--config.mesh.fsdp=1',
  '--config.batch.size=6',
  f'--config.schedule.num_steps={STEPS}',
  '--config.schedule.name=constant(1e-3)',
  '--config.checkpoint.every_steps=4',
  '--config.log.every_steps=1',
  '--config.log.sample_prompt=',
  '--config.replay.every_steps=3',
  '--config.hosts.heartbeat_seconds=10',
]
# Trains while a device is wrong: at steps 3 and 7 (`once`), or `always`.
PROGRAM = f"""
import sys
from gpt_jax.__main__ import main
from gpt_jax.core.training import loop
from gpt_jax.resilience import replay
from tests.resilience import test_replay as faults

faults.BAD, kind, argv = {BAD}, sys.argv[1], sys.argv[2:]

if kind == 'once':
  compile_stages, left, known = loop.compile_stages, {{3, 7}}, []

  def wrong(parts, done, found, *rest):
    compile_stages(parts, done, found, *rest)
    for shape, program in found.items():
      if program.call not in known:
        known.append(wrapped(program.call, parts.mesh))
        found[shape] = program._replace(call=known[-1])

  def wrapped(sound, mesh):
    def call(state, arrays, *rest):
      step = int(state.step) + 1
      if step not in left:
        return sound(state, arrays, *rest)
      left.remove(step)
      if step == 3:  # checked: one of its runs has a wrong parameter
        return sound(faults.with_flipped(state, {BAD}, mesh), arrays, *rest)
      state, out = sound(state, arrays, *rest)  # not checked
      return faults.with_flipped(state, {BAD}, mesh), out
    return call

  loop.compile_stages = wrong
if kind == 'always':
  compile_prints = replay.compile_shard_prints
  replay.compile_shard_prints = lambda *args: compile_prints(*args)._replace(
    call=faults.faulty(lambda: compile_prints(*args), 'gradient')
  )
sys.exit(main(argv))
"""


def trained(workdir, kind):
  """The exit codes of the processes, and what they said."""
  command = ['-c', PROGRAM, kind, *FLAGS, '--distributed']
  return ends(start_python([*command, f'--workdir={workdir}'], HOSTS, devices=HOSTS))


@pytest.mark.slow  # nine processes
def test_faults_of_one_host(tmp_path):
  """Once: the same bits as without; always: the run ends and names it."""
  found = {kind: trained(tmp_path / kind, kind) for kind in ('none', 'once')}
  states, logged = [], []
  for kind, (codes, said) in found.items():
    assert codes == [0] * HOSTS, said
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
  assert device['host'] == BAD

  codes, said = trained(tmp_path / 'always', 'always')
  assert codes == [1] * HOSTS, said
  for text in said:
    assert 'did so again' in text.splitlines()[-1]
    assert f'(host {BAD})' in text.splitlines()[-1]
