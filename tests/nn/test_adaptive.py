# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adaptive embeddings and softmax against NumPy, cluster by cluster."""

import jax
import numpy as np
import pytest

from gpt_jax.nn.embed import adaptive_log_probs
from gpt_jax.objectives import cross_entropy
from gpt_jax.objectives.causal import Causal
from gpt_jax.spec import UsageError
from tests.support import reference, tiny

B, L, V, D = 3, 11, 23, 17
E = 13
CUTOFFS = (5, 12)
BOUNDS = ((0, 5), (5, 12), (12, 23))
# (div_val, d_embed, own, widths, shapes of the input's projections)
CASES = [
  (2, E, (), (13, 6, 3), 3),
  (2, E, (0, 2), (13, 6, 3), 3),
  (3, D, (0,), (17, 5, 1), 3),
  (1, E, (), (13, 13, 13), 1),
  (1, E, (1,), (13, 13, 13), 1),
  (1, D, (), (17, 17, 17), 0),
]


def make(div_val, d_embed, own=(), cutoffs=CUTOFFS, **changes):
  return tiny.model(
    num_layers=1,
    **{
      'input': f'adaptive({cutoffs}, d_embed={d_embed}, div_val={div_val})',
      'output': f'adaptive(own={own})',
      **changes,
    },
  )


def logits_of(model, params, hidden):
  return jax.jit(lambda p, h: model.apply({'params': p}, h, method='logits'))(
    params, hidden
  )


def embedded_of(model, params, tokens):
  run = jax.jit(
    lambda p: model.apply({'params': p}, tokens, mutable=['intermediates'])
  )
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
  model = make(div_val, d_embed, own, position='none')
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
  table = wide_table(reference.to_float64(embed), num_kernels)
  found = embedded_of(model, params, tokens)
  np.testing.assert_allclose(found, table[tokens], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('div_val, d_embed, own, widths, num_kernels', CASES)
def test_softmax(div_val, d_embed, own, widths, num_kernels):
  """P(w), or P(cluster) P(w | cluster); probabilities sum to one."""
  model = make(div_val, d_embed, own)
  params = tiny.params(model)
  p = reference.to_float64(params)
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
    head = reference.softmax(scores(0)[b])
    expected[b, :5] = head[:5]
    expected[b, 5:12] = head[5] * reference.softmax(scores(1)[b])
    expected[b, 12:] = head[6] * reference.softmax(scores(2)[b])
  found = logits_of(model, params, np.float32(h))
  np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(np.exp(found).sum(-1), 1, rtol=1e-5)


def test_one_cluster_is_a_plain_softmax():
  model = make(2, E, cutoffs=())
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
  model = make(2, E, output='tied')
  params = tiny.params(model)
  assert 'softmax' not in params
  h = np.float32(np.random.default_rng(1).normal(size=(B, D)))
  table = wide_table(reference.to_float64(params['embed']), 3)
  found = logits_of(model, params, h)
  np.testing.assert_allclose(found, h @ table.T, rtol=1e-4, atol=1e-5)


def test_causal_objective(monkeypatch):
  """Its loss is that of the probabilities; every parameter has a gradient."""
  # Three chunks, of which the last is not full.
  monkeypatch.setattr(cross_entropy, 'CHUNK_LOGITS', 4 * B * V)
  model = make(2, E, (0,), position='none')
  params, batch = tiny.params(model), tiny.batch(B, L, V)
  objective = Causal().bind(model)

  def total(params):
    loss = objective.loss(params, batch, None)
    return loss.sum, loss

  gradient, loss = jax.device_get(
    jax.jit(jax.grad(total, has_aux=True))(params)
  )
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
  'model, message',
  [
    (make(2, E, cutoffs=(5, 5)), r'cutoffs=\(5, 5\) must grow'),
    (make(2, E, cutoffs=(5, 23)), 'to below model.vocab_size=23'),
    (make(2, E, cutoffs=(0,)), 'must grow from 1'),
    (make(2, E, cutoffs=(5.0,)), 'takes whole numbers'),
    (make(4, E), 'd_embed=13 is too narrow'),
    (make(0, E), 'at least 1'),
    (make(2, E, (3,)), r'own=\(3,\) must be numbers of clusters'),
    (make(1, D, (0,)), 'there must be projections'),
    (make(2, E, input='tokens'), r'needs model\.input=adaptive'),
  ],
)
def test_refusals(model, message):
  with pytest.raises(UsageError, match=message):
    jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 1), np.int32))


def test_an_adaptive_softmax_has_no_table():
  model = make(2, E)
  with pytest.raises(UsageError, match='causal objective only'):
    model.apply({'params': tiny.params(model)}, method='output_table')
