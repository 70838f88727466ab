# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stacks of layers, with parameters of their own or shared ones."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from gpt_jax import hf
from gpt_jax.core import config as config_lib
from gpt_jax.core.costs import totals
from gpt_jax.core.nn import layout
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.caches import init_caches
from gpt_jax.core.nn.choices import SHARES
from gpt_jax.core.nn.row import Context, Row
from gpt_jax.core.nn.stack import REMATS, Stack, layer_outputs, unrolled
from gpt_jax.core.nn.transformer import parameter_shapes
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.spec import UsageError
from gpt_jax.decoding.programs import for_decoding
from gpt_jax.ejecting import weights
from tests.support import reference, tiny
from tests.support.cases import slow

B, L = tiny.B, tiny.L
RATES = 'rates(residual=0.2, attention=0.3)'


@functools.cache
def loss_and_gradient(**changes):
  """Of one model with dropout, whatever the way it is computed."""
  model = tiny.model(num_layers=2, dropout=RATES, **changes)
  objective = Causal().bind(model)
  gradient = jax.value_and_grad(lambda p, b, k: objective.loss(p, b, k).sum)
  return jax.device_get(
    jax.jit(gradient)(tiny.params(model), tiny.batch(B, L, tiny.V), jax.random.key(3))
  )


def assert_same(one, other):
  (loss, gradient), (other_loss, other_gradient) = one, other
  np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient, other_gradient
  )


def test_gradient_reaches_every_parameter():
  _, gradient = loss_and_gradient()
  for path, g in jax.tree_util.tree_leaves_with_path(gradient):
    name = jax.tree_util.keystr(path)
    # A key's bias adds the same to all scores of a query: softmax forgets it.
    if 'key' in name and 'bias' in name:
      np.testing.assert_allclose(g, 0, atol=1e-4)
    elif 'periods' in name:
      assert np.all(np.any(g, axis=tuple(range(1, g.ndim)))), name
    else:
      assert np.any(g), name


EVEN = {'d_model': 22, 'head_size': 8}
NEWER = {
  'llama': {
    **EVEN,
    'position': 'rope',
    'ffn': 'swiglu',
    'norm': 'rmsnorm',
    'block': 'parallel(num_norms=2)',
    'bias': 'where(out=True)',
    'attention': 'local(window=3)',
    'attention_scale': 'by_layer',
    'output': "untied(bias=True, scale='rsqrt')",
  },
  'gemma': {
    **EVEN,
    'position': "rope(scaling='linear(3)', local_theta=70)",
    'attention_scale': 'rsqrt(size=3, softcap=2.0)',
    'ffn': 'geglu_tanh',
    'norm': 'rmsnorm(plus_one=True)',
    'block': "sandwich(qk_norm='per_head')",
    'bias': 'none',
    'input': "tokens(scale='sqrt')",
    'output': 'tied(softcap=3.0)',
  },
  'transformer_xl': {
    **EVEN,
    'position': 'transformer_xl',
    'block': 'post',
    'ffn': 'geglu_tanh',
    'attention': 'local(window=3)',
    'attention_scale': 'none',
    'input': "tokens(scale='sqrt', norm=True)",
    'output': 'tied(bias=True)',
  },
}


def test_unrolled_layers_equal_scanned_ones():
  assert_same(loss_and_gradient(loop='unroll'), loss_and_gradient())


@pytest.mark.parametrize('platform', ['cpu', 'tpu', 'gpu'])
def test_auto_unrolls_on_gpus(platform, monkeypatch):
  monkeypatch.setattr(layout, 'platform', lambda: platform)
  apart = platform == 'gpu'
  assert unrolled('auto', 24) == apart and not unrolled('auto', 25)
  assert unrolled('unroll', 25) and not unrolled('scan', 3)
  fields = {'attention_backend': 'reference', 'dropout': 'none'}
  model = tiny.model(**fields, num_layers=3, loop='auto')
  params = tiny.params(model)
  text = str(jax.make_jaxpr(model.apply)({'params': params}, tiny.tokens(2, 5)))
  assert ('unroll=3' in text) == apart


@pytest.mark.slow
@pytest.mark.parametrize('changes', NEWER)
def test_unrolled_layers_equal_scanned_ones_for_newer_choices(changes):
  unrolled = loss_and_gradient(loop='unroll', **NEWER[changes])
  assert_same(unrolled, loss_and_gradient(**NEWER[changes]))
  # Nothing that was created is left out.
  for path, g in jax.tree_util.tree_leaves_with_path(unrolled[1]):
    assert np.any(g), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
  'loop, remat',
  [
    ('scan', 'full'),
    ('scan', 'offload'),
    slow('scan', 'dots'),
    slow('unroll', 'full'),
    slow('unroll', 'offload'),
  ],
)
def test_remat_gives_the_same_gradient(loop, remat):
  """What is computed again is the same, its dropout included."""
  assert {'none', 'full', 'dots', 'offload'} == {*REMATS}
  assert_same(loss_and_gradient(loop=loop, remat=remat), loss_and_gradient())


class AddDropped(nn.Module):
  """A block that adds 0 or 2 to each entry."""

  @nn.compact
  def __call__(self, x, context, cache, layer):
    """Drops half of what it adds."""
    return x + nn.Dropout(0.5, deterministic=False)(jnp.ones_like(x)), cache


@pytest.mark.parametrize('loop', ['scan', 'unroll', 'shared'])
def test_each_layer_draws_its_own_dropout(loop):
  """Three periods of two layers: 0, 2, ... 12 in binomial shares."""
  blocks, variables = (AddDropped, AddDropped), {}
  stack = Stack(blocks, 6, 'none', loop, SHARES['none']())
  if loop == 'shared':
    stack = Stack(blocks, 6, 'none', 'scan', SHARES['all'](groups=3))
    variables = {'params': {'periods': {'block_0': {}, 'block_1': {}}}}
  x = np.zeros((11, 13, 17), np.float32)
  run = jax.jit(lambda key: stack.apply(variables, x, Context(), None, rngs={'dropout': key})[0])
  found = np.asarray(run(jax.random.key(0)))
  for i in range(7):
    share = math.comb(6, i) / 2**6
    error = math.sqrt(share * (1 - share) / x.size)
    assert abs(np.mean(found == 2 * i) - share) < 5 * error, i


def saved_bytes(remat):
  """What the backward pass of a deep model keeps, as `jax.vjp` holds it."""
  model = tiny.model(num_layers=4, remat=remat, loop='unroll')
  params, tokens = tiny.params(model), tiny.tokens(B, L)

  def residuals(params):
    _, vjp = jax.vjp(lambda p: model.apply({'params': p}, tokens).hidden_BLD, params)
    return jax.tree.leaves(vjp)

  return sum(x.size * x.dtype.itemsize for x in jax.eval_shape(residuals, params))


def test_remat_saves_memory():
  none, dots, full = (saved_bytes(r) for r in ('none', 'dots', 'full'))
  assert none > dots > full


# What each of four layers, two of each pattern, is told.
WINDOWS = [None, 3, None, 3]
TWO = {'num_layers': 4, 'attention': 'full, local(window=3)'}


def by_hand(params, tokens, windows, scales=4 * [tiny.K**-0.5], kind='pre'):
  """What is embedded, the output of each layer, and the last normalised."""

  def run(p):
    out = [p['embed']['embedding'][tokens] + p['positions']['embedding'][:L]]
    for layer, window, scale in zip(p['layers'], windows, scales, strict=True):
      block = getattr(reference.of(SCORE_SCALE=scale), f'{kind}_block')
      out.append(block(out[-1], layer, 0.0, reference.seen(L, window), None, None))
    if 'final_norm' in p:
      out.append(reference.of().norm(out[-1], p['final_norm']))
    return out

  return reference.run(run, weights.to_plain(params))


def test_a_period_of_two_patterns_is_its_layers_in_turn():
  """Layers 0 and 2 see all, layers 1 and 3 see three tokens."""
  model = tiny.model(**TWO)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  periods = params['decoder']['periods']
  assert {*periods} == {'block_0', 'block_1'}
  assert periods['block_0']['ffn']['in']['bias'].shape == (2, tiny.F)
  found = jax.jit(model.apply)({'params': params}, tokens).hidden_BLD

  expected = by_hand(params, tokens, WINDOWS)[-1]
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
  other = by_hand(params, tokens, [3, None, 3, None])[-1]
  assert not np.allclose(found, other, atol=1e-2)


@pytest.mark.parametrize(
  'changes, stack',
  [
    ({'ffn': 'gelu, gelu, relu', 'num_layers': 4}, 'decoder'),
    ({'num_encoder_layers': 3, 'encoder_ffn': 'gelu, relu'}, 'encoder'),
    ({'ffn': 'gelu, relu', 'num_layers': 1}, 'decoder'),
  ],
)
def test_layers_that_fill_no_whole_period_are_refused(changes, stack):
  """Models that no config has checked, such as an import's, are built too."""
  model = tiny.model(**changes)
  with pytest.raises(UsageError, match=f'{stack}: . layers are not divisible'):
    parameter_shapes(model)


@pytest.mark.parametrize(
  'text, scales',
  [
    slow('none', [1, 1, 1, 1]),
    ('by_layer', [tiny.K**-0.5 / i for i in (1, 2, 3, 4)]),
    slow('by_layer(per_head=False)', [1 / i for i in (1, 2, 3, 4)]),
  ],
)
@pytest.mark.parametrize('loop', ['scan', 'unroll'])
def test_each_layer_has_its_scale(text, scales, loop):
  """Also where two layers make a period."""
  model = tiny.model(**TWO, attention_scale=text, loop=loop)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  found = jax.jit(model.apply)({'params': params}, tokens).hidden_BLD

  expected = by_hand(params, tokens, WINDOWS, scales)[-1]
  np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
  if text != 'none':
    repeated = by_hand(params, tokens, WINDOWS, scales[:2] * 2)[-1]
    assert not np.allclose(found, repeated, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
  'kind, changes', [('pre', {}), ('post', {}), ('post', {'loop': 'unroll', 'remat': 'full'})]
)
def test_layer_outputs(kind, changes):
  """Layer by layer, before the last norm."""
  model = tiny.model(**TWO, block=kind, **changes)
  params, tokens = tiny.params(model), tiny.tokens(B, L)

  @jax.jit
  def run(params):
    out, sown = model.apply({'params': params}, tokens, mutable='intermediates')
    sown = sown['intermediates']
    return out.hidden_BLD, sown['embedded'][0], layer_outputs(sown)

  hidden, start, outputs = run(params)
  assert len(outputs) == 4
  expected = by_hand(params, tokens, WINDOWS, kind=kind)
  if kind == 'post':
    np.testing.assert_array_equal(hidden, outputs[-1])
    expected.append(expected[-1])
  for one, other in zip([start, *outputs, hidden], expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_fewer_layers_are_the_first_of_more():
  """A model of the first two layers ends where layer 1 of four ends."""
  many, few = (tiny.model(**{**TWO, 'num_layers': n}, block='post') for n in (6, 2))
  params, tokens = tiny.params(many), tiny.tokens(B, L)
  first = {**params, 'decoder': jax.tree.map(lambda x: x[:1], params['decoder'])}
  _, sown = jax.jit(functools.partial(many.apply, mutable='intermediates'))(
    {'params': params}, tokens
  )
  outputs = layer_outputs(sown['intermediates'])
  assert len(outputs) == 6
  short = jax.jit(few.apply)({'params': first}, tokens).hidden_BLD
  np.testing.assert_allclose(outputs[1], short, rtol=1e-5, atol=1e-5)
  assert not np.allclose(outputs[3], short)


def test_layer_outputs_are_sorted_by_number():
  """Eleven layers in a period: hidden_10 comes after hidden_9."""
  names = [f'hidden_{i}' for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
  sown = {name: (np.array([int(name[7:]), 11 + int(name[7:])]),) for name in names}
  found = layer_outputs({'encoder': {'periods': sown}}, 'encoder')
  assert found == [*range(22)]


def test_parameters_carry_the_axis_layers():
  model = tiny.model()
  tokens = np.zeros((1, 1), np.int32)
  boxed = jax.eval_shape(model.init, jax.random.key(0), tokens)['params']
  block = boxed['decoder']['periods']['block_0']
  assert block['ffn']['in']['kernel'].names == ('layers', 'embed', 'mlp')
  assert block['attention']['key']['bias'].names == ('layers', 'kv_heads')
  assert block['attention_norm']['scale'].names == ('layers', 'norm')
  assert boxed['final_norm']['scale'].names == ('norm',)
  for leaf in jax.tree.leaves(boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)):
    assert len(leaf.names) == leaf.value.ndim


# Layers that share parameters compute what layers with equal ones do.


LAYERS = 4
# Of each choice: names of shared parts, groups, inner layers.
CHOICES = {
  'all': ('attention, ffn', 1, 1),
  'all(inner=2)': ('attention, ffn', 1, 2),
  'attention(groups=2)': ('attention', 2, 1),
  'ffn': ('ffn', 1, 1),
}


def apart(params, share):
  """The same parameters, with those of each layer by themselves."""
  shared, groups, inner = CHOICES[share]
  blocks = params['decoder']['periods']

  def of_layer(layer):
    def take(path, x):
      run = layer // inner
      if path[0].key.partition('_')[0] in shared:
        run = int(run / (LAYERS / inner / groups))
      return x[run]

    tree = blocks[f'block_{layer % inner}']
    return jax.tree_util.tree_map_with_path(take, tree)

  layers = [of_layer(layer) for layer in range(LAYERS)]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  return {**params, 'decoder': {'periods': {'block_0': stacked}}}


@functools.cache
def run_of(**fields):
  """Loss and gradient, compiled, of a model with or without sharing."""
  model = tiny.model(num_layers=LAYERS, **fields)
  objective = Causal().bind(model)
  batch = tiny.batch(B, L, tiny.V)

  def loss(params):
    return objective.loss(params, batch, None).sum

  return model, jax.jit(jax.value_and_grad(loss))


@pytest.mark.parametrize(
  'share, fields',
  [
    slow('all', {'loop': 'unroll', 'remat': 'full'}),
    slow('all(inner=2)', {'remat': 'dots'}),
    ('attention(groups=2)', {'remat': 'full'}),
    slow('ffn', {}),
  ],
)
def test_a_shared_gradient_is_the_sum_over_its_layers(share, fields):
  model, run = run_of(share=share, **fields)
  params = tiny.params(model)
  loss, gradient = run(params)
  copy = jax.jit(functools.partial(apart, share=share))
  expected, of_layers = run_of()[1](copy(params))
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  # The transpose of copying is the sum over the copies.
  (summed,) = jax.jit(lambda p, g: jax.vjp(copy, p)[1](g))(params, of_layers)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient, summed
  )


@pytest.mark.parametrize('share, copies', [('none', True), ('all', False)])
def test_no_loop_holds_a_copy_for_each_layer(share, copies):
  """Nor does the backward pass have a gradient for each."""
  model, run = run_of(share=share, remat='full')
  program = str(jax.make_jaxpr(run)(tiny.params(model)))
  assert (f'[{LAYERS},{tiny.D},{tiny.F}]' in program) == copies


@pytest.mark.slow
def test_a_shared_gradient_is_the_slope_of_the_loss():
  """By central differences, for two layers that share a kernel."""
  model = tiny.model(num_layers=2, share='all')
  params, batch = tiny.params(model), tiny.batch(B, L, tiny.V)
  objective = Causal().bind(model)
  kernel = params['decoder']['periods']['block_0']['ffn']['out']['kernel']
  direction = np.random.default_rng(5).normal(size=kernel.shape)

  def loss(t):
    blocks = params['decoder']['periods']['block_0']
    moved = kernel + t * direction.astype(np.float32)
    ffn = {**blocks['ffn'], 'out': {**blocks['ffn']['out'], 'kernel': moved}}
    tree = {'periods': {'block_0': {**blocks, 'ffn': ffn}}}
    return objective.loss({**params, 'decoder': tree}, batch, None).sum

  value_and_slope = jax.jit(jax.value_and_grad(loss))
  h = 2e-2
  above, below = (value_and_slope(jnp.float32(t))[0] for t in (h, -h))
  slope = value_and_slope(jnp.float32(0))[1]
  np.testing.assert_allclose((above - below) / (2 * h), slope, rtol=5e-3)


@pytest.mark.parametrize('share', [slow('all(inner=2)'), 'attention(groups=2)'])
def test_decoding_with_caches_equals_one_pass(share):
  """With the layers apart, as engines decode; what is shared is there once."""
  model = tiny.model(num_layers=LAYERS, share=share)
  params, tokens = tiny.params(model), tiny.tokens(B, L)
  apart_model, split = for_decoding(model, params)
  sizes = [sum(x.size for x in jax.tree.leaves(t)) for t in (split, params)]
  assert sizes[0] == sizes[1]

  @jax.jit
  def run(params, split):
    def read(caches, t):
      now = jnp.take(jnp.asarray(tokens), t[None], axis=1)
      at = jnp.full((B, 1), t)
      out = apart_model.apply({'params': split}, Row(now, at), caches)
      return out.caches, out.hidden_BLD[:, 0]

    caches = init_caches(apart_model, B, L)
    _, states = jax.lax.scan(read, caches, jnp.arange(L))
    return model.apply({'params': params}, tokens).hidden_BLD, states

  whole, states = run(params, split)
  np.testing.assert_allclose(states.swapaxes(0, 1), whole, rtol=1e-3, atol=1e-4)


def test_flops_are_those_of_all_layers():
  figures = {}
  for share in ('none', 'all', 'attention(groups=2)'):
    config = tiny.config(**{'model.num_layers': LAYERS, 'model.share': share})
    _, figures[share] = totals.figures_of(config_lib.resolve(config))
  none, shared, partly = figures.values()
  for name in ('parameters_matmul', 'flops_per_token', 'flops_total'):
    assert none[name] == shared[name] == partly[name]
  D, H, G, K, F = tiny.D, tiny.H, tiny.G, tiny.K, tiny.F
  attention = 2 * D * (H + G) * K + (H + 2 * G) * K + D + 2 * D
  ffn = 2 * D * F + F + D + 2 * D
  assert none['parameters'] - shared['parameters'] == 3 * (attention + ffn)
  assert none['parameters'] - partly['parameters'] == 2 * attention


def test_no_family_without_sharing_takes_them(tmp_path):
  model = tiny.model(share='all', d_model=18, num_kv_heads=6, head_size=3)
  with pytest.raises(UsageError, match=r"model.share='all' \(only 'none'\)"):
    hf.save(str(tmp_path), model, tiny.params(model))


def test_the_lowest_layers_are_whole_groups():
  model = tiny.model(num_layers=6, share='ffn(groups=2)')
  divided = [n for n in range(7) if params_lib.divides(model, n)]
  assert divided == [0, 3, 6]
  masks = params_lib.lowest(tiny.params(model), 3, model)
  block = masks['decoder']['periods']['block_0']
  for part, expected in (('attention', [True] * 3 + [False] * 3), ('ffn', [True, False])):
    for mask in jax.tree.leaves(block[part]):
      np.testing.assert_array_equal(mask.reshape(-1), expected)


STACKS = dict(num_layers=2, num_encoder_layers=2)


def mirrored(params):
  """The parameters of two stacks that do not share."""
  blocks = params['decoder']['periods']['block_0']
  own = {n: x for n, x in blocks.items() if not n.startswith('cross')}
  return {**params, 'encoder': {'periods': {'block_0': own}}}


@pytest.mark.parametrize('fields', [{}, slow({'loop': 'unroll', 'remat': 'full', 'block': 'post'})])
def test_both_stacks_compute_by_the_same_layers(fields):
  """As two with equal ones do, and their gradients are summed."""
  shared = tiny.model(share='stacks', **STACKS, **fields)
  plain = tiny.model(**STACKS, **fields)
  params, tokens = tiny.params(shared), tiny.tokens(B, L)
  assert 'encoder' not in params
  sources, mask = (tiny.tokens(B, 7, seed=1), np.arange(7)[None] < [[7], [4], [2]])

  def loss(model, params):
    source = Row(sources, real_BL=mask)
    row = Row(tokens, extra={'source': source})
    out = model.apply({'params': params}, row)
    return jnp.sum(jnp.sin(out.hidden_BLD)), out.memory_BMD

  def both(model):
    return jax.value_and_grad(functools.partial(loss, model), has_aux=True)

  @jax.jit
  def run(params):
    ((_, memory), expected), back = both(plain)(mirrored(params)), mirrored
    summed = jax.vjp(back, params)[1](expected)[0]
    return both(shared)(params), (memory, summed)

  ((_, memory), gradient), (expected, summed) = run(params)
  np.testing.assert_allclose(memory, expected, rtol=1e-5, atol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient, summed
  )
  # As engines decode.
  apart_model, split = for_decoding(shared, params)
  again = jax.jit(
    lambda p: apart_model.apply({'params': p}, Row(sources, real_BL=mask), method='encode')
  )(split)
  np.testing.assert_allclose(memory, again, rtol=1e-5, atol=1e-5)


def test_flops_of_stacks_that_share_are_those_of_two():
  figures = []
  fields = {f'model.{name}': n for name, n in STACKS.items()}
  fields['objective.name'] = 'span'
  for share in ('none', 'stacks'):
    config = tiny.config(**fields, **{'model.share': share})
    figures.append(totals.figures_of(config_lib.resolve(config))[1])
  none, shared = figures
  for name in ('parameters_matmul', 'flops_per_token', 'flops_total'):
    assert none[name] == shared[name]
  D, H, G, K, F = tiny.D, tiny.H, tiny.G, tiny.K, tiny.F
  attention = 2 * D * (H + G) * K + (H + 2 * G) * K + D + 2 * D
  ffn = 2 * D * F + F + D + 2 * D
  assert none['parameters'] - shared['parameters'] == 2 * (attention + ffn)


def test_no_family_has_one_set_of_layers_for_both(tmp_path):
  model = tiny.model(share='stacks', **STACKS, bias='none', norm='rmsnorm')
  with pytest.raises(UsageError, match=r"model.share='stacks'"):
    hf.save(str(tmp_path), model, tiny.params(model))
