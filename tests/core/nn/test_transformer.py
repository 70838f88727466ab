# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole model against GPT-1, GPT-2 and encoder-decoders in plain JAX."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import hf
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn import stack
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import UsageError
from gpt_jax.ejecting import weights
from tests.support import reference, tiny
from tests.support.cases import slow

B, L, D = tiny.B, tiny.L, tiny.D


@functools.cache
def forward(model):
  def run(params, *arrays):
    return model.apply({'params': params}, Row(*arrays)).hidden_BLD

  return jax.jit(run)


@pytest.mark.parametrize(
  'kind, output', [('pre', 'tied'), slow('post', 'tied'), ('post', 'untied')]
)
def test_loss_and_gradient_are_those_of_the_papers(kind, output):
  """GPT-1 ('post') and GPT-2 ('pre')."""
  model = tiny.model(block=kind, output=output, num_layers=2)
  params, batch = tiny.params(model), tiny.batch(B, L, tiny.V)
  assert 0 < batch['weights'].mean() < 1
  objective = Causal().bind(model)

  @jax.jit
  def value_and_gradient(params):
    def total(params):
      loss = objective.loss(params, batch, None)
      return loss.sum, loss.weight

    return jax.value_and_grad(total, has_aux=True)(params)

  plain = reference.of(
    {'block': f'{kind}_block'}, FINAL_NORM=kind == 'pre', TIED=output == 'tied', PADDED=True
  )
  wanted, slopes = reference.run(
    jax.value_and_grad(plain.causal_loss), weights.to_plain(params), batch
  )
  (loss, weight), gradient = jax.device_get(value_and_gradient(params))
  np.testing.assert_allclose(loss, wanted, rtol=1e-5)
  np.testing.assert_allclose(weight, batch['weights'].sum())
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
  jax.tree.map(close, weights.to_plain(gradient), slopes)


@pytest.mark.parametrize('output', ['tied', 'untied'])
def test_hidden_states_and_logits(output):
  model = tiny.model(output=output)
  params, tokens = tiny.params(model), tiny.tokens(B, L)

  @jax.jit
  def both(params):
    found = model.apply({'params': params}, tokens).hidden_BLD
    return found, model.apply({'params': params}, found, method='logits')

  plain = reference.of(TIED=output == 'tied')

  def expected(params):
    hidden = plain.hidden_states(params, {'inputs': tokens})
    return hidden, plain.logits(params, hidden)

  expected = reference.run(expected, weights.to_plain(params))
  for one, other in zip(both(params), expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


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
  with_bias, without = (tiny.model(num_layers=2), tiny.model(num_layers=2, bias='none'))
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
    forward(without)(params, tokens), forward(with_bias)(zeros, tokens), rtol=1e-5, atol=1e-6
  )


def test_bfloat16_is_near_float32():
  model, half = tiny.model(), tiny.model(dtype='bfloat16')
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  exact, rounded = (np.asarray(forward(m)(params, tokens)) for m in (model, half))
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
  np.testing.assert_allclose(loss.sum / loss.weight, math.log(tiny.V), rtol=1e-2)


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
  plain = reference.of(
    {'block': 'parallel_block', 'norm': 'rms_norm', 'feed_forward': 'gated'},
    **{'NUM_HEADS': 4, 'NUM_KV_HEADS': 1, 'NORM_EPSILON': 1e-6},
    **{'ALIBI': True, 'SCORE_BIAS': True, 'POSITION_TABLE': False, 'BIASES': False},
  )
  given = weights.to_plain(params)
  # The scores of layer 2 are divided by 2, and so may be its queries.
  query = given['layers'][1]['attention']['query']
  query['kernel'] = query['kernel'] / 2
  expected = reference.run(plain.hidden_states, given, {'inputs': tokens})
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
    np.asarray(dropped(model)(params, tokens, jax.random.key(seed))) for seed in (1, 1, 2)
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
  plain = ((found - norm['bias']) / norm['scale']).reshape(-1, D)
  gaps = np.abs(plain[:, :, None] - plain[:, None]) < 1e-4
  is_dropped = gaps.sum(1) > 1
  assert gaps[is_dropped[:, :, None] & is_dropped[:, None]].all()
  left = np.where(is_dropped, 0, 2 * x.reshape(-1, D))
  expected = reference.run(reference.of().standardize, left, None)
  np.testing.assert_allclose(plain, expected, rtol=1e-3, atol=1e-4)
  assert 0.42 < is_dropped.mean() < 0.58


M = 7
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


def make_both(name, **changes):
  return tiny.model(**SIZES, **{**MODELS[name], **changes})


def inputs():
  """Ids for both stacks; the encoder's are padded left, right, not at all."""
  mask = np.ones((B, M), bool)
  mask[0, :2] = mask[1, 4:] = False
  return tiny.tokens(B, L), tiny.tokens(B, M, seed=1), mask


def by_hand(name, params, tokens, source, mask):
  """The outputs of all layers of both stacks, and the two last states."""
  parts, constants = {}, {}
  if name in ('t5', 'uneven'):
    parts = {'norm': 'rms_norm', 'feed_forward': 'gated', 'gate_activation': 'gelu'}
    constants = {'NORM_EPSILON': 1e-6, 'SCORE_SCALE': 1.0, 'SCORE_BIAS': True, 'BIASES': False}
  heads = {'NUM_KV_HEADS': MODELS[name].get('num_kv_heads', tiny.G)}
  own = {'NUM_HEADS': 3, 'NUM_KV_HEADS': 1} if name == 'uneven' else heads
  plain, encoder = (reference.of(parts, **constants, **x) for x in (heads, own))
  kind = 'post' if name == 'post' else 'pre'

  def run(p):
    def embed(ids, side=''):
      x = p['embed']['embedding'][ids]
      if 'positions' in p:
        x += p[f'{side}positions']['embedding'][: ids.shape[1]]
      return plain.norm(x, p[f'{side}embed_norm']) if 'embed_norm' in p else x

    def bias(stack, length):
      if f'{stack}_bias' not in p:
        return 0.0
      table, places = p[f'{stack}_bias']['embedding'], jnp.arange(length)
      return plain.bucket_bias(table, places, places, stack == 'encoder')

    encoded, decoded, real = [embed(source, 'encoder_')], [embed(tokens)], mask[:, None, None]
    for layer in p['encoder_layers']:
      block = getattr(encoder, f'{kind}_block')
      encoded.append(block(encoded[-1], layer, bias('encoder', M), real, None, None))
    memory = encoded[-1]
    if 'encoder_norm' in p:
      memory = plain.norm(memory, p['encoder_norm'])
    seen = reference.seen(L, 4 if name == 'pre' else None)
    for layer in p['layers']:
      block = getattr(plain, f'{kind}_cross_block')
      layer = layer | {'cross': reference.whole(layer['cross'], tiny.H, plain.NUM_KV_HEADS)}
      states = decoded[-1], memory, layer, bias('decoder', L), seen, real
      decoded.append(block(*states, None, None))
    hidden = decoded[-1]
    if 'final_norm' in p:
      hidden = plain.norm(hidden, p['final_norm'])
    return encoded[1:], memory, decoded[1:], hidden

  return reference.run(run, weights.to_plain(params))


@functools.cache
def run_both(model):
  def run(params, tokens, **extra):
    out, sown = model.apply({'params': params}, Row(tokens, extra=extra), mutable='intermediates')
    return out, sown['intermediates']

  return jax.jit(run)


@pytest.mark.parametrize('name', MODELS)
def test_both_stacks(name):
  model = make_both(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()
  assert ('encoder_norm' in params) == (name != 'post')
  assert 'cross' not in params['encoder']['periods']['block_0']
  out, sown = run_both(model)(params, tokens, source=Row(source, real_BL=mask))
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
  model = make_both('pre')
  params, (tokens, source, mask) = tiny.params(model), inputs()
  out, _ = run_both(model)(params, tokens, source=Row(source, real_BL=mask))
  encode = functools.partial(model.apply, method='encode')
  memory = jax.jit(encode)({'params': params}, Row(source, real_BL=mask))
  np.testing.assert_allclose(memory, out.memory_BMD, rtol=1e-5, atol=1e-6)
  again, _ = run_both(model)(params, tokens, encoded=memory, source=Row(None, real_BL=mask))
  np.testing.assert_allclose(again.hidden_BLD, out.hidden_BLD, rtol=1e-5, atol=1e-5)


def test_who_sees_whom():
  """All see the whole source but its padding; no target sees a later one."""
  model = make_both('t5')
  params, (tokens, source, mask) = tiny.params(model), inputs()

  def hidden(tokens, source):
    out, _ = run_both(model)(params, tokens, source=Row(source, real_BL=mask))
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


def test_gradient_reaches_every_parameter():
  model = make_both('t5')
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  @jax.grad
  def gradient(params):
    out = model.apply({'params': params}, Row(tokens, extra={'source': Row(source, real_BL=mask)}))
    return jnp.sum(out.hidden_BLD**3)

  found = jax.device_get(gradient(params))
  for path, g in jax.tree_util.tree_leaves_with_path(found):
    assert np.isfinite(g).all()
    assert np.any(g), jax.tree_util.keystr(path)


@pytest.mark.parametrize('name', [slow('post'), 't5'])
def test_decoding_with_a_cache_equals_one_pass(name):
  model = make_both(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  def run(params):
    def apply(tokens, positions=None, caches=None):
      row = Row(tokens, positions, extra=extra)
      return model.apply({'params': params}, row, caches)

    row = Row(source, real_BL=mask)
    memory = model.apply({'params': params}, row, method='encode')
    extra = {'encoded': memory, 'source': row._replace(tokens_BL=None)}

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
  model = make_both(name)
  params, (tokens, source, mask) = tiny.params(model), inputs()

  @jax.jit
  def run(params):
    def apply(tokens, positions=None, caches=None, **extra):
      extra['source'] = Row(None, real_BL=mask)
      row = Row(tokens, positions, extra=extra)
      return model.apply({'params': params}, row, caches)

    row = Row(source, real_BL=mask)
    memory = model.apply({'params': params}, row, method='encode')
    first = np.zeros((B, 1), np.int32)
    caches = init_caches(model, B, L + 2, M)
    out = apply(tokens[:, :1], first, caches, encoded=memory)

    def step(caches, i):
      now = jax.lax.dynamic_slice_in_dim(tokens, i, 1, axis=1)
      out = apply(now, jnp.full((B, 1), i), caches)
      return out.caches, out.hidden_BLD[:, 0]

    last, states = jax.lax.scan(step, out.caches, jnp.arange(1, L))
    whole = apply(tokens, encoded=memory).hidden_BLD
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


FIELDS = dict(num_layers=1, num_encoder_layers=1, block='post')


def encode(model, params, ids, mask):
  def run(params):
    row = Row(ids, real_BL=mask)
    return model.apply({'params': params}, row, method='encode')

  return jax.jit(run)(params)


def test_its_output_stands_for_the_vectors_of_tokens():
  """Of an encoder-decoder whose table has a row for each place."""
  given = {'input': 'tokens(norm=True)', **FIELDS}
  model = tiny.model(num_source_layers=2, **given)
  params = tiny.params(model)
  ids = tiny.tokens(1, M, seed=1)
  mask = np.arange(M)[None] < 5
  first = tiny.model(
    **{'num_layers': 2, 'attention': 'bidirectional'},
    **{'input': 'tokens(norm=True)', 'block': 'post'},
  )

  @jax.jit
  def alone(params):
    return first.apply({'params': params}, Row(ids, real_BL=mask)).hidden_BLD

  table = np.zeros((tiny.V, tiny.D), np.float32)
  table[:M] = alone(params['source'])[0]
  rest = {name: x for name, x in params.items() if name != 'source'}
  assert not np.array_equal(params['source']['embed']['embedding'], rest['embed']['embedding'])
  rest['embed'] = {'embedding': jnp.asarray(table)}
  expected = encode(tiny.model(**given), rest, np.arange(M)[None], mask)
  found = encode(model, params, ids, mask)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  # As it is decoded with.
  apart = model.clone(loop=stack.UNSTACKED)
  again = encode(apart, params_lib.unstack(params), ids, mask)
  np.testing.assert_allclose(found, again, rtol=1e-5, atol=1e-6)


def test_the_decoder_reads_and_scores_by_the_old_table():
  model = tiny.model(num_source_layers=1, **FIELDS)
  shapes = jax.tree.map(jnp.shape, tiny.params(model))
  assert shapes['source']['embed'] == shapes['embed']
  assert shapes['source'].keys() == {'embed', 'positions', 'decoder'}


def test_no_family_of_hugging_face_has_one(tmp_path):
  fields = {'num_kv_heads': tiny.H, 'input': 'tokens(norm=True)', **FIELDS}
  model = tiny.model(num_source_layers=1, **fields)
  with pytest.raises(UsageError, match=r'model.num_source_layers=1'):
    hf.save(str(tmp_path), model, tiny.params(model))
