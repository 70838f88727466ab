# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with `optim.state='host'`, against `device`, and from one to the
other.
"""

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.planning import layouts
from tests.support import tiny
from tests.support.cases import slow

FIELDS = {
  **tiny.MESHABLE,
  'schedule.name': 'constant(peak=1e-2)',
  'optim.ema': 'ema(decay=0.9)',
  'batch.micro_rows': 2,
}
HERE, THERE = (1, 2, 2), (2, 2, 1)


def build(memory, sizes=HERE, **fields):
  config = tiny.config(**{**FIELDS, 'optim.state': memory, **fields})
  return tiny.build(config, sizes)


def compiled(run):
  """A function that trains for some steps; it returns state and last loss."""
  step = compiled_lib.compile_train_step(run).call

  def steps(state, number):
    for _ in range(number):
      state, metrics = step(state, run.put(tiny.batch(16, 7, 48), 16))
    return state, float(metrics['loss'])

  return steps


def kinds(state):
  return {
    jax.tree_util.keystr(path): x.sharding.memory_kind
    for path, x in jax.tree_util.tree_leaves_with_path(state)
  }


@pytest.mark.slow
@pytest.mark.parametrize('precision', [slow('float32'), 'bfloat16'])
def test_it_trains_as_on_the_device(precision):
  fields = {'optim.precision': precision}
  found, expected = (
    compiled(run)(parts_lib.initial_state(run), 3)
    for run in (build('host', **fields), build('device', **fields))
  )
  assert found[1] == pytest.approx(expected[1], rel=1e-6)
  tolerance = 1e-4 if precision == 'float32' else 1e-2
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      np.float32(a), np.float32(b), rtol=tolerance, atol=tolerance / 10
    ),
    jax.device_get(found[0]),
    jax.device_get(expected[0]),
  )
  for name, kind in kinds(found[0]).items():
    moment = 'opt_state' in name and ('kernel' in name or 'embedding' in name)
    assert kind == ('pinned_host' if moment else 'device'), name
  assert {*kinds(expected[0]).values()} == {'device'}


@pytest.mark.slow
@pytest.mark.parametrize('order', [('host', 'device'), slow(('device', 'host'))])
def test_a_run_goes_on_in_the_other_memory_and_on_another_mesh(order, tmp_path):
  first, second = build(order[0]), build(order[1], THERE)
  steps = compiled(first)
  state, _ = steps(parts_lib.initial_state(first), 2)
  saved = jax.device_get(state)
  checkpointer = Checkpointer(str(tmp_path))
  checkpointer.finish(state)
  checkpointer = Checkpointer(str(tmp_path))
  restored = checkpointer.restore(parts_lib.abstract_state(second))
  checkpointer.close()
  assert kinds(restored) == kinds(parts_lib.abstract_state(second))
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), saved)
  _, loss = compiled(second)(restored, 2)
  _, expected = steps(state, 2)
  assert loss == pytest.approx(expected, rel=1e-5)


def test_the_search_counts_no_moments_on_the_devices():
  mesh = dict.fromkeys(sharding.AXES, 1)
  runs = [build(memory) for memory in ('device', 'host')]
  sizes = [layouts.state_of(run.config).bytes(mesh) for run in runs]
  moments = sum(
    2 * 4 * x.size
    for path, x in jax.tree_util.tree_leaves_with_path(parts_lib.abstract_state(runs[0]).params)
    if path[-1].key in ('kernel', 'embedding')
  )
  assert sizes[0] - sizes[1] == moments
