# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encoder and decoder against the papers' layers, composed in NumPy.

The two Transformers with norms after and before the sublayers, and T5.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax.nn.caches import init_caches
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.spec import UsageError
from tests.support import reference, tiny

B, L, M, D = tiny.B, tiny.L, 7, tiny.D
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SIZES = {'num_layers': 3, 'num_encoder_layers': 2}
MODELS = {
  # BART's stacks have norms and positions of their inputs of their own.
  'post': {'block': 'post', 'num_kv_heads': 6, 'input': 'tokens(norm=True)'},
  'pre': {'block': 'pre', 'attention': 'local(window=4)'},
  't5': {
    'position': 't5_bias',
    'attention_scale': 'none',
    'ffn': 'geglu_tanh',
    'norm': 'rmsnorm',
    'bias': 'none',
    'value_size': 5,  # rows B of the Transformer's table 3: d_k is not d_v
  },
}
# The encoder's heads are two of the decoder's each, its layers narrower.
MODELS['uneven'] = MODELS['t5'] | {'encoder_num_heads': 3, 'encoder_d_ff': 19}


def make(name, **changes):
  return tiny.model(**SIZES, **{**MODELS[name], **changes})


def inputs():
  """Ids for both stacks; the encoder's are padded left, right, not at all."""
  mask = np.ones((B, M), bool)
  mask[0, :2] = mask[1, 4:] = False
  return tiny.tokens(B, L), tiny.tokens(B, M, seed=1), mask


def t5_bias(table, *, causal):
  """T5, section 2.1, for distances that have a bucket each.

  Of 32 buckets a decoder gives the first 16 to one distance each; an encoder
  the first 8 to those of earlier keys, and 8 from 16 on to later ones.
  """

  def bias(b, h, i, j):
    assert abs(i - j) < (16 if causal else 8)
    later = not causal and j > i
    return table[abs(i - j) + 16 * later, h]

  return bias


def by_hand(name, params, tokens, source, mask):
  """The outputs of all layers of both stacks, and the two last states."""
  p = reference.to_float64(params)
  shared = {'heads': tiny.H, 'kv_heads': MODELS[name].get('num_kv_heads', 2)}
  norm, biases = reference.layer_norm, [{}, {}]
  if name in ('t5', 'uneven'):
    norm = reference.rms_norm
    shared |= {'scale': 1.0, 'norm': norm, 'activation': reference.gelu_tanh}
    biases = [
      {'bias': t5_bias(p[f'{stack}_bias']['embedding'], causal=causal)}
      for stack, causal in (('encoder', False), ('decoder', True))
    ]
  shared['kind'] = 'post' if name == 'post' else 'pre'

  def embed(ids, side=''):
    x = p['embed']['embedding'][ids]
    if 'positions' in p:
      x = x + p[f'{side}positions']['embedding'][: ids.shape[1]]
    if 'embed_norm' in p:
      x = reference.normalize(p, f'{side}embed_norm', x, norm)
    return x

  everything = [{'pattern': ('bidirectional',), 'mask': mask, **biases[0]}]
  own = {'heads': 3, 'kv_heads': 1} if name == 'uneven' else {}
  encoded = reference.stack(
    p['encoder'], embed(source, 'encoder_'), 2 * everything, **shared | own
  )
  memory = encoded[-1]
  if 'encoder_norm' in p:
    memory = reference.normalize(p, 'encoder_norm', memory, norm)
  causal = [{'window': 4 if name == 'pre' else None, **biases[1]}]
  decoded = reference.stack(
    p['decoder'],
    embed(tokens),
    3 * causal,
    memory=memory,
    memory_mask=mask,
    **shared,
  )
  hidden = decoded[-1]
  if 'final_norm' in p:
    hidden = reference.normalize(p, 'final_norm', hidden, norm)
  return encoded, memory, decoded, hidden


@functools.cache
def forward(model):
  def run(params, tokens, **given):
    out, sown = model.apply(
      {'params': params}, tokens, **given, mutable='intermediates'
    )
    return out, sown['intermediates']

  return jax.jit(run)


@pytest.mark.parametrize('name', MODELS)
def test_both_stacks(name):
  model = make(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()
  assert ('encoder_norm' in params) == (name != 'post')
  assert 'cross' not in params['encoder']['periods']['block_0']
  out, sown = forward(model)(
    params, tokens, encoder_tokens_BM=source, encoder_mask_BM=mask
  )
  encoded, memory, decoded, hidden = by_hand(name, params, tokens, source, mask)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
  # What padding holds is nobody's concern.
  close(out.memory_BMD[mask], memory[mask])
  close(out.hidden_BLD, hidden)
  found = layer_outputs(sown, 'encoder')
  assert len(found) == 2
  for one, other in zip(found, encoded, strict=True):
    close(one[mask], other[mask])
  for one, other in zip(layer_outputs(sown), decoded, strict=True):
    close(one, other)


def test_memory_may_be_computed_once():
  model = make('pre')
  params, (tokens, source, mask) = tiny.params(model), inputs()
  out, _ = forward(model)(
    params, tokens, encoder_tokens_BM=source, encoder_mask_BM=mask
  )
  encode = functools.partial(model.apply, method='encode')
  memory = jax.jit(encode)({'params': params}, source, mask)
  np.testing.assert_allclose(memory, out.memory_BMD, rtol=1e-5, atol=1e-6)
  again, _ = forward(model)(
    params, tokens, memory_BMD=memory, encoder_mask_BM=mask
  )
  np.testing.assert_allclose(
    again.hidden_BLD, out.hidden_BLD, rtol=1e-5, atol=1e-5
  )


def test_who_sees_whom():
  """All see the whole source but its padding; no target sees a later one."""
  model = make('t5')
  params, (tokens, source, mask) = tiny.params(model), inputs()

  def hidden(tokens, source):
    out, _ = forward(model)(
      params, tokens, encoder_tokens_BM=source, encoder_mask_BM=mask
    )
    return np.asarray(out.hidden_BLD)

  before = hidden(tokens, source)
  for j in range(M):
    changed = source.copy()
    changed[:, j] = (changed[:, j] + 1) % tiny.V
    differs = hidden(tokens, changed) != before
    seen = np.broadcast_to(mask[:, j : j + 1], (B, L))
    np.testing.assert_array_equal(np.any(differs, axis=-1), seen)
  for t in range(L):
    changed = tokens.copy()
    changed[:, t] = (changed[:, t] + 1) % tiny.V
    after = hidden(changed, source)
    np.testing.assert_array_equal(after[:, :t], before[:, :t])


@pytest.mark.parametrize('name', [slow('post'), 't5'])
def test_unrolled_layers_equal_scanned_ones(name):
  tokens, source, mask = inputs()
  given = {'encoder_tokens_BM': source, 'encoder_mask_BM': mask}
  params = tiny.params(make(name))
  one, other = (
    forward(make(name, loop=loop))(params, tokens, **given)[0].hidden_BLD
    for loop in ('scan', 'unroll')
  )
  np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_gradient_reaches_every_parameter():
  model = make('t5')
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  @jax.grad
  def gradient(params):
    out = model.apply(
      {'params': params},
      tokens,
      encoder_tokens_BM=source,
      encoder_mask_BM=mask,
    )
    return jnp.sum(out.hidden_BLD**3)

  found = jax.device_get(gradient(params))
  for path, g in jax.tree_util.tree_leaves_with_path(found):
    assert np.isfinite(g).all()
    assert np.any(g), jax.tree_util.keystr(path)


@pytest.mark.parametrize('name', [slow('post'), 't5'])
def test_decoding_with_a_cache_equals_one_pass(name):
  model = make(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  def run(params):
    def apply(*args):
      return model.apply(
        {'params': params}, *args, memory_BMD=memory, encoder_mask_BM=mask
      )

    memory = model.apply({'params': params}, source, mask, method='encode')

    def step(caches, i):
      now = jax.lax.dynamic_slice_in_dim(tokens, i, 1, axis=1)
      out = apply(now, jnp.full((B, 1), i), caches)
      return out.caches, out.hidden_BLD[:, 0]

    caches = init_caches(model, B, L + 2)
    _, states = jax.lax.scan(step, caches, jnp.arange(L))
    return states, apply(tokens).hidden_BLD

  states, whole = run(params)
  for i in range(L):
    np.testing.assert_allclose(states[i], whole[:, i], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('name', [slow('post'), 't5'])
def test_caches_with_room_keep_the_memory(name):
  """The encoder's output is seen with the first token, and never again."""
  model = make(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  def run(params):
    def apply(*args, **kwargs):
      return model.apply(
        {'params': params}, *args, **kwargs, encoder_mask_BM=mask
      )

    memory = model.apply({'params': params}, source, mask, method='encode')
    first = np.zeros((B, 1), np.int32)
    caches = init_caches(model, B, L + 2, M)
    out = apply(tokens[:, :1], first, caches, memory_BMD=memory)

    def step(caches, i):
      now = jax.lax.dynamic_slice_in_dim(tokens, i, 1, axis=1)
      out = apply(now, jnp.full((B, 1), i), caches)
      return out.caches, out.hidden_BLD[:, 0]

    last, states = jax.lax.scan(step, out.caches, jnp.arange(1, L))
    whole = apply(tokens, memory_BMD=memory).hidden_BLD
    return out.hidden_BLD[:, 0], states, last, whole

  first, states, caches, whole = run(params)
  heads = model.num_kv_heads
  size = model.value_size or tiny.K
  assert caches[0].cross.value_BGMK.shape == (3, B, heads, M, size)
  for i, state in enumerate([first, *states]):
    np.testing.assert_allclose(state, whole[:, i], rtol=1e-3, atol=1e-4)


def test_what_an_encoder_cannot_be():
  with pytest.raises(UsageError, match='no cross-attention'):
    tiny.params(tiny.model(**SIZES, block='parallel'))
  with pytest.raises(UsageError, match='needs causal attention'):
    tiny.params(tiny.model(**SIZES, position='transformer_xl', d_model=22))
