# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The state with bfloat16 parameters and an average: trained, saved, read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from tests.support import tiny

DECAY = 0.75
FIELDS = {
  **tiny.MESHABLE,
  'model.num_layers': 1,
  'model.num_kv_heads': 8,
  'model.head_size': 3,
  'optim.precision': 'bfloat16',
  'optim.ema': f'ema(decay={DECAY})',
  'schedule.name': 'constant(peak=1e-2)',
  'batch.micro_rows': 2,
}


def to_float32(tree):
  return jax.tree.map(np.float32, jax.device_get(tree))


@pytest.mark.slow
def test_bfloat16_parameters_and_their_average(tmp_path):
  """In micro-batches over a mesh, through a checkpoint, to Hugging Face."""
  run = tiny.build(tiny.config(**FIELDS), (2, 2, 2))
  state = parts_lib.initial_state(run)
  batch = run.put(tiny.batch(16, 7, 48), 16)
  step, losses = compiled_lib.compile_train_step(run).call, []
  average = to_float32(state.params)
  jax.tree.map(np.testing.assert_array_equal, state.ema, average)
  for _ in range(12):
    state, metrics = step(state, batch)
    losses.append(float(metrics['loss']))
    average = jax.tree.map(
      lambda a, p: DECAY * a + (1 - DECAY) * p, average, to_float32(state.params)
    )
  assert losses[-1] < losses[0] - 0.2

  for path, x in jax.tree_util.tree_leaves_with_path(state.params):
    small = path[-1].key in ('bias', 'scale')
    assert x.dtype == (jnp.float32 if small else jnp.bfloat16), path
  for x in jax.tree.leaves((state.opt_state[0][1:], state.ema)):
    assert x.dtype == jnp.float32
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    jax.device_get(state.ema),
    average,
  )
  assert state.eval_params is state.ema

  shapes = parts_lib.abstract_state(run)
  checkpointer = Checkpointer(str(tmp_path))
  checkpointer.save(state)
  restored = checkpointer.restore(shapes)
  checkpointer.close()
  for x, y, s in zip(*map(jax.tree.leaves, (restored, state, shapes)), strict=True):
    assert x.dtype == y.dtype == s.dtype
    assert x.sharding.is_equivalent_to(s.sharding, x.ndim)
    assert y.sharding.is_equivalent_to(s.sharding, x.ndim)
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()

  # As float32, which holds every number of bfloat16.
  folder = str(tmp_path / 'hf')
  hf.save(folder, run.model, jax.device_get(state.params))
  jax.tree.map(np.testing.assert_array_equal, hf.load(folder)[1], to_float32(state.params))


def test_without_an_average_the_state_is_as_large_as_ever():
  run = tiny.build(tiny.config(**tiny.MESHABLE), (1, 1, 1))
  shapes = parts_lib.abstract_state(run)
  assert shapes.ema is None and run.shardings.ema is None
  assert shapes.eval_params is shapes.params
  # The step, Adam's count, and three times the parameters.
  assert len(jax.tree.leaves(shapes)) == 2 + 3 * len(jax.tree.leaves(shapes.params))
