# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layers that share parameters compute what layers with equal ones do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt_jax import config as config_lib
from gpt_jax import hf
from gpt_jax.costs import totals
from gpt_jax.decoding.programs import for_decoding
from gpt_jax.nn import params as params_lib
from gpt_jax.nn.caches import init_caches
from gpt_jax.objectives.causal import Causal
from gpt_jax.spec import UsageError
from tests.support import tiny

B, L = tiny.B, tiny.L
LAYERS = 4
# Of each choice: names of shared parts, groups, inner layers.
CHOICES = {
  'all': ('attention, ffn', 1, 1),
  'all(inner=2)': ('attention, ffn', 1, 2),
  'attention(groups=2)': ('attention', 2, 1),
  'ffn': ('ffn', 1, 1),
}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


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
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    gradient,
    summed,
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
      out = apart_model.apply({'params': split}, now, at, caches)
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


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      {'num_layers': 6, 'share': 'all(groups=2, inner=2)'},
      'model.num_layers=6: does not divide by 2 groups of '
      "model.share='all(groups=2, inner=2)' times the 2 layers that each "
      'repeats; change one of them',
    ),
    ({'share': 'heads'}, "model.share='heads': unknown 'heads'; one of all"),
    ({'share': 'all(groups=0)'}, 'groups=0'),
  ],
)
def test_groups_that_do_not_divide_are_refused(fields, message):
  fields = {f'model.{name}': value for name, value in fields.items()}
  with pytest.raises(UsageError) as error:
    config_lib.resolve(tiny.config(**fields))
  assert message in str(error.value)


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
  for part, expected in (
    ('attention', [True] * 3 + [False] * 3),
    ('ffn', [True, False]),
  ):
    for mask in jax.tree.leaves(block[part]):
      np.testing.assert_array_equal(mask.reshape(-1), expected)


STACKS = dict(num_layers=2, num_encoder_layers=2)


def mirrored(params):
  """The parameters of two stacks that do not share."""
  blocks = params['decoder']['periods']['block_0']
  own = {n: x for n, x in blocks.items() if not n.startswith('cross')}
  return {**params, 'encoder': {'periods': {'block_0': own}}}


@pytest.mark.parametrize(
  'fields', [{}, slow({'loop': 'unroll', 'remat': 'full', 'block': 'post'})]
)
def test_both_stacks_compute_by_the_same_layers(fields):
  """As two with equal ones do, and their gradients are summed."""
  shared = tiny.model(share='stacks', **STACKS, **fields)
  plain = tiny.model(**STACKS, **fields)
  params, tokens = tiny.params(shared), tiny.tokens(B, L)
  assert 'encoder' not in params
  sources, mask = (
    tiny.tokens(B, 7, seed=1),
    np.arange(7)[None] < [[7], [4], [2]],
  )

  def loss(model, params):
    more = {'encoder_tokens_BM': sources, 'encoder_mask_BM': mask}
    out = model.apply({'params': params}, tokens, **more)
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
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    gradient,
    summed,
  )
  # As engines decode.
  apart_model, split = for_decoding(shared, params)
  again = jax.jit(
    lambda p: apart_model.apply({'params': p}, sources, mask, method='encode')
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


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'num_encoder_layers': 3}, 'is not model.num_layers=2'),
    ({'encoder_ffn': 'relu'}, 'are not alike'),
    ({'encoder_num_heads': 3}, 'not alike, by model.encoder_num_heads=3'),
    ({'encoder_d_ff': 19}, 'not alike, by model.encoder_d_ff=19'),
    ({'attention': 'full, local(window=3)'}, 'are not alike'),
  ],
)
def test_stacks_that_differ_do_not_share(fields, message):
  fields = {**STACKS, 'share': 'stacks', **fields}
  fields = {f'model.{name}': value for name, value in fields.items()}
  with pytest.raises(UsageError) as error:
    config_lib.resolve(tiny.config(**fields, **{'objective.name': 'span'}))
  assert message in str(error.value)


def test_no_family_has_one_set_of_layers_for_both(tmp_path):
  model = tiny.model(share='stacks', **STACKS, bias='none', norm='rmsnorm')
  with pytest.raises(UsageError, match=r"model.share='stacks'"):
    hf.save(str(tmp_path), model, tiny.params(model))
