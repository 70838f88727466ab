# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Local checkpoints: no lost machine costs a step, and damage is never used."""

import json
import pathlib
import shutil
import signal

import jax
import numpy as np
import pytest

from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.spec import UsageError
from gpt_jax.resilience import local as local_lib
from gpt_jax.resilience.local import LocalCheckpoints
from gpt_jax.resilience.shards import FailurePlace, File, Writers, assign, missing, ring_step
from tests.core.checkpoints.test_checkpointer import (
  HERE,
  ONE,
  THERE,
  abstract,
  place,
  same_bits,
  state_at,
)
from tests.core.runtime.test_hosts import ends, reach, start_command, start_python
from tests.support import tiny, whole_runs

RECORD = {'lines': [{'step': 3, 'loss': 2.5}]}


# Who writes what ---------------------------------------------------------

A, B, C, D = map(FailurePlace, 'abcd')
# Two machines in each of two slices.
SLICES = [FailurePlace('a', 0), FailurePlace('b', 0), FailurePlace('c', 1), FailurePlace('d', 1)]


@pytest.mark.parametrize(
  'places, step',
  [
    ([A], 0),
    ([A, A], 0),
    ([A, B], 1),
    ([A, B, C, D], 1),
    # Two processes on each machine.
    ([A, A, B, B], 2),
    ([A, B, A, B], 1),
    (SLICES, 2),
    ([*SLICES, FailurePlace('e', 2), FailurePlace('f', 2)], 2),
  ],
)
def test_copies_go_to_another_machine_and_slice(places, step):
  assert ring_step(places) == step


@pytest.mark.parametrize(
  'sizes, holders, places, expected',
  [
    # Split over the processes: each shard is copied to the next one.
    ([7, 7, 7], [{0}, {1}, {2}], [A, B, C], [((0,), 1), ((1,), 2), ((2,), 0)]),
    # Replicated: two write it themselves, and all write equally much.
    ([5, 5], [{0, 1, 2, 3}] * 2, [A, B, C, D], [((0, 1), None), ((2, 3), None)]),
    # A replica on the same machine is no copy; one on another slice is better.
    ([3], [{0, 1}], [A, A, B, B], [((0,), 2)]),
    ([3], [{0, 1, 2}], SLICES, [((0, 2), None)]),
    ([3], [{0}], [A], [((0,), None)]),
  ],
)
def test_who_writes_a_shard(sizes, holders, places, expected):
  assert assign(sizes, holders, places) == [Writers(*x) for x in expected]


@pytest.mark.parametrize('seed', range(20))
def test_any_one_machine_may_be_lost(seed):
  rng = np.random.default_rng(seed)
  each = rng.integers(1, 4, size=rng.integers(2, 5))  # processes of a machine
  places = [FailurePlace(str(m)) for m, count in enumerate(each) for _ in range(count)]
  holders = [
    {*rng.choice(len(places), rng.integers(1, len(places) + 1)).tolist()} for _ in range(9)
  ]
  found = assign([1] * len(holders), holders, places)
  held = [[i for i, w in enumerate(found) if p in w.own or p == w.copy] for p in range(len(places))]
  for lost in {x.machine for x in places}:
    left = [one for one, x in zip(held, places, strict=True) if x.machine != lost]
    assert missing(len(holders), left) == []
  assert all({*w.own} <= h for w, h in zip(found, holders, strict=True))
  assert missing(len(holders) + 2, held) == [len(holders), len(holders) + 1]


# Saves of one process ----------------------------------------------------


def opened(tmp_path) -> LocalCheckpoints:
  (tmp_path / 'memory').mkdir(exist_ok=True)
  return LocalCheckpoints(str(tmp_path / 'w'), str(tmp_path / 'memory'))


def save(tmp_path, *steps, at=HERE):
  local = opened(tmp_path)
  for step in steps:
    local.save(place(state_at(step), *at), RECORD)
  local.close()


def restore(tmp_path, at=HERE, **steps):
  local = opened(tmp_path)
  target = abstract(place(state_at(0), *at))
  return local.restore(target, **{'at_least': 0, **steps})


def held(tmp_path):
  return sorted(p.name for p in tmp_path.glob('memory/*/*'))


@pytest.mark.parametrize('at', [ONE, HERE, THERE], ids=['one', 'here', 'there'])
def test_restored_on_any_mesh_bit_for_bit(tmp_path, at):
  save(tmp_path, 3)
  state, restored = restore(tmp_path, at)
  assert restored == (3, RECORD)
  assert same_bits(state, state_at(3))
  wanted = place(state_at(3), *at)
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


def test_an_older_one_goes_when_the_next_was_read_back(tmp_path, monkeypatch):
  local = opened(tmp_path)
  states = {step: place(state_at(step), *ONE) for step in (3, 5, 7, 11)}
  local.save(states[3], RECORD)
  local.save(states[5], RECORD)
  local.wait()
  assert held(tmp_path) == ['5-0.own']
  # Another byte is on the disk than was written.
  monkeypatch.setattr(File, 'damaged', lambda self: [0])
  local.save(states[7], RECORD)
  local.wait()
  assert held(tmp_path) == ['5-0.own']
  monkeypatch.undo()
  local.save(states[11], RECORD)
  local.forget_after(10)
  assert held(tmp_path) == []
  local.close(remove=True)
  assert not [*tmp_path.glob('memory/*')]


def flip(path: pathlib.Path, at: int = 1000) -> None:
  data = bytearray(path.read_bytes())
  data[at] ^= 4
  path.write_bytes(data)


def rename(path: pathlib.Path, run: str) -> None:
  """Makes the file one of another run, with right checksums."""
  file = File.read(str(path))
  shards = [(i, file.get(i)) for i in file.shards]
  path.unlink()
  File.write(str(path), file.manifest._replace(run=run), shards)


DAMAGES = {
  'a flipped byte': (flip, 'part 0 of params/kernel was changed'),
  'a flipped byte of the list': (lambda path: flip(path, -200), 'its list of shards was changed'),
  'cut': (lambda path: path.write_bytes(path.read_bytes()[:-1]), 'it is cut off'),
  'cut at the start': (lambda path: path.write_bytes(path.read_bytes()[1:]), 'it is cut off'),
  'empty': (lambda path: path.write_bytes(b''), 'it is cut off'),
  'another run': (lambda path: rename(path, 'ab12'), 'it is of another run'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_damage_is_named_and_the_older_tier_is_used(tmp_path, caplog, damage):
  persistent = Checkpointer(str(tmp_path / 'w'))
  persistent.save(place(state_at(2), *HERE))
  persistent.close()
  save(tmp_path, 3)
  (path,) = tmp_path.glob('memory/*/3-0.own')
  change, said = DAMAGES[damage]
  change(path)
  checkpointer = Checkpointer(str(tmp_path / 'w'), local=opened(tmp_path))
  with caplog.at_level('WARNING', 'gpt_jax'):
    state = checkpointer.restore(abstract(place(state_at(0), *HERE)))
  assert said in caplog.text
  assert str(path) in caplog.text
  assert same_bits(state, state_at(2))
  assert checkpointer.restored.step == 2
  assert held(tmp_path) == []
  checkpointer.close()


def test_the_newest_of_both_tiers_is_used(tmp_path):
  persistent = Checkpointer(str(tmp_path / 'w'), keep=9)
  for step in (2, 5):
    persistent.save(place(state_at(step), *ONE))
  persistent.close()
  target = abstract(place(state_at(0), *ONE))
  for local, at_most, expected in ((3, None, 5), (7, None, 7), (7, 6, 5), (3, 4, 3)):
    save(tmp_path, local, at=ONE)
    both = Checkpointer(str(tmp_path / 'w'), keep=9, local=opened(tmp_path))
    state = both.restore(target, at_most=at_most)
    assert same_bits(state, state_at(expected))
    assert both.restored.step == expected
    both.finish(state)  # it is saved in the workdir now
    assert not [*tmp_path.glob('memory/*')]
    for step in {*both.steps()} - {2, 5}:
      shutil.rmtree(tmp_path / f'w/checkpoints/{step}')


def test_an_older_local_one_is_newer_than_a_damaged_one(tmp_path):
  persistent = Checkpointer(str(tmp_path / 'w'))
  persistent.save(place(state_at(5), *ONE))
  persistent.close()
  (tmp_path / 'w/checkpoints/5/checksums/metadata').write_text('{}')
  save(tmp_path, 3, at=ONE)
  both = Checkpointer(str(tmp_path / 'w'), local=opened(tmp_path))
  state = both.restore(abstract(place(state_at(0), *ONE)))
  assert same_bits(state, state_at(3))
  assert both.steps() == []
  assert (tmp_path / 'w/checkpoints_damaged/5').is_dir()
  both.close()


def test_a_lost_shard_is_looked_for_in_the_other_file(tmp_path, caplog):
  """As if the machine held its neighbour's shards too."""
  save(tmp_path, 3)
  (path,) = tmp_path.glob('memory/*/3-0.own')
  shutil.copy(path, path.with_name('3-1.copy'))
  flip(path)
  with caplog.at_level('WARNING', 'gpt_jax'):
    state, _ = restore(tmp_path)
  assert 'part 0 of params/kernel was changed' in caplog.text
  assert same_bits(state, state_at(3))


def test_a_changed_array_shows_in_its_fingerprint(tmp_path, caplog):
  """Where the bits changed before they were written, and checksums agree."""
  save(tmp_path, 3)
  (path,) = tmp_path.glob('memory/*/3-0.own')
  file = File.read(str(path))
  shards = {i: bytearray(file.get(i)) for i in file.shards}
  shards[file.manifest.first()['params/bias']][1] ^= 1
  path.unlink()
  File.write(str(path), file.manifest, shards.items())
  with caplog.at_level('WARNING', 'gpt_jax'):
    assert restore(tmp_path) is None
  assert 'fingerprint differs in params/bias' in caplog.text


def test_a_workdir_begun_anew_takes_none_of_the_former_run(tmp_path):
  save(tmp_path, 3)
  shutil.rmtree(tmp_path / 'w')
  assert restore(tmp_path) is None


def test_an_unfit_folder_or_state_is_refused(tmp_path):
  file = tmp_path / 'file'
  file.touch()
  for folder, why in (
    ('gs://bucket/x', 'not a folder of this machine'),
    (file, 'is not a folder'),
    (tmp_path / 'none', 'is not a folder'),
  ):
    with pytest.raises(UsageError, match=f'checkpoint.local_dir=.*{why}'):
      LocalCheckpoints.check_folder(str(folder))
  save(tmp_path, 3)
  (tmp_path / 'w' / local_lib.NAME).write_text('{"run": "../x"}')
  with pytest.raises(UsageError, match=f'{local_lib.NAME}: is damaged'):
    opened(tmp_path)


# Several processes -------------------------------------------------------

MACHINES = """
import json, os, shutil, sys
from gpt_jax.core.runtime import hosts
hosts.initialize(join_seconds=60, heartbeat_seconds=10)
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from gpt_jax.resilience.local import LocalCheckpoints
from gpt_jax.core.optim.train_state import TrainState

me, memory = jax.process_index(), sys.argv[2]
devices = np.array(jax.devices())
# Split over the machines; split within each, and replicated over them.
SPLIT = Mesh(devices, ('a',)), PartitionSpec('a')
COPIED = Mesh(devices.reshape(2, 2), ('b', 'a')), PartitionSpec('a')

def state(mesh, spec):
  def placed(x, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i])
  return TrainState(
    placed(np.int32(3), PartitionSpec()),
    {'k': placed(np.arange(56, dtype=np.float32).reshape(8, 7), spec)},
    {'m': placed(np.arange(12, dtype=np.int8), spec)},
  )

def saved(lost, flipped, *at):
  os.makedirs(memory, exist_ok=True)
  local = LocalCheckpoints(sys.argv[1], memory)
  local.save(state(*at), {'of': me})
  local.wait()
  (folder,) = os.listdir(memory)
  names = sorted(os.listdir(os.path.join(memory, folder)))
  told = hosts.gather(names)
  local.close()
  if me in lost:
    shutil.rmtree(memory)
  if me in flipped:  # in a shard of an array that is split
    with open(f'{memory}/{folder}/3-{me}.own', 'r+b') as file:
      file.seek(14)
      byte = file.read(1)
      file.seek(14)
      file.write(bytes([byte[0] ^ 1]))
  hosts.gather(None)
  return told

def restored(*at):
  os.makedirs(memory, exist_ok=True)
  local, wanted = LocalCheckpoints(sys.argv[1], memory), state(*at)
  found = local.restore(
    jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      wanted,
    ),
    at_least=0,
  )
  same = found and all(
    np.asarray(x.data).tobytes() == np.asarray(y.data).tobytes()
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(wanted))
    for x, y in zip(a.addressable_shards, b.addressable_shards)
  )
  local.close(remove=True)
  return hosts.gather([same, found and list(found[1])])

out = []
with hosts.together():
  for at, lost, flipped, on in (
    (SPLIT, [1], [], SPLIT),
    (SPLIT, [0], [], COPIED),
    (SPLIT, [], [0, 1], COPIED),
    (SPLIT, [1], [0], SPLIT),
    (COPIED, [0], [], SPLIT),
    (COPIED, [0, 1], [], COPIED),
  ):
    out.append([saved(lost, flipped, *at), restored(*on)])
if me == 0:
  print('FOUND' + json.dumps(out))
"""


@pytest.mark.slow  # two processes
def test_what_one_machine_loses_comes_from_the_other(tmp_path):
  (tmp_path / 'w').mkdir()
  arguments = ['-c', MACHINES, str(tmp_path / 'w'), f'{tmp_path}/host{{process}}']
  processes = start_python(arguments, 2, 4)
  out = [process.communicate() for process in processes]
  assert [p.returncode for p in processes] == [0, 0], out
  (line,) = (x for x in out[0][0].splitlines() if x.startswith('FOUND'))
  cases = json.loads(line.removeprefix('FOUND'))
  both = [['3-0.copy', '3-0.own'], ['3-1.copy', '3-1.own']]
  # Where all shards are replicated, only the record is sent.
  apart = [['3-0.own'], both[1]]
  whole, nothing = [[True, [3, {'of': 0}]]] * 2, [[None, None]] * 2
  assert cases == [
    [both, whole],
    [both, whole],
    [both, whole],
    [both, nothing],
    [apart, whole],
    [apart, nothing],
  ]


# Whole runs --------------------------------------------------------------

FLAGS = [
  'train',
  *tiny.SMOKE,
  *tiny.flags(
    model=dict(num_layers=1, d_model=32, context_length=31, dropout='rates(embedding=0.1)'),
    mesh=dict(fsdp=4),
    batch=dict(size=4),
    schedule=dict(num_steps=24),
    checkpoint=dict(every_steps=100),
    eval=dict(every_steps=100, rows=4),
    log=dict(every_steps=1, sample_prompt=''),
  ),
]


def start(tmp_path, name):
  """Two hosts with two devices each, and no memory in common."""
  for i in range(2):
    (tmp_path / f'host{i}').mkdir(exist_ok=True)
  return start_command(
    [
      *FLAGS,
      '--config.checkpoint.local_every_steps=3',
      f'--config.checkpoint.local_dir={tmp_path}/host{{process}}',
      f'--workdir={tmp_path / name}',
    ],
    2,
    4,
  )


def killed_at(tmp_path, step):
  """Starts the run, and kills both hosts once it has logged a step."""
  processes = start(tmp_path, 'killed')
  reach(tmp_path / 'killed', step, processes)
  for process in processes:
    process.kill()
  codes, said = ends(processes)
  assert codes == [-signal.SIGKILL] * 2, said
  return said


@pytest.mark.slow  # three runs of two processes
def test_a_run_goes_on_from_what_its_hosts_hold(tmp_path, monkeypatch):
  # Each program is compiled once.
  for name, value in {
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'programs'),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }.items():
    monkeypatch.setenv(name, value)
  codes, said = ends(start(tmp_path, 'whole'))
  assert codes == [0, 0], said
  killed_at(tmp_path, 7)
  assert not [*(tmp_path / 'killed/checkpoints').iterdir()]
  held = {i: {file.suffix for file in (tmp_path / f'host{i}').glob('*/*')} for i in range(2)}
  assert {'.own', '.copy'} <= held[0] & held[1]
  # One host comes back without its memory.
  shutil.rmtree(tmp_path / 'host1')
  codes, said = ends(start(tmp_path, 'killed'))
  assert codes == [0, 0], said
  for text in said:
    assert 'restored from the local checkpoints' in text
    assert 'resuming after step' in text
  runs = [tmp_path / name for name in ('whole', 'killed')]
  whole_runs.same_state(*runs, step=24)
  assert whole_runs.logged(runs[0]) == whole_runs.logged(runs[1])
  # What memory held is free again.
  assert not [*tmp_path.glob('host*/*')]
