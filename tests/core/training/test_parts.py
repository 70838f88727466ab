# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config to the parts of a run: its arithmetic."""

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.objectives import causal
from gpt_jax.core.rows.rows import cut
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import parts as state_lib
from gpt_jax.core.training import store_data
from tests.support import tiny


def build(sizes=(2, 2, 2), **changes):
  return tiny.build(tiny.config(**{**tiny.MESHABLE, **changes}), sizes)


# Of four rows of 7 tokens, as on one device is all that a micro-batch has.
GROUPS = 'switch(num_experts=2, group_size=28)'


@pytest.mark.parametrize(
  'rows, changes, expected',
  [
    (16, {}, (1, 4, 1)),
    (24, {'batch.micro_rows': 2}, (3, 4, 2)),
    (26, {'batch.micro_rows': 2}, (4, 4, 2)),
    (24, {'batch.micro_rows': None}, (1, 4, 1)),
    # Devices along `data` hold different parts of the model.
    (24, {'batch.micro_rows': 2, 'mesh.rules.embed': 'data, fsdp'}, (3, 4, 1)),
    (24, {'batch.micro_rows': 2, 'mesh.rules.batch': 'fsdp, data'}, (3, 4, 1)),
    # A group of four rows is on the devices of two replicas.
    (24, {'batch.micro_rows': 1, 'model.ffn': GROUPS}, (6, 4, 1)),
  ],
)
def test_micro_batches(rows, changes, expected):
  run = build(**{'batch.size': rows, **changes})
  assert run.micro_batches(run.ramp.stages[0].shape) == expected


@pytest.mark.parametrize(
  'sizes, rows, expected',
  [((1, 1, 1), 7, 7), ((2, 2, 2), 7, 8), ((8, 1, 1), 8, 8), ((8, 1, 1), 9, 16)],
)
def test_eval_rows_are_a_multiple_of_the_shards(sizes, rows, expected):
  assert build(sizes, **{'eval.rows': rows}).eval_rows == expected


def test_the_parts_are_those_of_the_config():
  run = build(**{'schedule.name': 'linear(peak=0.5, warmup=4)', 'schedule.num_steps': 24})
  assert float(run.schedule(14)) == pytest.approx(0.25)
  assert run.model.d_model == 24
  shape = {**dict.fromkeys(sharding.AXES, 1), 'data': 2, 'fsdp': 2, 'tensor': 2}
  assert dict(run.mesh.shape) == shape
  assert run.objective.make_batch is not None


def test_abstract_state_is_the_state_that_is_made():
  run = build(**{'model.num_layers': 1})
  state, shapes = parts_lib.initial_state(run), parts_lib.abstract_state(run)
  jax.tree.map(
    lambda x, s: (
      (x.shape, x.dtype, x.sharding) == (s.shape, s.dtype, s.sharding)
      or pytest.fail(f'{x.sharding} is not {s}')
    ),
    state,
    shapes,
  )
  assert int(state.step) == 0
  # The same numbers as without a mesh, and others for another seed.
  plain = jax.jit(state_lib.make_init(run.objective, run.optimizer))(
    jax.random.key(run.config.seed)
  )
  jax.tree.map(np.testing.assert_array_equal, state.params, plain.params)


def test_another_seed_is_another_start():
  one, other = (
    parts_lib.initial_state(build((1, 1, 1), **{'seed': seed, 'model.num_layers': 1})).params[
      'embed'
    ]['embedding']
    for seed in (0, 1)
  )
  assert not np.any(np.asarray(one) == np.asarray(other))


def test_abstract_batch_is_what_corrupt_makes():
  run = build()
  rows = tiny.tokens(16, 8, vocab_size=48)
  placed = run.put(causal.make_batch(cut(rows)), 16)
  for name, shape in compiled_lib.abstract_batch(run, 16, 7).items():
    assert placed[name].shape == shape.shape
    assert placed[name].dtype == shape.dtype
    assert placed[name].sharding == shape.sharding


def test_data_folder():
  config = tiny.config()
  assert store_data.data_folder(config, 'w') == 'w/data'
  config = tiny.config(**{'data.store': 'elsewhere'})
  assert store_data.data_folder(config, 'w') == 'elsewhere'
