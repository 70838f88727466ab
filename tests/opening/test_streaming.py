# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is written in parts is what the checkpointer writes, and reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.core.checkpoints.checkpointer import Checkpointer, DamageError
from gpt_jax.core.checkpoints.restore import Running, fingerprint
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.spec import UsageError
from gpt_jax.opening import streaming

AXES = {'decoder/periods/block_0/ffn': 2, 'decoder/periods/block_0/norm': 1, 'embed': 0}


def params():
  rng = np.random.default_rng(3)
  block = {
    'ffn': rng.standard_normal((3, 2, 5, 7), np.float32),
    'norm': rng.standard_normal((3, 5), np.float32),
  }
  embed = rng.standard_normal((13, 5), np.float32)
  return {'decoder': {'periods': {'block_0': block}}, 'embed': embed}


def state(tree):
  return TrainState(jnp.int32(7), tree, ())


def abstract(of):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), of)


def fill(to):
  """Each part on its own, the last first."""
  block = params()['decoder']['periods']['block_0']
  to['embed'][...] = params()['embed']
  for layer in (2, 0, 1):
    to['decoder/periods/block_0/norm'][(layer,)][...] = block['norm'][layer]
    for expert in (1, 0):
      place = to['decoder/periods/block_0/ffn'][(layer, expert)]
      place[...] = block['ffn'][layer, expert]


def written(workdir):
  streaming.write(str(workdir), state(abstract(params())), AXES, fill)


def assert_opens_as(workdir, expected):
  step, arrays = streaming.opened(str(workdir), abstract(state(expected)))
  assert step == 7
  block = expected['decoder']['periods']['block_0']
  for layer in range(3):
    found = arrays['decoder/periods/block_0/ffn'][layer, 1]
    np.testing.assert_array_equal(np.asarray(found), block['ffn'][layer, 1])
  np.testing.assert_array_equal(np.asarray(arrays['embed']), expected['embed'])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16, jnp.int8])
def test_fingerprints_add_up(dtype, monkeypatch):
  monkeypatch.setattr(Running, '_STEP', 4)
  whole = (np.random.default_rng(1).standard_normal((3, 5, 7)) * 9).astype(dtype)
  sums = Running(whole.shape)
  for layer in (1, 2, 0):
    for row in range(5):
      sums[(layer, row)][...] = whole[layer, row]
  assert sums.total == int(fingerprint(whole).item())


def test_the_checkpointer_reads_it(tmp_path):
  written(tmp_path)
  checkpointer = Checkpointer(str(tmp_path), read_only=True)
  found = checkpointer.restore(abstract(state(params())))
  assert found is not None and int(found.step) == 7
  jax.tree.map(np.testing.assert_array_equal, found.params, params())
  assert_opens_as(tmp_path, params())


def test_it_reads_what_the_checkpointer_wrote(tmp_path):
  checkpointer = Checkpointer(str(tmp_path))
  checkpointer.finish(state(jax.tree.map(jnp.asarray, params())))
  assert_opens_as(tmp_path, params())


def test_an_average_is_what_evaluates(tmp_path):
  trained = jax.tree.map(jnp.asarray, params())
  average = jax.tree.map(lambda x: x + 1, trained)
  whole = state(trained)._replace(ema=average)
  Checkpointer(str(tmp_path)).finish(whole)
  _, arrays = streaming.opened(str(tmp_path), abstract(whole))
  np.testing.assert_array_equal(np.asarray(arrays['embed']), average['embed'])


def test_a_stopped_write_leaves_no_checkpoint(tmp_path):
  calls = []

  def stops(to):
    calls.append(to)
    to['embed'][...] = params()['embed']
    if len(calls) == 2:
      raise UsageError('the disk was pulled')
    fill(to)

  with pytest.raises(UsageError, match='pulled'):
    streaming.write(str(tmp_path), state(abstract(params())), AXES, stops)
  assert not Checkpointer(str(tmp_path), read_only=True).steps()
  with pytest.raises(UsageError, match='holds no checkpoint'):
    streaming.opened(str(tmp_path), abstract(state(params())))


def test_damage_is_told(tmp_path):
  written(tmp_path)
  # Orbax's data: the largest file.
  files = (tmp_path / 'checkpoints/7/state').rglob('d/*')
  path = max(files, key=lambda p: p.stat().st_size)
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 255
  path.write_bytes(data)
  with pytest.raises(DamageError, match='no checkpoint is sound'):
    streaming.opened(str(tmp_path), abstract(state(params())))


def test_another_model_is_the_users_mistake(tmp_path):
  written(tmp_path)
  other = params() | {'embed': np.zeros((11, 5), np.float32)}
  with pytest.raises(UsageError, match='holds another state'):
    streaming.opened(str(tmp_path), abstract(state(other)))
