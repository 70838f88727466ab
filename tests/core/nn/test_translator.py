# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""CoVe's translator: LSTMs on both sides, joined by global attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import cove
from gpt_jax.core import config as config_lib
from gpt_jax.core.costs.flops import parameter_table
from gpt_jax.core.nn.caches import init_caches, num_memory, reorder, take_rows
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import parameter_shapes
from tests.papers.lstm.test_lstm import TORCH, of_torch
from tests.support import tiny
from tests.support.golden_io import case, config, tensors

SIZE, WIDTH, SOURCES, M = 7, 11, 23, 5
BOTH = f"lstm({SIZE}, directions='both')"
FIELDS = {
  **{'num_layers': 2, 'num_encoder_layers': 2, 'd_model': WIDTH},
  'attention': f'lstm(13), lstm({WIDTH}, attends=True)',
  'encoder_attention': f'{BOTH}, {BOTH}',
  **{'block': 'plain', 'position': 'none', 'output': 'untied'},
  **{'source_vocab_size': SOURCES, 'init_weights': 'uniform'},
}
B, L = tiny.B, tiny.L


@pytest.fixture(scope='module')
def made():
  model = tiny.model(**FIELDS)
  params = tiny.random_like(tiny.params(model), seed=3)
  sources = np.random.default_rng(5).integers(0, SOURCES, (B, M))
  return model, params, sources.astype(np.int32)


@pytest.mark.parametrize(('biases', 'number'), [(2, 3_609_600), (1, 3_604_800)])
def test_the_encoder_has_the_papers_parameters(biases, number):
  given = cove.get_config('base').unlock()
  given.model.encoder_attention = given.model.encoder_attention.replace(
    'dropout=0.2)', f'dropout=0.2, biases={biases})'
  )
  resolved = config_lib.resolve(given.lock())
  shapes = parameter_shapes(config_lib.transformer(resolved))
  table = parameter_table({'encoder': shapes['encoder']})
  assert sum(map(np.prod, table.values())) == number


@pytest.mark.parametrize('padding', [0, 3])
def test_the_encoder_equals_torch(padding):
  """With rows of unequal lengths; more padding changes nothing."""
  golden, of_config = case(TORCH, 'bi'), config(TORCH)
  x_BLD, lengths = golden.inputs['input'], golden.inputs['lengths']
  (rows, length, width), size = x_BLD.shape, of_config['hidden_size']
  both = f"lstm({size}, directions='both')"
  model = tiny.model(
    **FIELDS
    | {'encoder_attention': f'{both}, {both}', 'd_model': width}
    | {'attention': f'lstm({width}, attends=True)', 'num_layers': 1}
    | {'source_vocab_size': rows * length}
  )
  weights = {
    name.removeprefix('bi.'): x for name, x in tensors(TORCH).items() if name.startswith('bi.')
  }
  params = tiny.params(model)
  params['encoder_embed'] = {'embedding': x_BLD.reshape(-1, width)}
  params['encoder'] = {
    'periods': {
      f'block_{i}': jax.tree.map(
        lambda x: x[None],
        {'forward': of_torch(weights, f'l{i}'), 'backward': of_torch(weights, f'l{i}_reverse')},
      )
      for i in range(2)
    }
  }
  tokens = np.arange(rows * length).reshape(rows, length)
  tokens = np.pad(tokens, ((0, 0), (0, padding)))
  mask = np.arange(length + padding) < lengths[:, None]
  found = jax.jit(lambda p: model.apply({'params': p}, Row(tokens, real_BL=mask), method='encode'))(
    params
  )
  assert golden.max_error('output', found[:, :length]) < 1e-5
  assert not np.any(found[:, length:])


def test_attention_equals_its_equation(made):
  """h~ = tanh(W_2 [c; h] + b_2), c = sum a z, a = softmax(z (W_1 h + b_1))."""
  model, params, sources = made
  tokens = tiny.tokens(B, L)
  mask = np.arange(M) < np.array([5, 2, 4])[:B, None]
  out, sown = jax.jit(
    lambda p: model.apply(
      {'params': p},
      Row(tokens, extra={'source': Row(sources, real_BL=mask)}),
      capture_intermediates=lambda module, _: module.name == 'forward',
      mutable=['intermediates'],
    )
  )(params)
  of_block = sown['intermediates']['decoder']['periods']['block_1']
  h_BLP = np.asarray(of_block['forward']['__call__'][0][0][0])
  z_BMD = np.asarray(out.memory_BMD)
  layers = jax.tree.map(
    lambda x: np.asarray(x[0], np.float64), params['decoder']['periods']['block_1']['attention']
  )

  def dense(name, x):
    return x @ layers[name]['kernel'] + layers[name]['bias']

  scores = np.einsum('BLD,BMD->BLM', dense('query', h_BLP), z_BMD)
  scores = np.where(mask[:, None], scores, -np.inf)
  exp = np.exp(scores - scores.max(-1, keepdims=True))
  a_BLM = exp / exp.sum(-1, keepdims=True)
  c_BLD = np.einsum('BLM,BMD->BLD', a_BLM, z_BMD)
  expected = np.tanh(dense('out', np.concatenate([c_BLD, h_BLP], -1)))
  np.testing.assert_allclose(out.hidden_BLD, expected, atol=1e-5)


def test_packed_pairs_see_their_own_source_alone(made):
  """Both rows of two pairs are those of the pairs alone."""
  model, params, sources = made
  tokens = tiny.tokens(B, L)
  cut, at = 2, 3

  def run(params, tokens, sources, segments=None, of_sources=None):
    source = Row(sources, segments_BL=of_sources)
    row = Row(tokens, segments_BL=segments, extra={'source': source})
    return model.apply({'params': params}, row).hidden_BLD

  packed = jax.jit(run)(
    params,
    tokens,
    sources,
    np.broadcast_to(np.arange(L) >= at, (B, L)).astype(np.int32),
    np.broadcast_to(np.arange(M) >= cut, (B, M)).astype(np.int32),
  )
  first = jax.jit(run)(params, tokens[:, :at], sources[:, :cut])
  second = jax.jit(run)(params, tokens[:, at:], sources[:, cut:])
  np.testing.assert_allclose(packed[:, :at], first, atol=1e-6)
  np.testing.assert_allclose(packed[:, at:], second, atol=1e-6)


def test_token_by_token_equals_one_pass(made):
  """Also of hypotheses that are reordered and share the encoder's output."""
  model, params, sources = made
  tokens = tiny.tokens(B, L)
  mask = np.arange(M) < np.array([5, 2, 4])[:B, None]
  order = np.array([1, 0, 3, 2, 5, 4])[: 2 * B]

  @jax.jit
  def run(params):
    apply = functools.partial(model.apply, {'params': params})
    source = Row(sources, real_BL=mask)
    whole = apply(Row(tokens, extra={'source': source}))
    memory = apply(source, method='encode')
    source = source._replace(tokens_BL=None)
    at = jnp.zeros((B, 1), jnp.int32)
    out = apply(
      Row(tokens[:, :1], at, extra={'source': source, 'encoded': memory}),
      init_caches(model, B, L, M),
    )
    caches = jax.tree.map(lambda x: x[0], out.caches)  # of one period
    rows = np.repeat(np.arange(B), 2)
    caches = take_rows(caches, rows, L, M, index_of_memory=np.arange(B))
    assert num_memory(caches) == M
    states = []
    for i in range(1, L):
      # Both hypotheses are the same, so that their order does not matter.
      caches = reorder(caches, order)
      given = jax.tree.map(lambda x: x[None], caches)
      now = np.repeat(tokens[:, i : i + 1], 2, axis=0)
      place = jnp.full((2 * B, 1), i)
      out = apply(Row(now, place, extra={'source': source}), given)
      caches = jax.tree.map(lambda x: x[0], out.caches)
      states.append(out.hidden_BLD[:, 0])
    return whole.hidden_BLD, jnp.stack(states, axis=1)

  whole, states = run(params)
  np.testing.assert_allclose(states[::2], whole[:, 1:], atol=1e-5)
  np.testing.assert_allclose(states[1::2], whole[:, 1:], atol=1e-5)
