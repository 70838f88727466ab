# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the model makes of its choices of input and output."""

import functools

import jax
import numpy as np
import pytest

from gpt_jax.objectives.causal import Causal
from tests.support import reference, tiny

B, L, D = tiny.B, tiny.L, tiny.D
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  'text, scale',
  [
    ("tokens(scale='sqrt')", D**0.5),
    ("tokens(scale='rsqrt', token_types=2)", D**-0.5),
    ('tokens(token_types=3, norm=True)', 1.0),
    ('tokens(norm=True)', 1.0),
    ("tokens(scale='sqrt', token_types=2, norm=True, d_embed=5)", 5**0.5),
  ],
)
def test_input(text, scale):
  """norm(scale * token + segment + position): only tokens are scaled."""
  model = tiny.model(input=text, num_layers=1)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  types = tiny.tokens(B, L, vocab_size=2, seed=5)

  @jax.jit
  def embedded(params, types):
    _, sown = model.apply(
      {'params': params}, tokens, token_types_BL=types, mutable='intermediates'
    )
    return sown['intermediates']['embedded'][0]

  def by_hand(types):
    p = reference.to_float64(params)
    x = scale * p['embed']['embedding'][tokens]
    if 'token_types' in text:
      x = x + p['segments']['embedding'][types]
    x = x + p['positions']['embedding'][:L]
    x = reference.normalize(p, 'embed_norm', x) if 'norm' in text else x
    wide = 'd_embed' in text
    return reference.dense(p['embed_projection'], x) if wide else x

  typed = 'token_types' in text
  found = embedded(params, types if typed else None)
  np.testing.assert_allclose(found, by_hand(types), rtol=1e-4, atol=1e-5)
  if typed:
    # Without types, all tokens are of the first.
    plain = by_hand(np.zeros_like(types))
    found = embedded(params, None)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-5)
    assert not np.allclose(plain, by_hand(types))
  assert ('segments' in params) == typed
  assert ('embed_norm' in params) == ('norm' in text)


@pytest.mark.parametrize(
  'text, head, scale',
  [
    slow("tied(scale='rsqrt')", 'embed', D**-0.5),
    slow("tied(bias=True, scale='rsqrt')", 'embed', D**-0.5),
    ("untied(bias=True, scale='sqrt')", 'head', D**0.5),
    ("tied(bias=True, transform='gelu')", 'embed', 1),
    slow("untied(scale='rsqrt', transform='tanh')", 'head', D**-0.5),
  ],
)
def test_output(text, head, scale):
  """Logits, the loss, and its gradient by the bias."""
  model = tiny.model(output=text, num_layers=1)
  params, batch = tiny.params(model), tiny.batch(B, L, tiny.V)
  objective = Causal().bind(model)

  @jax.jit
  def run(params):
    hidden = model.apply({'params': params}, batch['inputs']).hidden_BLD
    logits = model.apply({'params': params}, hidden, method='logits')
    total = lambda p: objective.loss(p, batch, None).sum  # noqa: E731
    return logits, jax.value_and_grad(total)(params)

  logits, (loss, gradient) = jax.device_get(run(params))
  hidden = reference.hidden(
    params,
    batch['inputs'],
    kind='pre',
    num_layers=1,
    heads=tiny.H,
    kv_heads=tiny.G,
    windows=(None,),
  )
  assert ('output_dense' in params) == ('transform' in text)
  if 'transform' in text:
    # BERT: a dense layer, an activation, a norm.
    p = reference.to_float64(params)
    activation = reference.gelu if 'gelu' in text else np.tanh
    hidden = activation(reference.dense(p['output_dense'], hidden))
    hidden = reference.normalize(p, 'output_norm', hidden)
  table = np.float64(params[head]['embedding'])
  bias = np.float64(params.get('head_bias', np.zeros(tiny.V)))
  assert ('head_bias' in params) == ('bias' in text)
  expected = scale * (hidden @ table.T) + bias
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)

  # The bias is one more feature, which is always one.
  wide = np.concatenate([scale * hidden, np.ones((B, L, 1))], axis=-1)
  table = np.concatenate([table, bias[:, None]], axis=-1)
  targets, weights = batch['targets'], batch['weights']
  np.testing.assert_allclose(
    loss,
    reference.cross_entropy(wide, table, targets, weights),
    rtol=1e-5,
  )
  if 'bias' in text:
    _, d_table = reference.cross_entropy_gradients(
      wide, table, targets, weights
    )
    np.testing.assert_allclose(
      gradient['head_bias'], d_table[:, -1], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
  'text, d_embed',
  [
    ("tied(bias=True, transform='tanh')", 5),
    slow("tied(scale='rsqrt')", 5),
    slow("untied(bias=True, transform='tanh')", D),
  ],
)
def test_output_beside_embeddings_of_another_width(text, d_embed):
  """A tied table is as narrow as they are, and so is what it multiplies."""
  model = tiny.model(
    input=f'tokens(d_embed={d_embed})', output=text, num_layers=1
  )
  params, batch = tiny.params(model), tiny.batch(B, L, tiny.V)
  assert params['embed']['embedding'].shape == (tiny.V, d_embed)
  assert params['embed_projection']['kernel'].shape == (d_embed, D)
  objective = Causal().bind(model)

  @jax.jit
  def run(params):
    hidden = model.apply({'params': params}, batch['inputs']).hidden_BLD
    logits = model.apply({'params': params}, hidden, method='logits')
    return hidden, logits, objective.loss(params, batch, None).sum

  hidden, logits, loss = jax.device_get(run(params))
  p, x = reference.to_float64(params), np.float64(hidden)
  if 'transform' in text:
    width = d_embed if text.startswith('tied') else D
    assert p['output_dense']['kernel'].shape == (D, width)
    x = np.tanh(reference.dense(p['output_dense'], x))
    x = reference.normalize(p, 'output_norm', x)
  else:
    x = x @ p['embed_projection']['kernel'].T * 5**-0.5
  table = p['embed' if text.startswith('tied') else 'head']['embedding']
  expected = x @ table.T + p.get('head_bias', np.zeros(tiny.V))
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
  wanted = reference.cross_entropy(
    expected, np.eye(tiny.V), batch['targets'], batch['weights']
  )
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)


@pytest.mark.parametrize('text', ['tied()', slow('untied(bias=True)')])
def test_bounded_logits(text):
  """From those of the model without a bound, and the loss from them."""
  plain = tiny.model(output=text, num_layers=1)
  bound = text.replace(')', ', softcap=0.3)').replace('(, ', '(')
  model = plain.clone(output=bound)
  params, batch = tiny.params(plain), tiny.batch(B, L, tiny.V)

  def logits(model, params):
    hidden = model.apply({'params': params}, batch['inputs']).hidden_BLD
    return model.apply({'params': params}, hidden, method='logits')

  expected = np.float64(jax.jit(functools.partial(logits, plain))(params))
  expected = 0.3 * np.tanh(expected / 0.3)
  found = jax.jit(functools.partial(logits, model))(params)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  loss = jax.jit(Causal().bind(model).loss)(params, batch, None).sum
  ones = np.eye(tiny.V)
  wanted = reference.cross_entropy(
    expected, ones, batch['targets'], batch['weights']
  )
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)
