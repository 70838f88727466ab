# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""XLNet's attention: two streams, orders, segments and a memory.

Its numbers are compared with transformers' in tests/hf/test_golden.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.nn.attend import SegmentMemory
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.objectives.permuted import visible
from gpt_jax.spec import UsageError
from tests.support import tiny

B, L, M, P = 3, 7, 5, 4
D = 22  # pairs of sine and cosine
FIELDS = dict(
  attention='bidirectional',
  block='post',
  d_model=D,
  input='tokens(queries=True)',
  num_layers=2,
  position='xlnet(memory=5)',
)


def make(**changes):
  return tiny.model(**{**FIELDS, **changes})


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, tokens, more):
  out, sown = model.apply(
    {'params': params}, tokens, **more, mutable=['intermediates']
  )
  sown = sown['intermediates']
  return out, [sown['embedded'][0], *layer_outputs(sown)[:-1]]


def orders(count, length, seed=0):
  rng = np.random.default_rng(seed)
  return np.stack([rng.permutation(length) for _ in range(count)])


def without_segments(params):
  """As Transformer-XL has them."""
  params = jax.tree.map(lambda x: x, params)
  del params['query_embedding']
  for name in ('segments', 'segment_bias'):
    del params['decoder']['periods']['block_0']['attention'][name]
  return params


def test_content_of_the_identity_order_is_transformer_xl():
  model = make()
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  ranks = np.tile(np.arange(L), (B, 1))
  seen = visible(ranks, ranks[:, 2:5])
  asked = np.tile(np.arange(2, 5), (B, 1))
  more = {'visible_BLM': seen, 'asked_BP': asked}
  found, _ = apply(model, params, tokens, more)
  other = make(attention='full', input='tokens', position='transformer_xl')
  expected, _ = apply(other, without_segments(params), tokens, {})
  assert found.hidden_BLD.shape == (B, L + 3, D)
  np.testing.assert_allclose(
    found.hidden_BLD[:, :L], expected.hidden_BLD, rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_a_memory_is_as_tokens_before():
  """Of both streams; its tokens are of type 0, and all seen."""
  model = make()
  params, tokens = tiny.params(model), tiny.tokens(B, M + L)
  types = np.array([[0] * M + [0, 1, 1, 0, 2, 2, 1]] * B)
  ranks, asked = orders(B, L), orders(B, L, seed=1)[:, :P]
  of_targets = np.take_along_axis(ranks, asked, axis=1)
  mask = np.ones((B, L), bool)
  mask[1, 2:4] = False
  more = {
    'mask_BL': mask,
    'token_types_BL': types[:, M:],
    'visible_BLM': visible(ranks, of_targets),
    'asked_BP': asked,
  }
  zeros = {'token_types_BL': types[:, :M]}
  _, inputs = apply(model, params, tokens[:, :M], zeros)
  more['caches'] = (SegmentMemory(jnp.stack(inputs)),)
  out, inputs = apply(model, params, tokens[:, M:], more)
  np.testing.assert_array_equal(
    out.caches[0].hidden_BMD, np.stack([x[:, :L][:, -M:] for x in inputs])
  )
  # The same at once: the first tokens see nothing of the others.
  before = np.full((B, M), -1)
  whole = {
    'mask_BL': np.pad(mask, ((0, 0), (M, 0)), constant_values=True),
    'token_types_BL': types,
    'visible_BLM': visible(np.append(before, ranks, axis=1), of_targets),
    'asked_BP': asked + M,
  }
  expected, _ = apply(model, params, tokens, whole)
  assert expected.hidden_BLD.shape == (B, M + L + P, D)
  np.testing.assert_allclose(
    out.hidden_BLD, expected.hidden_BLD[:, M:], rtol=1e-4, atol=1e-5
  )


def test_gradients_come_from_what_is_before_in_the_order():
  """Exactly none of x_{z >= t} in g_{z_t}, of x_{z > t} in h_{z_t}; 20 orders.

  And some of all others.
  """
  model = make(vocab_size=L)
  params, tokens = tiny.params(model), np.arange(L)[None]
  probe = np.float32(np.random.default_rng(4).normal(size=D))

  def outputs(table_VD, ranks_L):
    ranks_BL = ranks_L[None]
    out = model.apply(
      {'params': {**params, 'embed': {'embedding': table_VD}}},
      tokens,
      visible_BLM=visible(ranks_BL, ranks_BL),
      asked_BP=jnp.arange(L)[None],
    )
    return out.hidden_BLD[0] @ probe

  table = params['embed']['embedding']
  jacobian = jax.jit(jax.vmap(jax.jacrev(outputs), (None, 0)))
  ranks = orders(20, L)
  size = np.max(np.abs(jacobian(table, ranks)), axis=-1)
  before = ranks[:, None] < ranks[:, :, None]
  upto = ranks[:, None] <= ranks[:, :, None]
  assert np.all(size[:, :L][~upto] == 0) and np.all(size[:, :L][upto] > 0)
  assert np.all(size[:, L:][~before] == 0) and np.all(size[:, L:][before] > 0)


def test_refusals():
  model = make(input='tokens')
  asked = {'asked_BP': np.zeros((B, 1), int)}
  tokens = tiny.tokens(B, L)
  with pytest.raises(UsageError, match='has no second stream'):
    jax.eval_shape(
      lambda: apply(model, tiny.params(model), tokens, asked),
    )
  model = make(position='learned')
  with pytest.raises(UsageError, match='a second stream knows places'):
    jax.eval_shape(lambda: apply(model, tiny.params(model), tokens, asked))
