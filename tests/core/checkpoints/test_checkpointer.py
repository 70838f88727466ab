# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the same bits on any mesh, and damage is never used."""

import contextlib
import gc
import logging
import pathlib
import resource
import shutil
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorstore as ts
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint._src.serialization import ocdbt_utils

from gpt_jax.core.checkpoints import checkpointer as checkpoint
from gpt_jax.core.checkpoints import restore as restore_lib
from gpt_jax.core.checkpoints.checkpointer import Checkpointer, DamageError
from gpt_jax.core.checkpoints.restore import Array, database, difference, fingerprint, reason_of
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.opening import streaming

# Where Orbax fails to read one array it drops the tasks that read the others.
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')

DTYPES = ['float32', 'bfloat16', 'int32', 'uint8']
SHAPE = (3, 5, 7)


@pytest.fixture(autouse=True)
def collect():
  """Makes Python find the dropped tasks in the test that caused them."""
  yield
  gc.collect()


def random_bits(dtype, *shape, seed=0):
  """Any bits at all: NaNs, infinities and signed zeros among them."""
  rng = np.random.default_rng(seed)
  size = jnp.dtype(dtype).itemsize
  raw = rng.integers(256, size=(*shape, size), dtype=np.uint8)
  return raw.view(jnp.dtype(dtype))[..., 0]


def mesh(*sizes):
  devices = np.array(jax.devices()[: np.prod(sizes)])
  return Mesh(devices.reshape(sizes), ('a', 'b'))


def same_bits(one, other):
  return all(
    x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  )


# The fingerprint ---------------------------------------------------------


@pytest.mark.parametrize('dtype', DTYPES)
def test_fingerprint_is_its_formula(dtype):
  x = random_bits(dtype, *SHAPE)
  bits = x.view(f'u{x.dtype.itemsize}').ravel().tolist()
  expected = sum(b * (2 * i + 1) for i, b in enumerate(bits)) % 2**32
  assert fingerprint({'x': x}).tolist() == [expected]


def test_fingerprint_has_one_number_for_each_array():
  tree = {'b': [random_bits('float32', 5), np.float32(3)], 'a': np.int32(7)}
  found = fingerprint(tree)
  assert found.dtype == jnp.uint32
  assert found[0] == 7
  assert found.shape == (3,)


@settings(max_examples=100)
@given(
  dtype=st.sampled_from(DTYPES),
  where=st.tuples(*(st.integers(0, size - 1) for size in SHAPE)),
  data=st.data(),
)
def test_fingerprint_sees_every_flipped_bit(dtype, where, data):
  x = random_bits(dtype, *SHAPE)
  bit = data.draw(st.integers(0, 8 * x.dtype.itemsize - 1))
  damaged = x.copy()
  unsigned = damaged.view(f'u{x.dtype.itemsize}')
  unsigned[where] ^= np.array(1 << bit, unsigned.dtype)
  assert fingerprint([x]).tolist() != fingerprint([damaged]).tolist()


def test_fingerprint_sees_values_that_changed_places():
  x = random_bits('float32', 5, 7)
  one = fingerprint([x]).tolist()
  rolled = fingerprint([np.roll(x, 1, axis=0)]).tolist()
  transposed = fingerprint([np.ascontiguousarray(x.T)]).tolist()
  assert one != rolled and one != transposed and rolled != transposed


@pytest.mark.parametrize(
  'sizes, spec', [((8, 1), ('a',)), ((2, 4), ('b', 'a')), ((4, 2), (None, 'b'))]
)
def test_fingerprint_does_not_depend_on_sharding(sizes, spec):
  x = random_bits('float32', 8, 16, 3)
  placed = jax.device_put(x, NamedSharding(mesh(*sizes), PartitionSpec(*spec)))
  assert not placed.sharding.is_fully_replicated
  assert fingerprint([placed]).tolist() == fingerprint([x]).tolist()


# Saving and restoring ----------------------------------------------------


def state_at(step):
  """A state with Adam's moments; random, so that it does not compress."""
  rng = np.random.default_rng(step)
  params = {
    'kernel': np.float32(rng.normal(size=(64, 48))),
    'bias': rng.normal(size=16).astype(jnp.bfloat16),
  }
  opt_state = jax.tree.map(
    lambda x: np.asarray(rng.normal(size=x.shape).astype(x.dtype)),
    jax.eval_shape(optax.adam(1e-3).init, params),
  )
  return TrainState(np.int32(step), params, opt_state)


def place(state, sizes, spec):
  """On a mesh, matrices split by `spec` and the rest copied."""

  def sharding(x):
    return NamedSharding(mesh(*sizes), PartitionSpec(*spec) if x.ndim == 2 else PartitionSpec())

  return jax.tree.map(lambda x: jax.device_put(x, sharding(x)), state)


def abstract(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


ONE = ((1, 1), ())
HERE = ((2, 4), ('a', 'b'))
THERE = ((4, 2), ('b', 'a'))


def save(workdir, *steps, keep=2, at=HERE):
  checkpointer = Checkpointer(str(workdir), keep=keep)
  for step in steps:
    checkpointer.save(place(state_at(step), *at))
  checkpointer.close()


def restore(workdir, at=HERE, read_only=False):
  """The state and the steps that are left."""
  target = abstract(place(state_at(0), *at))
  checkpointer = Checkpointer(str(workdir), keep=2, read_only=read_only)
  try:
    return checkpointer.restore(target), checkpointer.steps()
  finally:
    checkpointer.close()


@pytest.mark.parametrize('at', [ONE, HERE, THERE], ids=['one', 'here', 'there'])
def test_restored_on_any_mesh_bit_for_bit(tmp_path, at):
  save(tmp_path, 3)
  state, steps = restore(tmp_path, at=at)
  assert steps == [3]
  assert isinstance(state, TrainState)
  assert same_bits(state, state_at(3))
  wanted = place(state_at(3), *at)
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
  assert type(state.opt_state[0]) is type(wanted.opt_state[0])


def test_from_one_device_to_eight_to_two(tmp_path):
  """Each run restores what a run on other devices saved."""
  places = [ONE, HERE, ((1, 2), ('b',))]
  save(tmp_path / '0', 3, at=ONE)
  for i, at in enumerate(places[1:]):
    state, _ = restore(tmp_path / str(i), at=at)
    checkpointer = Checkpointer(str(tmp_path / str(i + 1)))
    checkpointer.finish(state)
    assert len(state.params['kernel'].sharding.device_set) == (8, 2)[i]
    assert same_bits(state, state_at(3))
  assert same_bits(restore(tmp_path / '2', at=ONE)[0], state_at(3))


def test_a_model_is_read_without_its_moments(tmp_path, monkeypatch):
  """Two thirds of the bytes stay on disk; what is read is verified."""
  save(tmp_path, 3)
  target = abstract(place(state_at(3), *THERE))
  reader = Checkpointer(str(tmp_path), read_only=True)
  state = reader.restore(target, moments=False)
  assert isinstance(state, TrainState) and state.opt_state == ()
  assert same_bits(state.params, state_at(3).params) and int(state.step) == 3
  for x, y in zip(*map(jax.tree.leaves, (state, target)), strict=False):
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
  sums = restore_lib.fingerprint
  monkeypatch.setattr(restore_lib, 'fingerprint', lambda tree: sums(tree) + 1)
  with pytest.raises(DamageError, match='fingerprint differs in step, params/'):
    reader.restore(target, moments=False)
  reader.close()


def test_an_interrupted_read_is_no_damage(tmp_path, monkeypatch):
  """Ctrl-C comes as the cause of an error of Orbax."""
  save(tmp_path, 3)

  def interrupted(*_, **__):
    raise Exception('while reading') from KeyboardInterrupt()

  monkeypatch.setattr(restore_lib.ocp.PyTreeCheckpointHandler, 'restore', interrupted)
  with pytest.raises(KeyboardInterrupt):
    restore(tmp_path)


def test_no_checkpoint_yet(tmp_path):
  assert restore(tmp_path) == (None, [])


@pytest.mark.parametrize('relative', [False, True])
@pytest.mark.parametrize(
  'name', ['[a]', 'x[1-9]', '[!a]', '*', '?', '**', 'a/[b]/c', '%41', '#', '|']
)
def test_no_character_of_a_path_is_a_pattern(tmp_path, monkeypatch, name, relative):
  """Beside a folder that a pattern would find, whose arrays are others."""
  monkeypatch.chdir(tmp_path)
  for other in ('a', 'x3', 'b'):
    save(tmp_path / other, 7)
  workdir = pathlib.Path(name) if relative else tmp_path / name
  save(workdir, 3, 5, keep=1)
  state, steps = restore(workdir)
  assert steps == [5]
  assert same_bits(state, state_at(5))
  target = abstract(place(state_at(5), *ONE))
  step, arrays = streaming.opened(str(workdir), target)
  assert step == 5
  found = np.asarray(arrays['kernel'])
  np.testing.assert_array_equal(found, state_at(5).params['kernel'])


@pytest.mark.parametrize('name', ['a\\b', 'a/b\\', 'a\udc80'])
def test_a_path_that_cannot_be_saved_in_is_refused(tmp_path, name):
  workdir = str(tmp_path / name)
  target = abstract(place(state_at(0), *ONE))
  for use in (
    lambda: Checkpointer(workdir),
    lambda: Checkpointer(workdir, read_only=True),
    lambda: restore_lib.newest(workdir),
    lambda: streaming.opened(workdir, target),
    lambda: streaming.write(workdir, target, {}, lambda to: None),
  ):
    with pytest.raises(UsageError, match='arrays cannot be saved in it; '):
      use()
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize('lost', ['all', 'some'])
def test_a_merge_that_lost_arrays_is_a_failed_save(tmp_path, monkeypatch, logged, lost):
  """The older checkpoint stays, and the save is tried again."""

  async def merge(directory, ts_context, **_):
    if lost == 'some':
      spec = database(directory)
      await (await ts.KvStore.open(spec)).write(b'step/.zarray', b'{}')

  checkpointer = Checkpointer(str(tmp_path), keep=1)
  checkpointer.save(place(state_at(3), *HERE))
  checkpointer.wait()
  with monkeypatch.context() as patched:
    patched.setattr(ocdbt_utils, 'merge_ocdbt_per_process_files', merge)
    checkpointer.save(place(state_at(5), *HERE))
    checkpointer.wait()
  (said,) = logged()
  assert 'the checkpoint of step 5 was not written (OSError: not all' in said
  assert restore(tmp_path)[1] == [3]
  checkpointer.finish(place(state_at(5), *HERE))
  state, steps = restore(tmp_path)
  assert steps == [5] and same_bits(state, state_at(5))


def test_old_checkpoints_are_deleted(tmp_path):
  save(tmp_path, 1, 2, 5, keep=2)
  state, steps = restore(tmp_path)
  assert steps == [2, 5]
  assert int(state.step) == 5


# Damage -------------------------------------------------------------------


def largest_file(workdir, step):
  files = [p for p in (workdir / f'checkpoints/{step}').rglob('*') if p.is_file()]
  found = max(files, key=lambda p: p.stat().st_size)
  # It holds the arrays: 64 * 48 floats, three times.
  assert found.stat().st_size > 3 * 64 * 48
  return found


def flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def truncate(path):
  # The file's tail is an index that Orbax copies elsewhere; data go first.
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
  path.write_bytes(b'')


def delete(path):
  path.unlink()


def not_utf8(path):
  path.write_bytes(b'\xff' + path.read_bytes())


def zeros(path):
  path.write_bytes(bytes(path.stat().st_size))


def a_number(path):
  path.write_bytes(b'3')


def a_list(path):
  path.write_bytes(b'[[]]')


def deep(path):
  path.write_bytes(b'[' * 100_000)


def folder(path):
  path.unlink()
  path.mkdir()


DAMAGES = [flip, truncate, empty, delete]
DAMAGES += [not_utf8, zeros, a_number, a_list, deep, folder]
# All that Orbax writes, and we. Of data files there are many: see below.
FILES = [
  '_CHECKPOINT_METADATA',
  'commit_success.txt',
  'checksums/metadata',
  'checksums/commit_success.txt',
  'state/_METADATA',
  'state/_sharding',
  'state/array_metadatas/process_0',
  'state/commit_success.txt',
  'state/manifest.ocdbt',
  'state/ocdbt.process_0/manifest.ocdbt',
]
# Without them nothing can be read, or was never committed.
NEEDED = {
  ('commit_success.txt', delete),
  *(('checksums/metadata', damage) for damage in DAMAGES),
  *(('state/manifest.ocdbt', damage) for damage in DAMAGES),
  *(('state/_METADATA', damage) for damage in DAMAGES if damage is not flip),
}


@pytest.fixture(scope='module')
def two(tmp_path_factory):
  """A workdir with checkpoints of steps 3 and 5; copy it."""
  workdir = tmp_path_factory.mktemp('two')
  save(workdir, 3, 5)
  return workdir


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize('file', [*FILES, 'state/d', 'state/ocdbt.process_0/d'])
def test_damage_is_found_or_does_no_harm(two, tmp_path, caplog, file, damage):
  """Whatever file is hit: the right bits of step 5, or those of step 3."""
  shutil.copytree(two, tmp_path, dirs_exist_ok=True)
  path = tmp_path / 'checkpoints/5' / file
  if path.is_dir():
    path = max(path.iterdir(), key=lambda p: p.stat().st_size)
  damage(path)
  # Before the data are opened, `train` asks which checkpoint is the newest.
  known = restore_lib.newest(str(tmp_path))
  assert known is not None
  unknown = file == 'checksums/metadata' or (file, damage) == ('commit_success.txt', delete)
  assert known.step == (3 if unknown else 5)
  target = abstract(place(state_at(0), *ONE))
  step, arrays = streaming.opened(str(tmp_path), target)
  np.testing.assert_array_equal(np.asarray(arrays['kernel']), state_at(step).params['kernel'])
  with caplog.at_level('WARNING', 'gpt_jax'):
    state, steps = restore(tmp_path)
  if steps == [3, 5]:
    assert (file, damage) not in NEEDED and not file.endswith('/d')
    assert same_bits(state, state_at(5))
    return
  assert steps == [3]
  assert same_bits(state, state_at(3))
  assert (tmp_path / 'checkpoints_damaged/5').is_dir()
  assert f'{tmp_path}/checkpoints/5 is damaged' in caplog.text


def test_a_damaged_step_is_saved_again(two, tmp_path):
  shutil.copytree(two, tmp_path, dirs_exist_ok=True)
  truncate(largest_file(tmp_path, 5))
  assert restore(tmp_path)[1] == [3]
  save(tmp_path, 5)
  state, steps = restore(tmp_path)
  assert same_bits(state, state_at(5))
  assert steps == [3, 5]


def test_a_wrong_number_that_reads_well_is_damage_too(two, tmp_path):
  """Another state under this one's fingerprint, as a torn copy may leave."""
  shutil.copytree(two, tmp_path / 'a')
  other = state_at(5)
  other.params['kernel'][7, 11] += 1
  checkpointer = Checkpointer(str(tmp_path / 'b'))
  checkpointer.save(place(other, *HERE))
  checkpointer.close()
  (tmp_path / 'a/checkpoints/5/state').rename(tmp_path / 'gone')
  (tmp_path / 'b/checkpoints/5/state').rename(tmp_path / 'a/checkpoints/5/state')
  state, steps = restore(tmp_path / 'a')
  assert same_bits(state, state_at(3))
  assert steps == [3]


def test_reading_alone_moves_nothing(two, tmp_path):
  shutil.copytree(two, tmp_path, dirs_exist_ok=True)
  truncate(largest_file(tmp_path, 5))
  state, steps = restore(tmp_path, read_only=True)
  assert same_bits(state, state_at(3))
  assert steps == [3, 5]
  assert not (tmp_path / 'checkpoints_damaged').exists()


def contents(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.mark.parametrize('read_only', [False, True])
def test_with_none_sound_nothing_is_touched(two, tmp_path, read_only):
  shutil.copytree(two, tmp_path, dirs_exist_ok=True)
  truncate(largest_file(tmp_path, 3))
  (tmp_path / 'checkpoints/5/commit_success.txt').unlink()
  before = contents(tmp_path)
  with pytest.raises(DamageError) as error:
    restore(tmp_path, read_only=read_only)
  message = str(error.value)
  assert message.startswith(f'{tmp_path}/checkpoints/5: damaged (')
  assert 'half-written' in message
  assert 'no older checkpoint is sound; nothing was deleted' in message
  assert '\n' not in message
  # The command line ends with 1, not as after bad usage.
  assert not isinstance(error.value, UsageError)
  assert contents(tmp_path) == before


def test_a_half_written_one_is_named_and_goes_after_the_next(tmp_path, caplog):
  save(tmp_path, 3)
  half = tmp_path / 'checkpoints/5.orbax-checkpoint-tmp'
  shutil.copytree(tmp_path / 'checkpoints/3', half)
  with caplog.at_level('WARNING', 'gpt_jax'):
    state, steps = restore(tmp_path)
  assert steps == [3] and int(state.step) == 3
  assert f'{half} is half-written' in caplog.text
  assert half.exists()
  save(tmp_path, 5)
  assert not half.exists()


# Another config -----------------------------------------------------------


def test_another_state_is_not_damage(two):
  """It is refused by names, before an array is read."""
  before = contents(two)
  wanted = state_at(0)
  wanted.params['kernel'] = wanted.params['kernel'][:, :40]
  wanted.params['bias'] = np.float32(wanted.params['bias'])
  wanted.params['scale'] = wanted.params.pop('bias')
  wanted = wanted._replace(opt_state=jax.tree.map(np.float32, wanted.opt_state))
  checkpointer = Checkpointer(str(two), keep=2)
  with pytest.raises(UsageError) as error:
    checkpointer.restore(abstract(place(wanted, *ONE)))
  checkpointer.close()
  assert str(error.value) == (
    f'{two}/checkpoints/5: holds another state than the config describes: it '
    'lacks params/scale; has besides params/bias; has otherwise '
    'params/kernel (float32[64,48], not float32[64,40]), '
    'opt_state/0/count (int32[], not float32[]), '
    'opt_state/0/mu/bias (bfloat16[16], not float32[16]), '
    'opt_state/0/nu/bias (bfloat16[16], not float32[16]); '
    'give the config of that run, or another --workdir'
  )
  assert contents(two) == before


def test_a_long_list_of_differences_is_cut():
  saved = {str(i): Array([i], 'int32') for i in range(100)}
  text = difference(saved, {})
  assert text.startswith('has besides 0, 1, 2')
  assert text.endswith(', 19 and 80 more')
  assert difference(saved, dict(saved)) == ''


# Retention ----------------------------------------------------------------


def keep(workdir, losses, known=None, **options):
  checkpointer = Checkpointer(str(workdir), **options)
  for step, loss in (known or {}).items():
    checkpointer.evaluated(step, loss)
  for step, loss in losses.items():
    if loss is not None:
      checkpointer.evaluated(step, loss)
    checkpointer.save(place(state_at(step), *ONE))
  checkpointer.close()
  return sorted(int(p.name) for p in (workdir / 'checkpoints').iterdir())


@pytest.mark.parametrize(
  'options, left',
  [
    ({}, [7]),
    ({'keep': 3}, [5, 6, 7]),
    ({'keep_every_steps': 3}, [3, 6, 7]),
    ({'keep_best': 1}, [4, 7]),
    ({'keep_best': 2}, [2, 4, 7]),
    ({'keep': 2, 'keep_every_steps': 5, 'keep_best': 1}, [4, 5, 6, 7]),
    # 3, 5 and 7 are of preemptions.
    ({'keep': 2, 'every_steps': 2}, [4, 6, 7]),
  ],
)
def test_what_is_kept(tmp_path, options, left):
  """The least loss is of step 4; of step 5 there is none."""
  losses = {2: 1.5, 3: 9.0, 4: 1.25, 5: None, 6: float('nan'), 7: 3.5}
  assert keep(tmp_path, losses, **options) == left


def test_the_best_is_known_after_a_restart(tmp_path):
  assert keep(tmp_path, {1: 2.0, 2: 1.0, 3: 4.0}, keep_best=1) == [2, 3]
  known = {1: 2.0, 2: 1.0, 3: 4.0}
  assert keep(tmp_path, {4: 3.0, 5: 1.5}, known, keep_best=1) == [2, 5]


# A full disk ---------------------------------------------------------------


@contextlib.contextmanager
def full_disk(num_bytes=8_000):
  """The kernel refuses to let any file grow beyond `num_bytes`.

  As on a full disk, it is writing in the background that fails, half-way; the
  error is EFBIG instead of ENOSPC.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def settle(checkpointer):
  """Waits as the loop does: by asking after each step."""
  checkpointer.retry_due()
  while checkpointer.saving():
    time.sleep(0.01)
    checkpointer.retry_due()


@pytest.fixture
def logged(caplog):
  """What is said to the user; Orbax reports the same to its developers."""
  logging.getLogger('absl').setLevel(logging.CRITICAL)
  caplog.set_level('INFO', 'gpt_jax')
  return lambda: [r.getMessage() for r in caplog.records if r.name == 'gpt_jax']


@pytest.mark.parametrize('first', [0, 1])
def test_what_the_system_said_is_told_in_any_order(first):
  """As TensorStore words it; which of its figures comes first varies."""
  figures = ["[os_error_code='27']", '[tensorstore_spec=\'{"a":{"b":[0]}}\']']
  error = ValueError(
    'OUT_OF_RANGE: Error opening "zarr" driver: Error writing local file '
    '"/w/manifest.ocdbt": Failed to write 75 bytes to file 4: File too large '
    + ' '.join((figures[first], figures[1 - first]))
  )
  assert reason_of(error) == 'File too large'
  other = ValueError("NOT_FOUND: no /w/a: Metadata missing [spec='{}']")
  assert reason_of(other).startswith('ValueError: NOT_FOUND: no /w/a')


def test_a_full_disk_is_survived(tmp_path, logged):
  save(tmp_path, 1, 3)
  checkpointer = Checkpointer(str(tmp_path), keep=2)
  with full_disk():
    for step in (5, 7):
      checkpointer.save(place(state_at(step), *ONE))
    settle(checkpointer)
  failures = logged()
  assert len(failures) == 2
  assert 'step 5 was not written' in failures[0]
  assert 'File too large' in failures[0]
  assert 'the older checkpoints stay' in failures[0]
  # Those that the new ones were to replace, and no half-written one.
  names = sorted(p.name for p in (tmp_path / 'checkpoints').iterdir())
  assert names == ['1', '3']
  # There is room again.
  checkpointer.save(place(state_at(9), *ONE))
  checkpointer.close()
  assert logged()[2:] == ['step 9: checkpoints are written again']
  state, steps = restore(tmp_path)
  assert same_bits(state, state_at(9))
  assert steps == [3, 9]


def test_it_is_tried_again_after_a_while(tmp_path, logged, monkeypatch):
  now = [100.0]
  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(checkpoint, 'time', clock)
  checkpointer = Checkpointer(str(tmp_path))
  assert not checkpointer.retry_due()
  with full_disk():
    checkpointer.save(place(state_at(5), *ONE))
    settle(checkpointer)
  assert not checkpointer.retry_due()
  now[0] += checkpoint.RETRY_SECONDS
  assert checkpointer.retry_due()
  checkpointer.save(place(state_at(6), *ONE))
  settle(checkpointer)
  assert not checkpointer.retry_due()
  checkpointer.close()
  assert len(logged()) == 2
  assert restore(tmp_path)[1] == [6]


def test_the_last_save_is_tried_again(tmp_path, logged, monkeypatch):
  """Room is made while it waits."""
  state, waits = place(state_at(5), *ONE), []
  with contextlib.ExitStack() as disk:

    def sleep(seconds):
      waits.append(seconds)
      if len(waits) == 2:
        disk.close()

    clock = types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(checkpoint, 'time', clock)
    checkpointer = Checkpointer(str(tmp_path))
    disk.enter_context(full_disk())
    checkpointer.save(state)
    checkpointer.finish(state)
  assert waits == [1, 5]
  assert same_bits(restore(tmp_path)[0], state_at(5))


def test_a_last_save_without_room_fails_the_run(tmp_path, logged, monkeypatch):
  save(tmp_path, 3, at=ONE)
  monkeypatch.setattr(checkpoint, 'FINAL_WAITS', (0.0, 0.0))
  checkpointer = Checkpointer(str(tmp_path))
  told = []
  monkeypatch.setattr(sys, 'unraisablehook', told.append)
  restore_lib.quiet_late_futures.cache_clear()
  with full_disk(), pytest.raises(FailedError) as error:
    checkpointer.finish(place(state_at(5), *ONE))
  # As of each array whose write ends after Orbax has given up.
  late = RuntimeError('Event loop is closed')
  sys.unraisablehook(types.SimpleNamespace(exc_value=late, object=None))
  assert not told
  message = str(error.value)
  assert 'the checkpoint of step 5 could not be written' in message
  assert message.endswith('the same command goes on from step 3')
  assert restore(tmp_path, at=ONE)[1] == [3]


def test_a_preempted_run_gives_up_within_its_grace(tmp_path, logged, monkeypatch):
  """By the number of tries: clocks of hosts differ."""
  waits = []
  clock = types.SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
  monkeypatch.setattr(checkpoint, 'time', clock)
  checkpointer = Checkpointer(str(tmp_path))
  with full_disk(), pytest.raises(RuntimeError, match='goes on from the start'):
    checkpointer.finish(place(state_at(5), *ONE), within=21.5)
  assert waits == [1, 5, 15]


def test_finish_keeps_what_is_saved(tmp_path):
  """A run that is complete is not saved once more."""
  save(tmp_path, 3, at=ONE)
  before = contents(tmp_path)
  checkpointer = Checkpointer(str(tmp_path))
  checkpointer.finish(place(state_at(3), *ONE))
  assert contents(tmp_path) == before


def test_a_save_holds_four_gigabytes_at_a_time_or_its_largest_shard():
  """Of one device; Orbax would refuse a shard as large as the bound."""

  def gigabytes(rows, *axes):
    lies = NamedSharding(mesh(8, 1), PartitionSpec(*axes))
    large = jax.ShapeDtypeStruct((rows, 10**6), np.float32, sharding=lies)
    step = jax.ShapeDtypeStruct((), np.int32, sharding=NamedSharding(mesh(8, 1), PartitionSpec()))
    return restore_lib._gigabytes_at_once([large, step])

  assert gigabytes(504) == 4
  assert gigabytes(4000) == 17  # of 16 GB
  assert gigabytes(4000, 'a') == 4  # of 2 GB
  assert gigabytes(16000, 'a') == 9
