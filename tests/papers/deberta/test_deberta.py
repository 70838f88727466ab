# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeBERTa: scores by distance, the mask decoder, the convolution."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import special

from gpt_jax import hf
from gpt_jax.core import spec
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.build import without_mask_decoder
from gpt_jax.core.nn.choices import BACKENDS, INITS, NORMS, PATTERNS, POSITIONS, SCALES
from gpt_jax.core.nn.kv_cache import cache_of
from gpt_jax.core.nn.row import Context, Row, Visibility
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.spec import UsageError
from gpt_jax.hf import heads
from gpt_jax.papers.deberta.deberta import Convolution, Shared, row_of
from tests.support import learned, tiny
from tests.support.cases import slow
from tests.support.golden_io import ROOT, case, tensors

B, L, K, H, G, D = 2, 7, 3, 4, 2, 5
ROWS = 6  # of max_distance=3: some distances are longer


@functools.cache
def make(arguments, scale='rsqrt'):
  text = f'deberta(max_distance=3, {arguments})'
  attention = Attention(
    PATTERNS['bidirectional'](),
    position=spec.build('model.position', text, POSITIONS),
    num_heads=H,
    num_kv_heads=G,
    head_size=K,
    scale=SCALES[scale](),
    backend=BACKENDS['auto'](),
    bias_in=True,
    bias_key=False,
    bias_out=True,
    dropout=0.0,
    inits=INITS['normal']()(1),
    dtype=jnp.float32,
  )
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(B, L, D)))
  shared = Shared(np.float32(rng.normal(size=(ROWS, D))))
  context = Context(extra={'shared': shared})
  init = functools.partial(attention.init, layer=np.int32(0))
  boxed = jax.eval_shape(init, jax.random.key(0), x, context)['params']
  return attention, tiny.random_like(nn.meta.unbox(boxed), seed=1), x, context


def run(attention, params, x, context):
  apply = jax.jit(attention.apply)
  return np.asarray(apply({'params': params}, x, context, layer=np.int32(0))[0])


def split_heads(x, number):
  return np.repeat(x.reshape(*x.shape[:-1], number, K), H // number, axis=-2)


def by_hand(p, x, table, *, c2c=True, c2p=True, p2c=True, shared=False):
  """He et al. (2020), equations 3 and 4, one pair of tokens at a time."""

  def dense(p, x):
    return x @ p['kernel'] + p.get('bias', 0)

  q, r_q = split_heads(dense(p['query'], x), H), None
  k = split_heads(x @ p['key']['kernel'], G)
  v = split_heads(dense(p['value'], x), G)
  if shared:
    r_k = split_heads(table @ p['key']['kernel'], G)
    r_q = split_heads(dense(p['query'], table), H)
  else:
    r_k = split_heads(table @ p['relative_key']['kernel'], H) if c2p else None
    r_q = split_heads(dense(p['relative_query'], table), H) if p2c else None
  out = np.zeros((B, L, H, K))
  for b, h, i in np.ndindex(B, H, L):
    scores = np.zeros(L)
    for j in range(L):
      d = 0 if i - j <= -3 else 5 if i - j >= 3 else i - j + 3
      scores[j] += c2c * (q[b, i, h] @ k[b, j, h])
      if c2p:
        scores[j] += q[b, i, h] @ r_k[d, h]
      if p2c:
        scores[j] += k[b, j, h] @ r_q[d, h]
    probs = special.softmax(scores / math.sqrt(K * (c2c + c2p + p2c)))
    out[b, i, h] = probs @ v[b, :, h]
  return dense(p['out'], out.reshape(B, L, H * K))


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'shared': True},
    {'c2p': False},
    {'p2c': False},
    {'c2c': False, 'p2c': False},
    {'c2p': False, 'p2c': False},
  ],
  ids=str,
)
def test_the_terms(options):
  text = ', '.join(f'{name}={value}' for name, value in options.items())
  attention, params, x, context = make(text)
  y = run(attention, params, x, context)
  p = jax.tree.map(np.float64, params)
  table = np.float64(context.extra['shared'].table_ND)
  expected = by_hand(p, np.float64(x), table, **options)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  # Nothing is created that a term which is off would use.
  own = not options.get('shared')
  assert ('relative_key' in params) == (own and options.get('c2p', True))
  assert ('relative_query' in params) == (own and options.get('p2c', True))
  assert 'bias' not in params['key']


@pytest.mark.parametrize('terms', ['c2p', 'p2c', 'none'])
def test_order_is_known_from_either_term(terms):
  """Without both, tokens in another order give the same in that order."""
  flags = ', '.join(f'{n}={n == terms}' for n in ('c2p', 'p2c'))
  attention, params, x, context = make(flags)
  order = np.array([3, 0, 6, 2, 5, 1, 4])
  moved = run(attention, params, x[:, order], context)
  error = np.abs(moved - run(attention, params, x, context)[:, order]).max()
  assert error < 1e-5 if terms == 'none' else error > 0.01


def test_worked_example():
  """d(10, j) for k = 5 (equation 3)."""
  j = np.arange(20)
  expected = [9] * 7 + [8, 7, 6, 5, 4, 3, 2, 1] + [0] * 5
  np.testing.assert_array_equal(row_of(10 - j, 5, 0), expected)


def test_buckets():
  """Released as version 2: 6 on each side, for distances up to 39."""
  for distance in range(-50, 51):
    far = abs(distance)
    if far > 3:
      far = 3 + math.ceil(math.log(far / 3) / math.log(39 / 3) * 2)
    expected = min(max(int(math.copysign(far, distance)) + 6, 0), 11)
    assert row_of(np.array([distance]), 40, 6) == [expected], distance
  # What was released: 256 buckets for 512 distances.
  rows = row_of(np.array([-511, -129, -128, 0, 128, 511, 600]), 512, 256)
  np.testing.assert_array_equal(rows, [1, 127, 128, 256, 384, 511, 511])


def test_what_has_no_such_terms():
  attention, params, x, context = make('')
  zeros = jnp.zeros((B, L, G, K))
  causal = attention.clone(pattern=PATTERNS['full']())
  with pytest.raises(UsageError, match='position=deberta: supports neither caches'):
    causal.apply({'params': params}, x, context, cache_of(zeros, zeros), layer=np.int32(0))
  with pytest.raises(UsageError, match='nor encoder-decoders'):
    run(attention, params, x, Context())
  kernel = attention.clone(backend=BACKENDS['splash'](interpret=True))
  with pytest.raises(UsageError, match=r'splash: model\.position adds'):
    run(kernel, params, x, context)


@pytest.mark.parametrize(
  'text, message',
  [
    ('c2c=False, c2p=False, p2c=False', 'are all False'),
    ('buckets=3', 'must be at least 4'),
    ('buckets=16, max_distance=9', 'max_distance - 1, which is 8'),
    ('convolution=2', 'must be odd'),
    ("convolution=3, activation='mish'", "'mish' is unknown; one of relu"),
  ],
)
def test_bad_choices(text, message):
  with pytest.raises(UsageError, match=message):
    spec.build('model.position', f'deberta({text})', POSITIONS)


def three_before(key):
  """Twelve tokens in some order, and a marker: what stood three before it?

  Every row has the same tokens, so that the order alone tells.
  """
  keys = jax.random.split(key)
  others = 1 + jax.random.permutation(keys[0], 12)
  at = jax.random.randint(keys[1], (), 3, 13)
  place = jnp.arange(13)
  before, after = others[place % 12], others[place - 1]
  row = jnp.where(place < at, before, jnp.where(place == at, 0, after))
  return row, at, row[at - 3]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
  'terms, known', [('p2c=False', True), ('c2p=False', True), ('c2p=False, p2c=False', False)]
)
def test_a_distance_is_known_by_either_term(terms, known):
  """And by nothing else: without both it is chance, one of twelve."""
  found = learned.accuracy(
    three_before,
    steps=400,
    vocab_size=13,
    context_length=13,
    num_layers=1,
    attention='bidirectional',
    position=f'deberta(max_distance=5, {terms})',
    input='tokens(norm=True)',
    bias='where(qkv=True, out=True, ffn=True, key=False)',
  )
  assert found > 0.95 if known else found < 0.2


# DeBERTa's enhanced mask decoder against its fixture, and the convolution.


FOLDER = ROOT / 'deberta_emd'


@functools.cache
def fixture(times, **changes):
  """The fixture's model with its absolute positions, and their parameters."""
  imported, params = hf.load(str(FOLDER))
  fields = {n: getattr(imported, n) for n in hf.transformer_fields()}
  fields['position'] = imported.position[:-1] + f', mask_decoder={times})'
  name = 'deberta.embeddings.position_embeddings.weight'
  positions = {'embedding': tensors(FOLDER)[name]}
  model = make_model(**{**fields, **changes})
  return model, {**params, 'late_positions': positions}


@pytest.mark.parametrize('times', [slow(1), 2])
def test_the_fixture(times):
  model, params = fixture(times, loop='scan' if times == 1 else 'unroll')
  golden = case(FOLDER, 'emd')
  ids, mask = (golden.inputs[n] for n in ('input_ids', 'attention_mask'))

  @jax.jit
  def run(params):
    out, sown = model.apply(
      {'params': params}, Row(ids, real_BL=mask.astype(bool)), mutable=['intermediates']
    )
    hidden = out.hidden_BLD
    logits = model.apply({'params': params}, hidden, method='logits')
    states = sown['intermediates']['decoder']['periods']['hidden_0'][0]
    return states, hidden, logits

  states, hidden, logits = run(params)
  loss = heads.cross_entropy(logits, jnp.asarray(golden.inputs['labels']))
  found = {'keys': states[0], f'z{times}': hidden}
  found |= {f'logits_n{times}': logits, f'loss_n{times}': loss}
  for name, value in found.items():
    assert golden.max_error(name, value) < 1e-4, name


@pytest.mark.parametrize(
  'option, message',
  [
    ('mask_decoder=1', 'model.block=post, or mask_decoder=0'),
    ('convolution=3', 'sees later tokens; take bidirectional'),
  ],
)
def test_models_that_have_none(option, message):
  model = tiny.model(position=f'deberta({option})', block='pre')
  with pytest.raises(UsageError) as error:
    tiny.params(model)
  assert message in str(error.value)


def test_fine_tuning_leaves_the_mask_decoder_out():
  found = without_mask_decoder('deberta(7, mask_decoder=2, shared=True)')
  same = 'deberta(max_distance=7, shared=True)'
  bound = [spec.bind_all('model.position', text, POSITIONS) for text in (found, same)]
  assert bound[0] == bound[1]
  for text in ('learned(offset=2)', 'deberta(3)'):
    assert without_mask_decoder(text) == text


def test_convolution_of_packed_rows():
  """Documents and padding that stand beside a token are zeros to it."""
  module = Convolution(3, 'gelu', NORMS['layernorm'](), INITS['normal']()(1).kernel, jnp.float32)
  rng = np.random.default_rng(0)
  x = np.float32(rng.normal(size=(1, 7, 5)))
  segments, mask = np.array([[1, 1, 1, 2, 2, 2, 2]]), np.arange(7)[None] < 6
  kernel = np.float32(rng.normal(size=(3, 5, 5)))
  bias = np.float32(rng.normal(size=5))
  norm = {'scale': np.ones(5), 'bias': np.zeros(5)}
  params = {'kernel': kernel, 'bias': bias, 'norm': norm}
  run = jax.jit(module.apply)
  whole, parts = (
    np.asarray(run({'params': params}, x, v).x_BLD)
    for v in (Visibility(), Visibility(mask, segments))
  )
  padded = np.concatenate([0 * x[:, :1], x, 0 * x[:, :1]], axis=1)
  sums = sum(padded[:, t : t + 7] @ kernel[t] for t in range(3)) + bias
  gelu = functools.partial(jax.nn.gelu, approximate=False)
  np.testing.assert_allclose(whole, gelu(sums), atol=1e-5)
  for stop, document in ((3, slice(0, 3)), (6, slice(3, 6))):
    alone = np.concatenate([0 * x[:, :1], x[:, document], 0 * x[:, :1]], axis=1)
    sums = sum(alone[:, t : t + 3] @ kernel[t] for t in range(3)) + bias
    np.testing.assert_allclose(parts[:, stop - 3 : stop], gelu(sums), atol=1e-5)
