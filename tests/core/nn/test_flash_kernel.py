# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The flash kernel, interpreted, against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import keystr

from configs import base
from gpt_jax.core import sharding, spec
from gpt_jax.core.nn import backends
from gpt_jax.core.nn.attend import ByDistance, Request
from gpt_jax.core.nn.attention_dropout import AttentionDropout
from gpt_jax.core.nn.choices import BACKENDS, PATTERNS
from gpt_jax.core.nn.distance_products import ByKind, DistanceProducts, Products
from gpt_jax.core.nn.masks import Order, Tokens
from gpt_jax.core.nn.row import Row, Visibility
from gpt_jax.core.training import compiled as compiled_lib
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.papers.unilm import unified
from gpt_jax.papers.xlnet.permuted import order
from tests.support import tiny, tpu
from tests.support.cases import slow

B, L, M, K, V = 3, 211, 149, 7, 13
FLASH = 'flash(block=128, interpret=True)'


def build(what, text):
  return spec.build('model.attention', text, what)


def documents(length):
  """Documents that begin within blocks, and rows that are one."""
  ids = np.zeros((B, length), np.int32)
  ids[0, 4:] = ids[2, 130:] = 1
  ids[0, 140:] = 2
  return ids


def padding(length):
  """Left, right, and within."""
  mask = np.ones((B, length), bool)
  mask[0, :30] = mask[1, 90:] = mask[2, 97:117] = False
  return mask


def case(
  text='full',
  *,
  heads=(4, 2),
  length=L,
  num_keys=None,
  before=0,
  seen='',
  bias=False,
  products=(),
  ordered=False,
  masks=(),
  predicted=0,
  rate=0.0,
  softcap=0.0,
  value_size=K,
):
  """A request as a function of its float arrays, those, and a weight."""
  rng, (H, G) = np.random.default_rng(0), heads
  across, M = num_keys is not None, num_keys or before + length
  num_queries, places_BL, of_kinds = predicted or length, None, ()
  if predicted:
    at_L = [before + rng.permutation(length)[:predicted] for _ in range(B)]
    places_BL = np.stack(at_L)
  ranks = None
  if ordered:  # the tokens' kinds too
    ranks_BM = np.stack([rng.permutation(M) for _ in range(B)]).astype(np.int32)
    kinds_BM = rng.integers(3, size=(B, M))
    bounds_BL, kinds_BL = (x[:, before:] for x in (ranks_BM, kinds_BM))
    if predicted:
      bounds_BL = np.take_along_axis(ranks_BM, places_BL, axis=1) - 1
      kinds_BL = np.take_along_axis(kinds_BM, places_BL, axis=1)
    ranks, of_kinds = Order(bounds_BL, ranks_BM), (kinds_BL, kinds_BM)
  if masks:  # UniLM's, of rows whose second text begins at 97
    second_BL = np.arange(length) >= np.full((B, 1), 97)
    ranks = unified.order(np.array(masks), second_BL)
  visibility = Visibility(
    padding(M) if 'padding' in seen and not across else None,
    documents(length) if 'documents' in seen else None,
    np.array([0, 150, 7], np.int32) if 'prefix' in seen else None,
    order=ranks,
  )
  keys = None
  if across:
    keys = Tokens(
      np.arange(M)[None],
      segments=documents(M) if 'documents' in seen else None,
      real=padding(M) if 'padding' in seen else None,
    )
  dropout = None
  if rate:
    rows_B = np.array([5, 0, 1_000_003], np.uint32)
    dropout = AttentionDropout(rate, jnp.uint32(3_000_000_019), rows_B)
  arrays = {
    'q': rng.normal(size=(B, num_queries, H, K)),
    'k': rng.normal(size=(B, M, G, K)),
    'v': rng.normal(size=(B, M, G, value_size)),
  }
  if bias:
    arrays['strip'] = rng.normal(size=(H, 2 * length - 1))
  # No table has more vectors than its pattern may need.
  table = (M if text == 'full' else M + length - 1, H, K)
  if 'queries' in products:
    arrays['x'] = rng.normal(size=(B, num_queries, H, K))
    arrays['r'] = rng.normal(size=table)
  if 'keys' in products:
    arrays['y'] = rng.normal(size=(B, M, H, K))
    arrays['s'] = rng.normal(size=(M + length - 1, H, K))
  if ordered:
    arrays['n'] = rng.normal(size=(B, H, num_queries, 2))
  weight = rng.normal(size=(B, num_queries, H, value_size))
  if 'padding' in seen:  # queries that see nothing have no meaning
    real_BM = padding(M) if across else visibility.key_mask_BM
    sees_BLM = np.repeat(real_BM[:, None], num_queries, axis=1)
    if ranks is not None:
      sees_BLM &= np.asarray(ranks.visible())
    if 'documents' in seen:
      sees_BLM &= documents(length)[:, :, None] == documents(M)[:, None]
    if text != 'bidirectional':
      sees_BLM &= np.arange(M)[None] <= before + np.arange(length)[:, None]
    weight *= sees_BLM.any(axis=2)[..., None, None]

  def request(q, k, v, strip=None, **given):
    scores = None if strip is None else ByDistance(strip)
    if products:
      scores = DistanceProducts(
        Products(given['x'], given['r']) if 'x' in given else None,
        Products(given['y'], given['s']) if 'y' in given else None,
        ByKind(given['n'], *of_kinds) if 'n' in given else None,
      )
    return Request(
      q,
      k,
      v,
      build(PATTERNS, text),
      visibility,
      K**-0.5,
      scores,
      dropout,
      softcap=softcap,
      keys=keys,
      places_BL=places_BL,
      first=length if predicted else 0,
    )

  return request, {n: np.float32(x) for n, x in arrays.items()}, weight


def results(name, request, arrays, weight):
  """The output, and the gradients of a function of it by all arrays."""
  backend = build(BACKENDS, name)

  def loss(arrays):
    out = backends.attend_rows(request(**arrays), backend=backend) * weight
    return jnp.sum(out + out**2), out

  run = jax.value_and_grad(loss, has_aux=True)
  (_, out), gradients = jax.jit(run)(arrays)
  return {'out': out, **gradients}


def check_equal(found, expected):
  for name in expected:
    size = np.abs(expected[name]).max()
    assert size > 0.1, name
    np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5 * size, err_msg=name)


CASES = {
  'bert': dict(text='bidirectional', seen='padding', rate=0.1, heads=(3, 3)),
  't5': dict(text='bidirectional', seen='padding', rate=0.3, bias=True, heads=(3, 3)),
  'unilm': dict(text='bidirectional', seen='padding', rate=0.1, heads=(3, 3), masks=(1, 2, 3)),
  'decoder': dict(text='full', bias=True, rate=0.1, length=114, heads=(3, 3)),
  'across': dict(text='bidirectional', num_keys=M, seen='padding', rate=0.1, heads=(3, 3)),
  'packed across': dict(text='bidirectional', num_keys=M, seen='padding documents'),
  'packed': dict(text='full', seen='documents padding', bias=True, rate=0.1),
  'grouped': dict(text='full', heads=(6, 2), bias=True),
  'window': dict(text='local(window=50)', bias=True, rate=0.1),
  'prefix': dict(text='full', seen='prefix padding', rate=0.1),
  'prefix in a window': dict(text='local(window=60)', seen='prefix'),
  'softcap': dict(text='full', softcap=0.7, bias=True, value_size=V),
  'gopher': dict(text='full', heads=(2, 1), products='queries'),
  'transformer-xl': dict(
    text='full', heads=(2, 2), length=149, before=130, seen='padding', rate=0.1, products='queries'
  ),
  'same length': dict(
    text='local(window=90)', heads=(2, 2), length=149, before=130, products='queries'
  ),
  'deberta': dict(
    text='bidirectional', heads=(2, 2), seen='padding', rate=0.1, products='queries keys'
  ),
  'xlnet': dict(
    text='bidirectional',
    heads=(2, 2),
    length=149,
    before=130,
    seen='padding',
    rate=0.1,
    products='queries',
    ordered=True,
  ),
  'predictions': dict(
    text='bidirectional',
    heads=(2, 2),
    seen='padding',
    rate=0.1,
    products='queries',
    ordered=True,
    predicted=29,
  ),
  'causal deberta': dict(text='full', heads=(2, 2), seen='documents', products='keys'),
}


# Of these the others have each mechanism, alone or with one more.
OTHERS = {
  'bert',
  'decoder',
  'across',
  'window',
  'prefix',
  'gopher',
  'same length',
  'causal deberta',
}


@pytest.mark.parametrize('name', [slow(name) if name in OTHERS else name for name in CASES])
def test_equals_the_reference(name):
  """Output and all gradients, in rows of two blocks of 128 with a rest."""
  given = case(**CASES[name])
  check_equal(results(FLASH, *given), results('reference', *given))


@pytest.mark.parametrize(
  'changes',
  [
    dict(text='full', seen='documents padding', rate=0.1),
    dict(text='local(window=60)', seen='prefix', rate=0.1, softcap=0.7),
  ],
)
def test_rows_that_are_split_over_devices(changes):
  """Each has some queries: two blocks of 128 with a rest, of keys three."""
  given = case(**changes, length=298, heads=(2, 1))
  expected = results('reference', *given)
  rules = sharding.parse_rules(base.get_config().mesh.rules)
  with sharding.use(tiny.make_mesh(1, 1, 1, context=2), rules):
    found = results('all_gather(block=128, interpret=True)', *given)
  check_equal(found, expected)


MODEL = {'head_size': 8, 'num_layers': 1, 'attention': 'full', 'dropout': 'rates(attention=0.1)'}
MODELS = {
  't5': {
    'num_encoder_layers': 1,
    'position': 't5_bias(num_buckets=8, max_distance=16)',
    'encoder_attention': 'bidirectional',
    'attention_scale': 'none',
    'context_length': 71,
  },
  # Two segments, of which the first has no memory.
  'transformer_xl': {
    'position': "transformer_xl(memory=67, segment=71, biases='shared')",
    'context_length': 139,
    'd_model': 18,  # pairs of sine and cosine
  },
  'xlnet': {
    'position': 'xlnet',
    'input': 'tokens(queries=True)',
    'attention': 'bidirectional',
    'context_length': 71,
    'd_model': 18,
  },
  'deberta': {
    'position': 'deberta(max_distance=60, buckets=16, shared=True)',
    'attention': 'bidirectional',
    'context_length': 71,
  },
}
# Parameters by which the scores follow from distances.
BY_DISTANCE = {
  't5': ('encoder_bias', 'decoder_bias'),
  'transformer_xl': ('relative', 'content_bias', 'position_bias'),
  'xlnet': ('relative', 'position_bias', 'segments'),
  'deberta': ('distances',),
}


def loss_of(name, backend):
  """A model, and a function of its parameters, with dropout and padding."""
  model = tiny.model(**MODEL | MODELS[name], attention_backend=backend)
  rng, L = np.random.default_rng(0), model.context_length
  inputs = tiny.tokens(2, L, seed=1)
  weight = np.float32(rng.normal(size=(2, L, model.d_model)))
  mask, given = np.arange(L)[None] < np.array([[L], [40]]), {}
  if name == 't5':
    source = Row(tiny.tokens(2, L), real_BL=mask)
    given = {'extra': {'source': source}}
  elif name == 'xlnet':
    ranks_BL, places_BP = (np.stack([rng.permutation(L)[:n] for _ in range(2)]) for n in (L, 13))
    given = {
      'order': order(ranks_BL, np.take_along_axis(ranks_BL, places_BP, axis=1)),
      'extra': {'predicted': places_BP},
      'token_types_BL': rng.integers(3, size=(2, L)),
    }
    weight = np.float32(rng.normal(size=(2, L + 13, model.d_model)))
  elif name == 'deberta':
    weight, given = weight * mask[..., None], {'real_BL': mask}

  def loss(params):
    rngs = {'dropout': jax.random.key(5)}
    out = model.apply({'params': params}, Row(inputs, **given), rngs=rngs)
    return jnp.sum(out.hidden_BLD * weight)

  return model, jax.value_and_grad(loss)


def has_pairs(jaxpr):
  """Whether an array outside the kernels has all queries and all keys."""

  def inner(value):
    return hasattr(value, 'jaxpr') or hasattr(value, 'eqns')

  def shapes(jaxpr):
    for eqn in jaxpr.eqns:
      if eqn.primitive.name == 'pallas_call':
        continue
      for x in eqn.outvars:
        yield getattr(x.aval, 'shape', ())
      for value in jax.tree.leaves(eqn.params, is_leaf=inner):
        if inner(value):
          yield from shapes(getattr(value, 'jaxpr', value))

  return any(sum(n >= 64 for n in shape) > 1 for shape in shapes(jaxpr))


@pytest.mark.parametrize('name', ['deberta', *(slow(x) for x in MODELS if x != 'deberta')])
def test_a_model(name):
  """Loss and all gradients, those of what scores by distance included.

  No array outside the kernels has all pairs; the reference has some.
  """
  model, run = loss_of(name, 'reference')
  params = tiny.params(model)
  traced = jax.jit(run).trace(params)
  assert has_pairs(traced.jaxpr.jaxpr)
  loss, expected = traced.lower().compile()(params)
  traced = jax.jit(loss_of(name, 'flash(interpret=True)')[1]).trace(params)
  assert not has_pairs(traced.jaxpr.jaxpr)
  found_loss, found = traced.lower().compile()(params)
  np.testing.assert_allclose(found_loss, loss, rtol=1e-5)

  # The gradients of keys' biases are zero, but for rounding.
  size = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  paths = dict(jax.tree.leaves_with_path(found))
  for part in BY_DISTANCE[name]:
    sizes = [np.abs(x).max() for path, x in paths.items() if part in keystr(path)]
    assert sizes and max(sizes) > 1e-3 * size, part
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * size), found, expected
  )


@pytest.mark.slow
@pytest.mark.parametrize('position', ['alibi', slow('transformer_xl')])
def test_any_mesh_and_micro_batches(position):
  """Eight devices, of which two have other heads, take a step like one."""
  fields = {
    **tiny.MESHABLE,
    'model.context_length': 71,
    'model.head_size': 8,
    'model.num_layers': 1,
    'model.position': position,
    'model.dropout': 'rates(attention=0.1)',
    'optim.name': 'sgd',
    'schedule.name': 'constant(peak=1.0)',
  }

  def params(sizes, **changes):
    run = tiny.build(tiny.config(**{**fields, **changes}), sizes)
    state = parts_lib.initial_state(run)
    batch = tiny.batch(16, 71, run.config.model.vocab_size)
    step = compiled_lib.compile_train_step(run).call
    first = jax.device_get(state.params)
    state, _ = step(state, run.put(batch, 16))
    return first, jax.device_get(state.params)

  first, one = params((1, 1, 1), **{'model.attention_backend': 'reference'})
  backend = 'flash(interpret=True)'
  _, many = params((2, 2, 2), **{'model.attention_backend': backend, 'batch.micro_rows': 2})

  steps = jax.tree.map(np.subtract, one, first)
  # Those of keys' biases are zero, but for rounding.
  size = max(np.abs(x).max() for x in jax.tree.leaves(steps))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * size), many, one)


@pytest.mark.tpu
@pytest.mark.parametrize('topology', ['v5e:2x4', pytest.param('v4:2x2x1', marks=pytest.mark.long)])
def test_train_steps_compile(topology):
  """Forward, the same for the backward pass, and backward."""
  assert tpu.compiled('flash', topology) == {
    **{'40': 3, '128': 3},
    **{'gopher': 3, 'transformer_xl': 3, 'xlnet': 6, 'deberta': 3},
  }
