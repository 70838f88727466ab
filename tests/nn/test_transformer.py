# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole model against GPT-1 and GPT-2 written in NumPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.objectives.causal import Causal
from tests.support import reference, tiny

B, L, D = tiny.B, tiny.L, tiny.D


@functools.cache
def forward(model):
  return jax.jit(lambda p, *args: model.apply({'params': p}, *args).hidden_BLD)


def expected_hidden(params, tokens, *, kind):
  return reference.hidden(
    params,
    tokens,
    kind=kind,
    num_layers=tiny.MODEL['num_layers'],
    heads=tiny.H,
    kv_heads=tiny.G,
    windows=(None,),
  )


@pytest.mark.parametrize(
  'kind, output',
  [
    ('pre', 'tied'),
    pytest.param('post', 'tied', marks=pytest.mark.slow),
    ('post', 'untied'),
  ],
)
def test_loss_and_gradient_are_those_of_the_papers(kind, output):
  """GPT-1 ('post') and GPT-2 ('pre'); the gradient along a direction."""
  model = tiny.model(block=kind, output=output)
  params, batch = tiny.params(model), tiny.batch(B, L, tiny.V)
  assert 0 < batch['weights'].mean() < 1
  head = 'embed' if output == 'tied' else 'head'
  objective = Causal().bind(model)

  @jax.jit
  def value_and_gradient(params):
    def total(params):
      loss = objective.loss(params, batch, None)
      return loss.sum, loss.weight

    return jax.value_and_grad(total, has_aux=True)(params)

  def expected_loss(params):
    hidden = expected_hidden(params, batch['inputs'], kind=kind)
    table = params[head]['embedding']
    return reference.cross_entropy(
      hidden, table, batch['targets'], batch['weights']
    )

  (loss, weight), gradient = jax.device_get(value_and_gradient(params))
  wide = reference.to_float64(params)
  np.testing.assert_allclose(loss, expected_loss(wide), rtol=1e-5)
  np.testing.assert_allclose(weight, batch['weights'].sum())

  direction = reference.to_float64(tiny.random_like(params, seed=7))

  def moved(h):
    return expected_loss(jax.tree.map(lambda p, d: p + h * d, wide, direction))

  h = 1e-5
  slope = (moved(h) - moved(-h)) / (2 * h)
  products = jax.tree.map(np.vdot, gradient, direction)
  np.testing.assert_allclose(sum(jax.tree.leaves(products)), slope, rtol=1e-4)


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_hidden_states_and_logits(output):
  model = tiny.model(output=output)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  hidden = expected_hidden(params, tokens, kind='pre')
  head = 'embed' if output == 'tied' else 'head'
  table = np.float64(params[head]['embedding'])

  @jax.jit
  def both(params):
    found = model.apply({'params': params}, tokens).hidden_BLD
    return found, model.apply({'params': params}, found, method='logits')

  found, logits = both(params)
  np.testing.assert_allclose(found, hidden, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(logits, hidden @ table.T, rtol=1e-3, atol=1e-4)


def test_positions_are_those_given():
  model = tiny.model()
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  plain = forward(model)(params, tokens)
  counted = np.broadcast_to(np.arange(L, dtype=np.int32), (B, L))
  np.testing.assert_array_equal(forward(model)(params, tokens, counted), plain)
  shifted = forward(model)(params, tokens, counted + 2)
  assert not np.allclose(shifted, plain)


def test_without_positions_order_is_seen_by_the_mask_alone():
  """The last state does not depend on the order of two earlier tokens."""
  model = tiny.model(position='none', num_layers=1)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  assert 'positions' not in params
  swapped = tokens.copy()
  swapped[:, [1, 4]] = tokens[:, [4, 1]]
  one, other = (forward(model)(params, t) for t in (tokens, swapped))
  np.testing.assert_allclose(one[:, 5:], other[:, 5:], rtol=1e-4, atol=1e-5)
  assert not np.allclose(one[:, 2:4], other[:, 2:4])


def test_bias_none_equals_biases_of_zero():
  with_bias, without = (
    tiny.model(num_layers=2),
    tiny.model(num_layers=2, bias='none'),
  )
  params = tiny.params(without)
  zeros = tiny.params(with_bias)

  def fill(path, leaf):
    tree = params
    for key in path:
      if key.key not in tree:
        assert path[-1].key == 'bias'
        return np.zeros_like(leaf)
      tree = tree[key.key]
    return tree

  zeros = jax.tree_util.tree_map_with_path(fill, zeros)
  tokens = tiny.tokens(B, L)
  np.testing.assert_allclose(
    forward(without)(params, tokens),
    forward(with_bias)(zeros, tokens),
    rtol=1e-5,
    atol=1e-6,
  )


def test_bfloat16_is_near_float32():
  model, half = tiny.model(), tiny.model(dtype='bfloat16')
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  exact, rounded = (
    np.asarray(forward(m)(params, tokens)) for m in (model, half)
  )
  assert exact.dtype == jnp.float32
  assert rounded.dtype == jnp.bfloat16
  # States are normalised, near 1; bfloat16 has 8 bits.
  assert 0 < np.mean(np.abs(exact - np.float32(rounded))) < 0.05
  logits = jax.eval_shape(
    lambda p, h: half.apply({'params': p}, h, method='logits'), params, rounded
  )
  assert logits.dtype == jnp.float32


def test_a_new_model_predicts_every_token_alike():
  """Its loss is the logarithm of the vocabulary."""
  model = tiny.model()
  params = tiny.params(model)
  small = jax.tree.map(lambda p: 0.02 * p, params)
  batch = tiny.batch(B, L, tiny.V)
  loss = jax.jit(Causal().bind(model).loss)(small, batch, None)
  np.testing.assert_allclose(
    loss.sum / loss.weight, math.log(tiny.V), rtol=1e-2
  )


def test_many_choices_together():
  """LLaMA but for its positions, with a layer scale and ALiBi's slopes."""
  model = tiny.model(
    num_layers=2,
    num_heads=4,
    num_kv_heads=1,
    position='alibi',
    ffn='swiglu',
    norm='rmsnorm',
    block='parallel',
    bias='none',
    attention_scale='by_layer',
  )
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  p = reference.to_float64(params)
  # Press et al. (2022), section 3: for four heads 2^-2, 2^-4, 2^-6, 2^-8.
  slopes = [1 / 4, 1 / 16, 1 / 64, 1 / 256]
  x = reference.stack(
    p['decoder'],
    p['embed']['embedding'][tokens],
    [{'scale': tiny.K**-0.5}, {'scale': tiny.K**-0.5 / 2}],
    kind='parallel',
    heads=4,
    kv_heads=1,
    norm=reference.rms_norm,
    activation=reference.GATES['swiglu'],
    bias=lambda b, h, i, j: -slopes[h] * (i - j),
  )[-1]
  expected = reference.normalize(p, 'final_norm', x, reference.rms_norm)
  found = forward(model)(params, tokens)
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('qkv', [True, False])
@pytest.mark.parametrize('out', [True, False])
@pytest.mark.parametrize('ffn', [True, False])
def test_biases_are_where_they_are_asked_for(qkv, out, ffn):
  text = f'where(qkv={qkv}, out={out}, ffn={ffn})'
  model = tiny.model(bias=text, ffn='geglu', norm='rmsnorm')
  params = tiny.params(model)['decoder']['periods']['block_0']
  found = {
    f'{part}/{name}'
    for part in ('attention', 'ffn')
    for name, p in params[part].items()
    if 'bias' in p
  }
  expected = set()
  if qkv:
    expected |= {f'attention/{name}' for name in ('query', 'key', 'value')}
  if out:
    expected |= {'attention/out'}
  if ffn:
    expected |= {'ffn/in', 'ffn/gate', 'ffn/out'}
  assert found == expected


def test_where_names_places_and_the_rest_have_none():
  def shapes(text):
    return jax.tree.map(np.shape, tiny.params(tiny.model(bias=text)))

  assert shapes('where(qkv=True, out=True, ffn=True)') == shapes('all')
  assert shapes('where()') == shapes('none')


# Dropout -----------------------------------------------------------------


@functools.cache
def dropped(model):
  def run(params, tokens, key):
    rngs = {'dropout': key}
    return model.apply({'params': params}, tokens, rngs=rngs).hidden_BLD

  return jax.jit(run)


@pytest.mark.parametrize('place', ['embedding', 'residual', 'attention'])
def test_dropout_needs_a_key(place):
  model = tiny.model(num_layers=2, dropout=f'rates({place}=0.3)')
  plain = tiny.model(num_layers=2)
  params, tokens = tiny.params(plain), tiny.tokens(B, L)
  expected = forward(plain)(params, tokens)
  np.testing.assert_array_equal(forward(model)(params, tokens), expected)
  one, again, other = (
    np.asarray(dropped(model)(params, tokens, jax.random.key(seed)))
    for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(one, again)
  # The first token attends to itself alone, and to nothing if that is dropped.
  assert np.all(np.any(one[:, 1:] != expected[:, 1:], axis=(0, 2)))
  assert np.any(one != other)


def test_no_rate_no_dropout():
  model = tiny.model(num_layers=2)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  np.testing.assert_allclose(
    dropped(model)(params, tokens, jax.random.key(0)),
    forward(model)(params, tokens),
    rtol=1e-5,
    atol=1e-6,
  )


def test_embedding_dropout_drops_entries_and_doubles_the_rest():
  """With blocks that add nothing the model is norm(dropout(embedding))."""
  model = tiny.model(num_layers=2, dropout='rates(embedding=0.5)')
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: 0 * x if path[-2].key == 'out' else x, tiny.params(model)
  )
  tokens = tiny.tokens(B, L)
  found = np.asarray(dropped(model)(params, tokens, jax.random.key(0)))
  x = params['embed']['embedding'][tokens]
  x = np.float64(x + params['positions']['embedding'][:L])
  norm = params['final_norm']
  # Undone, the norm leaves the value that all dropped entries of a row share.
  plain = (found - norm['bias']) / norm['scale']
  num_dropped = 0
  for row, entries in zip(plain.reshape(-1, D), x.reshape(-1, D), strict=True):
    gaps = np.abs(row[:, None] - row[None, :]) < 1e-4
    is_dropped = gaps.sum(0) > 1
    assert gaps[is_dropped][:, is_dropped].all()
    num_dropped += is_dropped.sum()
    expected = reference.layer_norm(np.where(is_dropped, 0, 2 * entries), 1, 0)
    np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-4)
  assert 0.42 < num_dropped / x.size < 0.58
