# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs whose rows are split over devices follow those on one."""

import re

import jax
import numpy as np
import pytest

from gpt_jax.core import sharding
from gpt_jax.core.training import compiled as compiled_lib
from tests.support import tiny, tpu

ROWS, LENGTH, VOCAB = 2, 16, 48
FIELDS = {
  **tiny.MESHABLE,
  'model.context_length': LENGTH,
  'model.num_layers': 1,
  'model.position': 'rope',
  'batch.size': ROWS,
  'batch.micro_rows': ROWS,
  'schedule.name': 'constant(peak=1e-2)',
}


def build(context, **changes):
  config = tiny.config(**{**FIELDS, **changes})
  return tiny.build(config, (1, 1, 1), context=context)


def test_kernels_gradients_need_no_tokens_of_others():
  """Each device multiplies its tokens of several rows; sums are sent."""
  run = build(4, **{'model.attention_backend': 'ring'})
  text = compiled_lib.compile_train_step(run).call.as_text()
  gathered = re.findall(r'= f32\[([\d,]+)\]\S* all-gather\(', text)
  shapes = {tuple(map(int, shape.split(','))) for shape in gathered}
  assert (24, 40) in shapes  # a kernel
  assert not [x for x in shapes if len(x) == 3 or ROWS * LENGTH in x]


@pytest.mark.slow
def test_experts_drop_the_same_tokens():
  ffn = 'switch(num_experts=4, capacity_factor=0.8)'

  def measure(context):
    run = build(context, **{'model.ffn': ffn})
    params = jax.device_put(tiny.params(run.model), run.shardings.params)
    given = run.put(tiny.batch(ROWS, LENGTH, VOCAB), ROWS)
    with sharding.use(run.mesh, run.rules):
      return jax.device_get(jax.jit(run.objective.loss)(params, given, jax.random.key(3)))

  found, expected = measure(4), measure(1)
  assert 0.1 < expected.stats['router/decoder'].dropped[0] < 0.7
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


# Bytes that a device sends: 2 layers x keys and values of 1 row, 512 tokens,
# 2 heads of 128 in bfloat16, to one other device.
SENT = 2 * 2 * 512 * 2 * 128 * 2


RING = {'forward collective-permute bf16': 1, 'synchronous': 0}


@pytest.mark.tpu
@pytest.mark.parametrize(
  'topology, backend, context, expected',
  [
    ('v5e:2x4', 'all_gather', 4, {'back reduce-scatter bf16': 1, 'kernels': 0}),
    # With dropout rows are in order, so that flash serves them.
    ('v5e:2x4', 'all_gather, dropout', 4, {'back reduce-scatter bf16': 1, 'kernels': 2}),
    # Of a device's own keys, of those that others sent, and of the last ones,
    # the latter two in two ways each; backwards in one kernel.
    ('v5e:2x4', 'ring', 4, {**RING, 'kernels': 10}),
    # Asynchronous from neighbour to neighbour alone.
    ('v5e:4x8', 'ring', 16, RING),
    pytest.param('v4:2x2x2', 'ring', 4, RING, marks=pytest.mark.long),
    pytest.param('v5p:2x2x2', 'ring', 4, RING, marks=pytest.mark.long),
    # Queries and outputs, too, and all of 4 heads, but to each device only its
    # quarter: as much. Splash: forward, and backward in one kernel.
    ('v5e:2x4', 'ulysses', 4, {'forward all-to-all bf16': 1, 'kernels': 2}),
  ],
)
def test_what_a_tpu_program_sends(topology, backend, context, expected):
  """Multiples of what a device sends to all others in one direction."""
  sent = SENT * (context - 1)
  backend, _, dropout = backend.partition(', ')
  rate = '0.1' if dropout else '0'
  found = tpu.compiled('context', topology, backend, str(context), rate)
  for name, number in expected.items():
    size = number if name in ('kernels', 'synchronous') else sent * number
    assert found[name] == pytest.approx(size, rel=0.01), found
  # Asynchronous ones may be counted more than once.
  gathered = found.get('forward all-gather bf16', 0)
  assert gathered >= sent if backend == 'all_gather' else not gathered, found
