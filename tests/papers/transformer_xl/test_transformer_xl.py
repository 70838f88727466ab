# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL's attention (Dai et al. 2019, section 3), and XLNet's.

The four terms, memory, rows of several segments; orders and two streams, whose
numbers are compared with transformers' in tests/hf/test_golden.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax.core import spec
from gpt_jax.core.nn import attend as attend_lib
from gpt_jax.core.nn.attention import Attention
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.choices import BACKENDS, INITS, PATTERNS, POSITIONS, SCALES
from gpt_jax.core.nn.kv_cache import cache_of
from gpt_jax.core.nn.row import Context, Row, Visibility
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.transformer_xl.transformer_xl import SegmentMemory, init_memories
from gpt_jax.papers.xlnet.permuted import order
from tests.support import reference, tiny
from tests.support.cases import slow

B, L, K, H, G = 3, 11, 7, 6, 2
D = 22  # pairs of sine and cosine
LAYER = np.int32(2)


def relative(text, *, scale='rsqrt', bias=False):
  attention = Attention(
    spec.build('model.attention', text, PATTERNS),
    position=POSITIONS['transformer_xl'](),
    num_heads=H,
    num_kv_heads=G,
    head_size=K,
    scale=SCALES[scale](),
    backend=BACKENDS['reference'](),
    bias_in=bias,
    bias_out=bias,
    dropout=0.0,
    inits=INITS['normal']()(1),
    dtype=jnp.float32,
  )
  x = np.float32(np.random.default_rng(0).normal(size=(B, L, D)))
  init = functools.partial(attention.init, layer=LAYER)
  boxed = jax.eval_shape(init, jax.random.key(0), x, Context())['params']
  params = tiny.random_like(nn.meta.unbox(boxed), seed=1)
  return attention, boxed, params, x


def run_relative(attention):
  return jax.jit(functools.partial(attention.apply, layer=LAYER))


def by_hand(p, x, seen, *, scale=K**-0.5, bias=False):
  """Plain JAX's."""
  plain = reference.of(SCORE_SCALE=scale, SCORE_BIAS=True, BIASES=bias)

  def run(p, x):
    return plain.relative_attention(x, reference.whole(p), 0.0, seen, None, None)

  return reference.run(run, p, x)


def test_parameters():
  _, boxed, params, _ = relative('full')
  assert {*params} == {'query', 'key', 'value', 'out', 'relative', 'content_bias', 'position_bias'}
  assert params['content_bias'].shape == params['position_bias'].shape == (H, K)
  assert boxed['content_bias'].names == ('heads', 'head')
  # The projection of the waves has no bias, whatever the others have.
  assert {*relative('full', bias=True)[1]['relative']} == {'kernel'}
  assert boxed['relative']['kernel'].names == ('embed', 'heads')
  assert params['relative']['kernel'].shape == (D, H * K)


@pytest.mark.parametrize(
  'text, window, options',
  [
    ('full', None, {}),
    ('local(window=3)', 3, {'bias': True}),
    ('full', None, {'scale': 'none'}),
    ('local(window=5)', 5, {'scale': 'by_layer'}),
  ],
)
def test_the_four_terms(text, window, options, monkeypatch):
  """Also where the queries are taken in blocks."""
  attention, _, params, x = relative(text, **options)
  scale = {'none': 1.0, 'by_layer': K**-0.5 / 3}.get(options.get('scale'), K**-0.5)
  bias = options.get('bias', False)
  expected = by_hand(params, x, reference.seen(L, window), scale=scale, bias=bias)
  for block in (128, 4):
    monkeypatch.setattr(attend_lib, 'QUERY_BLOCK', block)
    y, _ = run_relative(attention)({'params': params}, x, Context())
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_packed_documents():
  """Distances within a document do not depend on where it starts."""
  attention, _, params, x = relative('full')
  ids = np.zeros((B, L), np.int32)
  ids[0, 4:] = ids[1, 7:] = 3
  context = Context(visibility=Visibility(segments_BL=ids))
  y, _ = run_relative(attention)({'params': params}, x, context)
  together = ids[:, None, :, None] == ids[:, None, None]
  expected = by_hand(params, x, reference.seen(L) & together)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  alone, _ = run_relative(attention)({'params': params}, x[:1, 4:], Context())
  np.testing.assert_allclose(y[:1, 4:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('text', ['full', 'local(window=3)'])
def test_decoding_equals_the_full_pass(text):
  """A prompt of four, then token by token, in a longer cache full of noise."""
  attention, _, params, x = relative(text)
  whole, _ = run_relative(attention)({'params': params}, x, Context())
  noise = np.random.default_rng(5).normal(size=(B, L + 2, G, K))
  cache = cache_of(np.float32(noise), np.float32(noise))
  step = run_relative(attention)
  for start, stop in ((0, 4), *((i, i + 1) for i in range(4, L))):
    places = np.broadcast_to(np.arange(start, stop), (B, stop - start))
    y, cache = step({'params': params}, x[:, start:stop], Context(places), cache)
    np.testing.assert_allclose(y, whole[:, start:stop], rtol=1e-4, atol=1e-5)


def test_rows_may_stand_at_different_positions():
  attention, _, params, x = relative('full')
  whole, _ = run_relative(attention)({'params': params}, x, Context())
  zeros = jnp.zeros((B, L, G, K))
  places = np.broadcast_to(np.arange(L), (B, L))
  _, cache = run_relative(attention)({'params': params}, x, Context(places), cache_of(zeros, zeros))
  at = np.array([[3], [10], [0]])
  now = np.take_along_axis(x, at[:, :, None], axis=1)
  y, _ = run_relative(attention)({'params': params}, now, Context(at), cache)
  expected = np.take_along_axis(np.asarray(whole), at[:, :, None], axis=1)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


SEGMENT, MEMORY = 5, 7


def make(memory=MEMORY, clamp=0, **changes):
  position = f'transformer_xl(memory={memory}, clamp={clamp})'
  sizes = {'d_model': D, 'num_layers': 4}
  return tiny.model(**{**sizes, 'position': position, **changes})


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, tokens, caches):
  return model.apply({'params': params}, tokens, caches, mutable=['intermediates'])


def run(model, params, tokens, caches=None):
  out, sown = apply(model, params, tokens, caches)
  sown = sown['intermediates']
  inputs = [sown['embedded'][0], *layer_outputs(sown)[:-1]]
  return out, [np.asarray(x) for x in inputs]


def as_memory(inputs, period):
  """What each layer was given, as caches: layer n is n % period."""
  return tuple(SegmentMemory(jnp.stack(inputs[first::period])) for first in range(period))


@pytest.mark.parametrize(
  'changes, period',
  [
    ({'block': 'post'}, 1),
    slow({'block': 'pre'}, 1),
    slow({'block': 'parallel', 'clamp': 3}, 1),
    ({'attention': 'full, local(window=3)', 'loop': 'unroll'}, 2),
    slow({'remat': 'full', 'attention': 'local(window=5)'}, 1),
  ],
)
def test_two_segments_are_one_row(changes, period):
  """With all earlier states in memory, as if read at once."""
  model = make(**changes)
  params, tokens = tiny.params(model), tiny.tokens(B, MEMORY + SEGMENT)
  whole, inputs = run(model, params, tokens)
  _, first = run(model, params, tokens[:, :MEMORY])
  out, _ = run(model, params, tokens[:, MEMORY:], as_memory(first, period))
  np.testing.assert_allclose(out.hidden_BLD, whole.hidden_BLD[:, MEMORY:], rtol=1e-4, atol=1e-5)
  # The memory for the next segment is the last M inputs of each layer.
  expected = as_memory([x[:, -MEMORY:] for x in inputs], period)
  assert len(out.caches) == len(expected) == period
  for found, memory in zip(out.caches, expected, strict=True):
    assert found.hidden_BMD.shape == (4 // period, B, MEMORY, D)
    np.testing.assert_allclose(found.hidden_BMD, memory.hidden_BMD, rtol=1e-4, atol=1e-5)


def test_a_long_segment_replaces_the_memory():
  model = make(memory=3)
  params, tokens = tiny.params(model), tiny.tokens(B, SEGMENT)
  zeros = init_memories(model, B)
  assert zeros[0].hidden_BMD.shape == (4, B, 3, D)
  assert not np.any(zeros[0].hidden_BMD)
  out, inputs = run(model, params, tokens, zeros)
  expected = np.stack(inputs)[:, :, -3:]
  np.testing.assert_array_equal(out.caches[0].hidden_BMD, expected)
  # Zeros count as tokens.
  without, _ = run(model, params, tokens)
  assert np.max(np.abs(out.hidden_BLD - without.hidden_BLD)) > 1e-2
  assert without.caches == (None,)


@pytest.mark.parametrize('block', [slow('pre'), 'post'])
def test_no_gradient_goes_into_the_memory(block):
  model = make(block=block)
  params, tokens = tiny.params(model), tiny.tokens(B, SEGMENT)
  rng = np.random.default_rng(2)
  memory = np.float32(rng.normal(size=(4, B, MEMORY, D)))

  def total(params, memory):
    variables = {'params': params}
    caches = (SegmentMemory(memory),)
    out = model.apply(variables, tokens, caches)
    return jnp.sum(jnp.square(out.hidden_BLD[:, :1]))

  value, (of_params, of_memory) = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(params, memory)
  assert not np.any(of_memory)
  assert np.any(of_params['decoder']['periods']['block_0']['attention']['key'])
  other = jax.jit(total)(params, -memory)
  assert abs(other - value) > 1e-3


def test_clamped_distances():
  """Far tokens are all as far as the clamp: their order does not matter."""
  tokens = tiny.tokens(1, 7)
  tokens[0, :3] = [3, 8, 5]
  swapped = tokens.copy()
  swapped[0, :3] = [5, 3, 8]
  same, other = [], []
  for clamp, found in ((4, same), (0, other)):
    model = make(clamp=clamp, num_layers=1)
    params = tiny.params(model)
    for row in (tokens, swapped):
      found.append(np.asarray(run(model, params, row)[0].hidden_BLD[:, -1]))
  np.testing.assert_allclose(*same, rtol=1e-4, atol=1e-5)
  assert np.max(np.abs(other[0] - other[1])) > 1e-3


SHORT = 3
ROW = 3 * SEGMENT + 2  # the last segment is not full


def segmented(memory=SHORT, segment=SEGMENT, clamp=0, biases='own', **changes):
  position = f'transformer_xl(memory={memory}, clamp={clamp}, segment={segment}, biases={biases!r})'
  sizes = {'d_model': D, 'num_layers': 2, 'context_length': ROW}
  return tiny.model(**{**sizes, 'position': position, **changes})


def mask(memory):
  """The mask that is equivalent in one row, written out."""
  seen = np.zeros((ROW, ROW), bool)
  for query in range(ROW):
    start = query - query % SEGMENT
    seen[query, max(start - memory, 0) : query + 1] = True
  return seen


# The released code's same_length; each of the segments sees all before it.
CASES = [
  {'memory': SHORT, 'block': 'post', 'biases': 'shared', 'clamp': 4},
  slow({'memory': 11, 'remat': 'full', 'attention': 'local(window=7)'}),
  slow({'memory': 0, 'loop': 'unroll', 'block': 'parallel'}),
]


@pytest.mark.parametrize('changes', CASES)
def test_segments_are_a_row_under_a_mask(changes):
  """At once under the equivalent mask, and segment by segment."""
  model, memory = segmented(**changes), changes['memory']
  whole = segmented(**changes, segment=0)
  params, tokens = tiny.params(model), tiny.tokens(B, ROW)

  @jax.jit  # one program for all
  def run(params):
    def hidden(row, caches=None, model=model):
      return model.apply({'params': params}, row, caches)

    seen = np.broadcast_to(mask(memory), (B, ROW, ROW))
    positions = np.broadcast_to(np.arange(ROW), (B, ROW))
    out = [
      hidden(tokens),
      hidden(Row(tokens, visible_BLM=seen), model=whole),
      # Decoding has one cache for the whole row.
      hidden(Row(tokens, positions), init_caches(model, B, ROW)),
    ]
    if memory:
      memories = init_memories(model, B, real=False)
      first = hidden(tokens[:, : 2 * SEGMENT], memories)
      rest = hidden(tokens[:, 2 * SEGMENT :], first.caches)
      parts = [first.hidden_BLD, rest.hidden_BLD]
      out.append(first._replace(hidden_BLD=jnp.concatenate(parts, axis=1)))
    return [x.hidden_BLD for x in out]

  found, *others = run(params)
  for other in others:
    np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_no_gradient_reaches_another_segment():
  """Segment 1 depends on segment 0 in value, and not at all in gradient."""
  model = segmented(memory=SEGMENT)
  params, tokens = tiny.params(model), tiny.tokens(1, 2 * SEGMENT)

  def total(table, tokens):
    changed = {**params, 'embed': {'embedding': table}}
    out = model.apply({'params': changed}, tokens)
    return jnp.sum(jnp.square(out.hidden_BLD[:, SEGMENT:]))

  both = jax.jit(jax.value_and_grad(total))
  # The first segment has tokens of its own.
  tokens[:, :SEGMENT] = np.arange(SEGMENT)
  tokens[:, SEGMENT:] = SEGMENT + np.arange(SEGMENT)
  table = params['embed']['embedding']
  value, grad = both(table, tokens)
  assert not np.any(grad[:SEGMENT])
  assert np.all(np.any(grad[SEGMENT : 2 * SEGMENT], axis=1))
  tokens[:, :SEGMENT] = 2 * SEGMENT + np.arange(SEGMENT)
  assert abs(both(table, tokens)[0] - value) > 1e-3


@pytest.mark.slow
def test_gradients_are_those_of_carried_memory():
  """Of all parameters: by segments, the memory carried between two calls."""
  model = segmented(block='post', memory=SEGMENT, biases='shared')
  params, tokens = tiny.params(model), tiny.tokens(B, 2 * SEGMENT)

  def at_once(params):
    out = model.apply({'params': params}, tokens)
    return jnp.sum(jnp.sin(out.hidden_BLD))

  def carried(params):
    caches, total = init_memories(model, B, real=False), 0.0
    for part in (tokens[:, :SEGMENT], tokens[:, SEGMENT:]):
      out = model.apply({'params': params}, part, caches)
      caches = out.caches
      total += jnp.sum(jnp.sin(out.hidden_BLD))
    return total

  found, expected = jax.jit(lambda p: (jax.grad(at_once)(p), jax.grad(carried)(p)))(params)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), found, expected)


@pytest.mark.parametrize('memory', [0, SHORT, 11])
@pytest.mark.parametrize('window', [ROW, 4])
def test_how_many_keys_each_token_sees(memory, window):
  attention = f'local(window={window})'
  model = segmented(memory=memory, attention=attention)
  choices = ModelChoices.of(model)
  distance = np.arange(ROW)[:, None] - np.arange(ROW)
  seen = mask(memory) & (distance < window)
  np.testing.assert_array_equal(
    choices.position.recurrence.num_visible(choices.attention[0], ROW), seen.sum(axis=1)
  )


def test_shared_biases_are_one_set():
  own, shared = (tiny.params(segmented(biases=biases)) for biases in ('own', 'shared'))
  shapes = {name: x.shape for name, x in shared['relative_biases'].items()}
  heads = (tiny.H, tiny.K)
  assert shapes == {'content_bias': heads, 'position_bias': heads}
  attention = own['decoder']['periods']['block_0']['attention']
  assert attention['content_bias'].shape == (2, *heads)


N, M, P = 7, 5, 4
FIELDS = dict(
  attention='bidirectional',
  block='post',
  d_model=D,
  input='tokens(queries=True)',
  num_layers=2,
  position='xlnet(memory=5)',
)


def xlnet(**changes):
  return tiny.model(**{**FIELDS, **changes})


@functools.partial(jax.jit, static_argnums=0)
def run_xlnet(model, params, tokens, more, caches=None):
  row = Row(tokens, **more)
  out, sown = model.apply({'params': params}, row, caches, mutable=['intermediates'])
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
  model = xlnet()
  params, tokens = tiny.params(model), tiny.tokens(B, N)
  ranks = np.tile(np.arange(N), (B, 1))
  seen = order(ranks, ranks[:, 2:5])
  asked = np.tile(np.arange(2, 5), (B, 1))
  more = {'order': seen, 'extra': {'predicted': asked}}
  found, _ = run_xlnet(model, params, tokens, more)
  other = xlnet(attention='full', input='tokens', position='transformer_xl')
  expected, _ = run_xlnet(other, without_segments(params), tokens, {})
  assert found.hidden_BLD.shape == (B, N + 3, D)
  np.testing.assert_allclose(found.hidden_BLD[:, :N], expected.hidden_BLD, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_memory_is_as_tokens_before():
  """Of both streams; its tokens are of type 0, and all seen."""
  model = xlnet()
  params, tokens = tiny.params(model), tiny.tokens(B, M + N)
  types = np.array([[0] * M + [0, 1, 1, 0, 2, 2, 1]] * B)
  ranks, asked = orders(B, N), orders(B, N, seed=1)[:, :P]
  of_targets = np.take_along_axis(ranks, asked, axis=1)
  mask = np.ones((B, N), bool)
  mask[1, 2:4] = False
  more = {
    'real_BL': mask,
    'token_types_BL': types[:, M:],
    'order': order(ranks, of_targets),
    'extra': {'predicted': asked},
  }
  zeros = {'token_types_BL': types[:, :M]}
  _, inputs = run_xlnet(model, params, tokens[:, :M], zeros)
  caches = (SegmentMemory(jnp.stack(inputs)),)
  out, inputs = run_xlnet(model, params, tokens[:, M:], more, caches)
  np.testing.assert_array_equal(
    out.caches[0].hidden_BMD, np.stack([x[:, :N][:, -M:] for x in inputs])
  )
  # The same at once: the first tokens see nothing of the others.
  before = np.full((B, M), -1)
  whole = {
    'real_BL': np.pad(mask, ((0, 0), (M, 0)), constant_values=True),
    'token_types_BL': types,
    'order': order(np.append(before, ranks, axis=1), of_targets),
    'extra': {'predicted': asked + M},
  }
  expected, _ = run_xlnet(model, params, tokens, whole)
  assert expected.hidden_BLD.shape == (B, M + N + P, D)
  np.testing.assert_allclose(out.hidden_BLD, expected.hidden_BLD[:, M:], rtol=1e-4, atol=1e-5)


def test_gradients_come_from_what_is_before_in_the_order():
  """Exactly none of x_{z >= t} in g_{z_t}, of x_{z > t} in h_{z_t}; 20 orders.

  And some of all others.
  """
  model = xlnet(vocab_size=N)
  params, tokens = tiny.params(model), np.arange(N)[None]
  probe = np.float32(np.random.default_rng(4).normal(size=D))

  def outputs(table_VD, ranks_L):
    ranks_BL = ranks_L[None]
    out = model.apply(
      {'params': {**params, 'embed': {'embedding': table_VD}}},
      Row(tokens, order=order(ranks_BL, ranks_BL), extra={'predicted': jnp.arange(N)[None]}),
    )
    return out.hidden_BLD[0] @ probe

  table = params['embed']['embedding']
  jacobian = jax.jit(jax.vmap(jax.jacrev(outputs), (None, 0)))
  ranks = orders(20, N)
  size = np.max(np.abs(jacobian(table, ranks)), axis=-1)
  before = ranks[:, None] < ranks[:, :, None]
  upto = ranks[:, None] <= ranks[:, :, None]
  assert np.all(size[:, :N][~upto] == 0) and np.all(size[:, :N][upto] > 0)
  assert np.all(size[:, N:][~before] == 0) and np.all(size[:, N:][before] > 0)


def refused(model, **more):
  """A model that is given what it has no use for."""
  params, tokens = tiny.params(model), tiny.tokens(B, N)
  row = Row(tokens, **more)
  jax.eval_shape(lambda: model.apply({'params': params}, row))


ONES = np.ones((B, N), np.int32)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: relative('bidirectional'), 'needs causal attention'),
    (lambda: init_memories(make(position='transformer_xl'), B), 'keeps no memory'),
    (lambda: init_memories(make(position='rope'), B), 'keeps no memory'),
    (lambda: init_memories(make(-1, 0), B), '=-1 must be at least 0'),
    (lambda: init_memories(make(0, -1), B), '=-1 must be at least 0'),
    (lambda: refused(segmented(), segments_BL=ONES), 'set data'),
    (lambda: tiny.params(segmented(biases='both')), 'one of own, shared'),
    (lambda: refused(xlnet(input='tokens'), extra={'predicted': ONES}), 'has no second stream'),
  ],
)
def test_refusals(call, message):
  with pytest.raises(UsageError, match=message):
    call()
