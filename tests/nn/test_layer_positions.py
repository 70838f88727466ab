# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Positions before every layer, against those before the first alone."""

import jax
import numpy as np

from gpt_jax.nn.caches import init_caches
from tests.support import tiny

B, L = 2, 5


def test_each_layer_adds_its_own():
  model = tiny.model(num_layers=2, position='learned_by_layer')
  plain = tiny.model(num_layers=2, position='learned')
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  block = params['decoder']['periods']['block_0']
  assert 'positions' not in params
  tables = block['positions']['embedding']
  assert tables.shape == (2, model.context_length, tiny.D)
  rest = {name: x for name, x in block.items() if name != 'positions'}

  def with_tables(tables):
    changed = {**rest, 'positions': {'embedding': tables}}
    return {**params, 'decoder': {'periods': {'block_0': changed}}}

  without = {
    **with_tables(tables),
    'decoder': {'periods': {'block_0': rest}},
    'positions': {'embedding': tables[0]},
  }

  @jax.jit
  def run(tables, without):
    plain_BLD = plain.apply({'params': without}, tokens).hidden_BLD
    params = {'params': with_tables(tables)}
    positions = np.broadcast_to(np.arange(L), (B, L))
    cached = model.apply(params, tokens, positions, init_caches(model, B, L))
    return model.apply(params, tokens).hidden_BLD, cached.hidden_BLD, plain_BLD

  both, cached, expected = run(tables, without)
  np.testing.assert_allclose(both, cached, rtol=1e-4, atol=1e-5)
  # Where the second layer adds zeros, the first is where models have them.
  first, _, _ = run(tables * np.float32([1, 0])[:, None, None], without)
  np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-5)
  assert np.max(np.abs(both - first)) > 1e-2
