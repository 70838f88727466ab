# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers over the stages of a pipeline: results as without, what is sent."""

import functools
import re

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training.step import mean_gradients
from tests.support import tiny
from tests.support.cases import slow

ROWS, LENGTH, LAYERS = 16, 7, 4
FIELDS = {**tiny.MESHABLE, 'model.num_layers': LAYERS}
DROPOUT = {'model.dropout': 'rates(residual=0.2, attention=0.1)'}
EXPERTS = {
  'model.ffn': "gelu, switch(num_experts=4, expert='swiglu')",
  'model.dropout': 'rates(residual=0.2)',
}
ROUND = {**DROPOUT, 'model.remat': 'full'}


def build(fields, sizes, stage, rows=ROWS, num_micro=1):
  shards = sizes[0] * sizes[1] * stage
  changes = {'batch.size': rows, 'batch.micro_rows': -(-rows // num_micro // shards)}
  config = tiny.config(**{**FIELDS, **changes, **fields})
  return tiny.build(config, sizes, stage=stage)


def compute(fields, sizes, stage, rows=ROWS, num_micro=1):
  """Loss, metrics and gradients, and the compiled program."""
  run = build(fields, sizes, stage, rows, num_micro)
  parts = run.micro_batches(run.ramp.stages[0].shape)
  assert parts.num_micro == num_micro
  function = functools.partial(mean_gradients, objective=run.objective, **parts._asdict())
  params = jax.device_put(tiny.params(run.model), run.shardings.params)
  batch = run.put(tiny.batch(rows, LENGTH, 48), rows)
  key = jax.random.key(3)
  lies = None, None, run.shardings.params
  with sharding.use(run.mesh, run.rules):
    jitted = jax.jit(function, out_shardings=lies)
    compiled = jitted.lower(params, batch, key).compile()
  return jax.device_get(compiled(params, batch, key)), compiled.as_text()


@functools.cache
def on_one_device(name, rows=ROWS, num_micro=1):
  fields = {'dropout': DROPOUT, 'experts': EXPERTS, 'round': ROUND}[name]
  return compute(fields, (1, 1, 1), 1, rows, num_micro)[0]


@pytest.mark.parametrize(
  'sizes, stage, pipeline',
  [
    slow((1, 1, 1), 4, 'circular'),
    ((1, 1, 1), 2, 'circular(repeats=2, rows=3)'),
    slow((1, 2, 2), 2, 'circular(repeats=2)'),
    slow((2, 2, 1), 2, 'circular(rows=2)'),
    slow((2, 1, 2), 2, "circular(repeats=2, weights='stage')"),
  ],
)
def test_results_do_not_depend_on_the_stages(sizes, stage, pipeline):
  """With dropout, by the same random numbers."""
  fields = {**ROUND, 'model.pipeline': pipeline}
  found, _ = compute(fields, sizes, stage)
  tiny.assert_close(found, on_one_device('round'))


@pytest.mark.slow
@pytest.mark.parametrize(
  'sizes, stage, rows, num_micro',
  [
    # Three of 16 rows are padding, which routers leave out.
    ((2, 1, 1), 2, 13, 1),
    slow((1, 2, 2), 2, 16, 1),
    slow((2, 1, 2), 2, 16, 2),
  ],
)
def test_experts(sizes, stage, rows, num_micro):
  """Their auxiliary losses, jitter and drops; periods of two layers."""
  found, _ = compute(EXPERTS, sizes, stage, rows, num_micro)
  expected = on_one_device('experts', rows, num_micro)
  assert 0.01 < expected[1]['router/decoder/dropped'][0] < 0.9
  tiny.assert_close(found, expected)


def in_loops(text):
  """The collectives within loops, by kind."""
  bodies = {*re.findall(r'body=%?([\w.\-]+)', text)}
  parts = re.split(r'\n(?=\S)', text)
  found = set()
  for part in parts:
    name = re.match(r'(?:ENTRY )?%?([\w.\-]+)', part)
    if name and name[1] in bodies:
      found |= {
        *re.findall(
          r' (all-gather|all-reduce|all-to-all|reduce-scatter|'
          r'collective-permute)(?:-start)?\(',
          part,
        )
      }
  return found


@pytest.mark.parametrize('repeats', [1, slow(2)])
def test_stages_send_to_the_next_one_alone(repeats):
  """Not even the gradient of what goes in and comes out is gathered."""
  how = {'model.pipeline': f'circular(repeats={repeats})'}
  _, text = compute({**ROUND, **how}, (1, 1, 1), 2)
  assert in_loops(text) == {'collective-permute'}
  # What the outside exchanges: gradients of the tables and the last norm and,
  # with repeats, the layers.
  outside = {'all-reduce'} if repeats == 1 else {'all-reduce', 'all-to-all'}
  kinds = {'all-gather', 'all-reduce', 'all-to-all', 'reduce-scatter'}
  assert {k for k in kinds if re.search(rf' {k}(-start)?\(', text)} == outside


@pytest.mark.parametrize('weights', [slow('layer'), 'stage'])
def test_what_is_gathered_and_reduced_over_fsdp(weights):
  """One layer's weights in each step, or those of a stage before all steps."""
  how = {'model.pipeline': f'circular(weights={weights!r})'}
  found, text = compute({**ROUND, **how}, (1, 2, 1), 2)
  tiny.assert_close(found, on_one_device('round'))
  gathered = set(re.findall(r'f32\[([\d,]*24,40)\]\S* all-gather\(', text))
  if weights == 'layer':
    assert gathered == {'24,40'}
  else:
    assert gathered == {'1,1,2,24,40'}
    assert in_loops(text) == {'collective-permute'}


def test_outputs_of_layers():
  """Those that objectives of several layers read, in the order of the rows."""
  tokens = tiny.tokens(8, LENGTH, vocab_size=48)

  def outputs(stage, pipeline='circular'):
    fields = {'model.remat': 'full', 'model.pipeline': pipeline}
    run = build(fields, (1, 1, 1), stage)
    params = jax.device_put(tiny.params(run.model), run.shardings.params)
    apply = functools.partial(run.model.apply, mutable=['intermediates'])
    with sharding.use(run.mesh, run.rules):
      out, sown = jax.jit(apply)({'params': params}, tokens)
    return [*layer_outputs(sown['intermediates']), out.hidden_BLD]

  found = outputs(2, 'circular(repeats=2, rows=2)')
  assert len(found) == LAYERS + 1
  for a, b in zip(found, outputs(1), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_checkpoints_do_not_know_the_stages(tmp_path):
  before = build({}, (1, 1, 1), 4)
  state = parts_lib.initial_state(before)
  kernel = state.params['decoder']['periods']['block_0']['ffn']['in']['kernel']
  assert kernel.sharding.shard_shape(kernel.shape) == (1, 24, 40)
  Checkpointer(str(tmp_path)).finish(state)
  after = build({'model.pipeline': 'circular(repeats=2)'}, (1, 2, 1), 2)
  read = Checkpointer(str(tmp_path)).restore(parts_lib.abstract_state(after))
  jax.tree.map(np.testing.assert_array_equal, read, state)
