# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedding table, as first layer and as last; what models make of both."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from gpt_jax.core import spec
from gpt_jax.core.nn.choices import INITS, INPUTS, OUTPUTS
from gpt_jax.core.nn.embed import Embedding
from gpt_jax.core.nn.row import Row
from gpt_jax.core.objectives import cross_entropy
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import UsageError
from gpt_jax.ejecting import weights
from gpt_jax.papers.transformer_xl.adaptive import adaptive_log_probs
from tests.support import reference, tiny
from tests.support.cases import slow

B, L, V, D = tiny.B, tiny.L, tiny.V, tiny.D
TOKENS = np.array([[0, 22, 5], [5, 5, 1]])
PLAIN = reference.of()


def make_table(dtype):
  init = INITS['normal'](0.5)(1).embedding
  module = Embedding(V, D, init, dtype)
  return module, jax.jit(module.init)(jax.random.key(0), TOKENS)


def test_lookup_and_table():
  module, params = make_table(jnp.float32)
  boxed = params['params']['embedding']
  assert boxed.names == ('vocab', 'embed')
  assert boxed.value.shape == (V, D)
  table = np.asarray(boxed.value)
  np.testing.assert_array_equal(module.apply(params, TOKENS), table[TOKENS])
  found = module.apply(params, method='table')
  np.testing.assert_array_equal(found, table)


def test_bfloat16_is_rounded_after_the_lookup():
  module, params = make_table(jnp.bfloat16)
  table = params['params']['embedding'].value
  assert table.dtype == jnp.float32
  rounded = table.astype(jnp.bfloat16)
  found = module.apply(params, TOKENS)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, np.asarray(rounded)[TOKENS])
  np.testing.assert_array_equal(module.apply(params, method='table'), rounded)


def test_gradient_of_a_token_is_summed_over_its_places():
  module, params = make_table(jnp.float32)
  weights = np.float32(np.random.default_rng(0).normal(size=(2, 3, D)))
  gradient = jax.grad(lambda p: (module.apply(p, TOKENS) * weights).sum())(params)['params'][
    'embedding'
  ].value
  expected = np.zeros((V, D))
  np.add.at(expected, TOKENS, weights)
  np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('scale, expected', [('none', 1), ('sqrt', 13), ('rsqrt', 1 / 13)])
def test_scales_by_width(scale, expected):
  texts = (f'tokens(scale={scale!r})', f'tied(scale={scale!r})')
  for text, choices in zip(texts, (INPUTS, OUTPUTS), strict=True):
    found = spec.build('field', text, choices).scale(169)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_plain_choices():
  plain = spec.build('model.input', 'tokens', INPUTS)
  assert (plain.scale(D), plain.num_token_types, plain.norm) == (1.0, 0, False)
  for text, tied in (('tied', True), ('untied', False)):
    plain = spec.build('model.output', text, OUTPUTS)
    assert (plain.tied, plain.bias, plain.scale(D)) == (tied, False, 1.0)


def test_unknown_transform():
  text = "tied(transform='swiglu')"
  with pytest.raises(UsageError, match="transform='swiglu' is unknown; one of"):
    spec.build('model.output', text, OUTPUTS)


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
      {'params': params}, Row(tokens, token_types_BL=types), mutable='intermediates'
    )
    return sown['intermediates']['embedded'][0]

  def by_hand(types):
    p = reference.widened(params)
    x = scale * p['embed']['embedding'][tokens]
    if 'token_types' in text:
      x = x + p['segments']['embedding'][types]
    x = x + p['positions']['embedding'][:L]
    if 'norm' in text:
      x = reference.run(PLAIN.norm, x, p['embed_norm'])
    if 'd_embed' in text:
      x = reference.run(PLAIN.dense, x, p['embed_projection'])
    return x

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
  assert ('output_dense' in params) == ('transform' in text)
  assert ('head_bias' in params) == ('bias' in text)
  plain = reference.of(TIED=head == 'embed')

  def expected(p):
    x = plain.hidden_states(p, batch)
    if 'transform' in text:
      # BERT: a dense layer, an activation, a norm.
      activation = plain.gelu_exact if 'gelu' in text else jnp.tanh
      x = plain.norm(activation(plain.dense(x, p['output_dense'])), p['output_norm'])
    scores = plain.logits(p, scale * x) + p.get('head_bias', 0.0)
    total, _ = reference.loss_of(scores, jnp.eye(tiny.V), batch['targets'], batch['weights'])
    return total, scores

  both = jax.value_and_grad(expected, has_aux=True)
  (wanted, scores), slopes = reference.run(both, weights.to_plain(params))
  np.testing.assert_allclose(logits, scores, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)
  if 'bias' in text:
    np.testing.assert_allclose(gradient['head_bias'], slopes['head_bias'], rtol=1e-3, atol=1e-4)


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
  model = tiny.model(input=f'tokens(d_embed={d_embed})', output=text, num_layers=1)
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
  tied = text.startswith('tied')

  def expected(p, x):
    if 'transform' in text:
      assert p['output_dense']['kernel'].shape == (D, d_embed if tied else D)
      x = PLAIN.norm(jnp.tanh(PLAIN.dense(x, p['output_dense'])), p['output_norm'])
    else:
      x = x @ p['embed_projection']['kernel'].T * 5**-0.5
    scores = reference.of(TIED=tied).logits(p, x) + p.get('head_bias', 0.0)
    loss = reference.loss_of(scores, jnp.eye(tiny.V), batch['targets'], batch['weights'])
    return scores, loss[0]

  scores, wanted = reference.run(expected, params, hidden)
  np.testing.assert_allclose(logits, scores, rtol=1e-3, atol=1e-4)
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
  wanted, _ = reference.run(reference.loss_of, expected, ones, batch['targets'], batch['weights'])
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)


NARROW = 13
CUTOFFS = (5, 12)
BOUNDS = ((0, 5), (5, 12), (12, 23))
# (div_val, d_embed, own, widths, shapes of the input's projections)
CASES = [
  (2, NARROW, (), (13, 6, 3), 3),
  (2, NARROW, (0, 2), (13, 6, 3), 3),
  (3, D, (0,), (17, 5, 1), 3),
  (1, NARROW, (), (13, 13, 13), 1),
  (1, NARROW, (1,), (13, 13, 13), 1),
  (1, D, (), (17, 17, 17), 0),
]


def adaptive(div_val, d_embed, own=(), cutoffs=CUTOFFS, **changes):
  return tiny.model(
    num_layers=1,
    **{
      'input': f'adaptive({cutoffs}, d_embed={d_embed}, div_val={div_val})',
      'output': f'adaptive(own={own})',
      **changes,
    },
  )


def logits_of(model, params, hidden):
  return jax.jit(lambda p, h: model.apply({'params': p}, h, method='logits'))(params, hidden)


def embedded_of(model, params, tokens):
  run = jax.jit(lambda p: model.apply({'params': p}, tokens, mutable=['intermediates']))
  return run(params)[1]['intermediates']['embedded'][0]


def wide_table(embed, num_kernels):
  """The vector of each token: [V, D]."""
  rows = []
  for i in range(len(BOUNDS)):
    kernel = np.eye(D)
    if num_kernels:
      kernel = embed[f'kernel_{i if num_kernels > 1 else 0}']
    rows.append(embed[f'embedding_{i}'] @ kernel)
  return np.concatenate(rows)


@pytest.mark.parametrize('div_val, d_embed, own, widths, num_kernels', CASES)
def test_embedding(div_val, d_embed, own, widths, num_kernels):
  model = adaptive(div_val, d_embed, own, position='none')
  params = tiny.params(model)
  embed = params['embed']
  expected = {
    f'embedding_{i}': (stop - start, width)
    for i, ((start, stop), width) in enumerate(zip(BOUNDS, widths, strict=True))
  }
  expected |= {f'kernel_{i}': (widths[i], D) for i in range(num_kernels)}
  assert {name: x.shape for name, x in embed.items()} == expected
  tokens = tiny.tokens(B, L)
  tokens[0, :6] = [0, 4, 5, 11, 12, 22]  # the ends of all clusters
  table = wide_table(reference.widened(embed), num_kernels)
  found = embedded_of(model, params, tokens)
  np.testing.assert_allclose(found, table[tokens], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('div_val, d_embed, own, widths, num_kernels', CASES)
def test_softmax(div_val, d_embed, own, widths, num_kernels):
  """P(w), or P(cluster) P(w | cluster); probabilities sum to one."""
  model = adaptive(div_val, d_embed, own)
  params = tiny.params(model)
  p = reference.widened(params)
  embed, softmax = p['embed'], p['softmax']
  h = np.random.default_rng(1).normal(size=(B, D))

  def scores(i):
    x = h
    if i in own:
      x = h @ softmax[f'kernel_{i}']
    elif num_kernels:
      x = h @ embed[f'kernel_{i if num_kernels > 1 else 0}'].T
    out = x @ embed[f'embedding_{i}'].T + softmax[f'bias_{i}']
    if i:
      return out
    clusters = x @ softmax['cluster_embedding'].T + softmax['cluster_bias']
    return np.concatenate([out, clusters], axis=1)

  expected = np.zeros((B, V))
  for b in range(B):
    head = special.softmax(scores(0)[b])
    expected[b, :5] = head[:5]
    expected[b, 5:12] = head[5] * special.softmax(scores(1)[b])
    expected[b, 12:] = head[6] * special.softmax(scores(2)[b])
  found = logits_of(model, params, np.float32(h))
  np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(np.exp(found).sum(-1), 1, rtol=1e-5)


def test_one_cluster_is_a_plain_softmax():
  model = adaptive(2, NARROW, cutoffs=())
  params = tiny.params(model)
  assert {*params['softmax']} == {'bias_0'}
  h = np.float32(np.random.default_rng(1).normal(size=(B, D)))
  table = params['embed']['embedding_0'] @ params['embed']['kernel_0']
  logits = h @ table.T + params['softmax']['bias_0'][None]
  found = logits_of(model, params, h)
  expected = jax.nn.log_softmax(logits, axis=-1)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  only = adaptive_log_probs([logits])
  np.testing.assert_allclose(only, expected, rtol=1e-5, atol=1e-6)


def test_plain_softmax_over_adaptive_embeddings():
  model = adaptive(2, NARROW, output='tied')
  params = tiny.params(model)
  assert 'softmax' not in params
  h = np.float32(np.random.default_rng(1).normal(size=(B, D)))
  table = wide_table(reference.widened(params['embed']), 3)
  found = logits_of(model, params, h)
  np.testing.assert_allclose(found, h @ table.T, rtol=1e-4, atol=1e-5)


def test_causal_objective(monkeypatch):
  """Its loss is that of the probabilities; every parameter has a gradient."""
  # Three chunks, of which the last is not full.
  monkeypatch.setattr(cross_entropy, 'CHUNK_LOGITS', 4 * B * V)
  model = adaptive(2, NARROW, (0,), position='none')
  params, batch = tiny.params(model), tiny.batch(B, L, V)
  objective = Causal().bind(model)

  def total(params):
    loss = objective.loss(params, batch, None)
    return loss.sum, loss

  gradient, loss = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(params))
  hidden = jax.jit(model.apply)({'params': params}, batch['inputs']).hidden_BLD
  log_probs = np.asarray(logits_of(model, params, hidden))
  index = batch['targets'][..., None]
  picked = np.take_along_axis(log_probs, index, axis=-1)[..., 0]
  expected = -np.sum(picked * batch['weights'])
  np.testing.assert_allclose(loss.sum, expected, rtol=1e-5)
  assert loss.weight == batch['weights'].sum()
  assert loss.penalty == 0
  for path, g in jax.tree_util.tree_leaves_with_path(gradient):
    # A bias on all keys of a query changes nothing.
    if 'key' not in jax.tree_util.keystr(path):
      assert np.any(g), jax.tree_util.keystr(path)
  with pytest.raises(UsageError, match='several normalisers'):
    Causal(z_loss=1e-4).bind(model)


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: adaptive(2, NARROW, cutoffs=(5, 5)), r'cutoffs=\(5, 5\) must increase'),
    (lambda: adaptive(2, NARROW, cutoffs=(5, 23)), 'to below model.vocab_size=23'),
    (lambda: adaptive(2, NARROW, cutoffs=(0,)), 'must increase, from 1'),
    (lambda: adaptive(2, NARROW, cutoffs=(5.0,)), 'takes whole numbers'),
    (lambda: adaptive(4, NARROW), 'd_embed=13 is too narrow'),
    (lambda: adaptive(0, NARROW), 'at least 1'),
    (lambda: adaptive(2, NARROW, (3,)), r'own=\(3,\) must be numbers of clusters'),
    (lambda: adaptive(1, D, (0,)), 'there must be projections'),
    (lambda: adaptive(2, NARROW, input='tokens'), 'needs adaptive embeddings'),
  ],
)
def test_refusals(make, message):
  with pytest.raises(UsageError, match=message):
    jax.eval_shape(make().init, jax.random.key(0), np.zeros((1, 1), np.int32))


def test_an_adaptive_softmax_has_no_table():
  model = adaptive(2, NARROW)
  with pytest.raises(UsageError, match='causal objective only'):
    model.apply({'params': tiny.params(model)}, method='output_table')
