# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the same bits on any mesh, and damage is never used."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt_jax.checkpoint import Checkpointer, fingerprint
from gpt_jax.spec import UsageError
from gpt_jax.state import TrainState

# Where Orbax fails to read one array it drops the tasks that read the others.
pytestmark = pytest.mark.filterwarnings(
  'ignore::pytest.PytestUnraisableExceptionWarning'
)

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
  tree = {
    'b': [random_bits('float32', 5), np.float32(3)],
    'a': np.int32(7),
  }
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
    return NamedSharding(
      mesh(*sizes), PartitionSpec(*spec) if x.ndim == 2 else PartitionSpec()
    )

  return jax.tree.map(lambda x: jax.device_put(x, sharding(x)), state)


def abstract(state):
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
  )


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


def test_no_checkpoint_yet(tmp_path):
  assert restore(tmp_path) == (None, [])


def test_old_checkpoints_are_deleted(tmp_path):
  save(tmp_path, 1, 2, 5, keep=2)
  state, steps = restore(tmp_path)
  assert steps == [2, 5]
  assert int(state.step) == 5


def largest_file(workdir, step):
  files = [
    p for p in (workdir / f'checkpoints/{step}').rglob('*') if p.is_file()
  ]
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


def delete(path):
  path.unlink()


@pytest.mark.parametrize('damage', [flip, truncate, delete])
def test_a_damaged_checkpoint_is_set_aside(tmp_path, damage):
  save(tmp_path, 3, 5)
  damage(largest_file(tmp_path, 5))
  state, steps = restore(tmp_path)
  assert same_bits(state, state_at(3))
  assert steps == [3]
  assert (tmp_path / 'checkpoints_damaged/5').is_dir()
  # The run comes to that step again.
  save(tmp_path, 5)
  state, steps = restore(tmp_path)
  assert same_bits(state, state_at(5))
  assert steps == [3, 5]


def test_a_wrong_number_that_reads_well_is_damage_too(tmp_path):
  """Another state under this one's fingerprint, as a torn copy may leave."""
  save(tmp_path / 'a', 3, 5)
  other = state_at(5)
  other.params['kernel'][7, 11] += 1
  checkpointer = Checkpointer(str(tmp_path / 'b'))
  checkpointer.save(place(other, *HERE))
  checkpointer.close()
  (tmp_path / 'a/checkpoints/5/state').rename(tmp_path / 'gone')
  (tmp_path / 'b/checkpoints/5/state').rename(
    tmp_path / 'a/checkpoints/5/state'
  )
  state, steps = restore(tmp_path / 'a')
  assert same_bits(state, state_at(3))
  assert steps == [3]


def test_reading_alone_moves_nothing(tmp_path):
  save(tmp_path, 3, 5)
  flip(largest_file(tmp_path, 5))
  state, steps = restore(tmp_path, read_only=True)
  assert same_bits(state, state_at(3))
  assert steps == [3, 5]
  assert not (tmp_path / 'checkpoints_damaged').exists()


def test_all_damaged_is_the_users_to_decide(tmp_path):
  save(tmp_path, 3, 5)
  for step in (3, 5):
    flip(largest_file(tmp_path, step))
  with pytest.raises(UsageError) as error:
    restore(tmp_path)
  message = str(error.value)
  assert message.startswith(f'{tmp_path}/checkpoints/5: damaged (')
  assert 'no older checkpoint is sound' in message
  assert '\n' not in message
  # Nothing is lost that a person could still use.
  assert not (tmp_path / 'checkpoints_damaged').exists()
  assert sorted(p.name for p in (tmp_path / 'checkpoints').iterdir()) == [
    '3',
    '5',
  ]
