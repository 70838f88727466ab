# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts over devices: results as on one, tokens exchanged by all-to-all."""

import functools
import re

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.step import mean_gradients
from tests.support import tiny
from tests.support.cases import slow

CAPACITY = "switch(num_experts=8, expert='swiglu', capacity_factor=0.8)"
DROPLESS = 'switch(num_experts=8, top_k=2, capacity_factor="none")'
ROWS, LENGTH = 16, 12
FIELDS = {
  **tiny.MESHABLE,
  'model.context_length': LENGTH,
  'model.num_layers': 1,
  'batch.size': ROWS,
}


def compute(ffn, sizes, expert, num_micro=1):
  """Loss, metrics and gradients, and the compiled program."""
  micro_rows = ROWS // num_micro // (sizes[0] * sizes[1] * expert)
  fields = {**FIELDS, 'model.ffn': ffn, 'batch.micro_rows': micro_rows}
  run = tiny.build(tiny.config(**fields), sizes, expert=expert)
  parts = run.micro_batches(run.ramp.stages[0].shape)
  assert parts.num_micro == num_micro
  assert parts.num_replicas == (sizes[0] if num_micro > 1 else 1)
  function = functools.partial(mean_gradients, objective=run.objective, **parts._asdict())
  params = jax.device_put(tiny.params(run.model), run.shardings.params)
  batch = run.put(tiny.batch(ROWS, LENGTH, 48), ROWS)
  key = jax.random.key(3)
  with sharding.use(run.mesh, run.rules):
    compiled = jax.jit(function).lower(params, batch, key).compile()
  return jax.device_get(compiled(params, batch, key)), compiled.as_text()


@functools.cache
def on_one_device(ffn, num_micro=1):
  return compute(ffn, (1, 1, 1), 1, num_micro)


def exchanges(text):
  """How many all-to-all the program has."""
  return len(re.findall(r' all-to-all\(|all-to-all-start\(', text))


@pytest.mark.parametrize(
  'sizes, expert',
  [slow((1, 1, 1), 2), slow((1, 1, 1), 8), slow((1, 2, 1), 2), ((1, 2, 2), 2), slow((8, 1, 1), 1)],
)
def test_capacity(sizes, expert):
  """Jitter and drops included."""
  (loss, metrics, grads), text = compute(CAPACITY, sizes, expert)
  expected, alone = on_one_device(CAPACITY)
  assert 0.1 < metrics['router/decoder/dropped'][0] < 0.7
  tiny.assert_close((loss, metrics, grads), expected)
  assert exchanges(alone) == 0
  # There and back, and the same for the gradient.
  assert exchanges(text) == (4 if expert > 1 else 0)


@pytest.mark.slow
@pytest.mark.parametrize('ffn', [CAPACITY, DROPLESS], ids=['drops', 'none'])
def test_micro_batches(ffn):
  """Each replica has some of the rows that a router's means are over."""
  found, text = compute(ffn, (2, 1, 2), 2, num_micro=2)
  tiny.assert_close(found, on_one_device(ffn, num_micro=2)[0])
  # Without a capacity, on CPUs, of the places of rows.
  assert exchanges(text) == 4


@pytest.mark.slow
def test_groups_of_several_rows():
  """Four groups on eight devices: slower, but the same."""
  ffn = CAPACITY[:-1] + f', group_size={2 * LENGTH})'
  found, _ = compute(ffn, (1, 2, 1), 4)
  tiny.assert_close(found, on_one_device(ffn)[0])
  dropped = found[1]['router/decoder/dropped'], on_one_device(CAPACITY)[0][1]
  assert dropped[0] != dropped[1]['router/decoder/dropped']


@pytest.mark.slow
@pytest.mark.parametrize('sizes, expert', [slow((1, 2, 2), 2), ((1, 1, 1), 8)])
def test_dropless(sizes, expert):
  found, _ = compute(DROPLESS, sizes, expert)
  assert np.all(found[1]['router/decoder/dropped'] == 0)
  tiny.assert_close(found, on_one_device(DROPLESS)[0])


def test_each_device_holds_its_experts():
  config = tiny.config(**FIELDS, **{'model.ffn': CAPACITY})
  run = tiny.build(config, (1, 2, 1), expert=4)
  shapes = parts_lib.abstract_state(run).params['decoder']['periods']
  kernel = shapes['block_0']['ffn']['in']['kernel']
  assert kernel.shape == (1, 8, 24, 40)
  assert kernel.sharding.shard_shape(kernel.shape) == (1, 2, 12, 40)
