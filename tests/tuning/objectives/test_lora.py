# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adapters: PEFT's recorded logits and gradients, and what is trained."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file

from gpt_jax import hf
from gpt_jax.core.costs import matmuls
from gpt_jax.core.nn import layers
from gpt_jax.core.nn import params as params_lib
from gpt_jax.core.nn.transformer import make_model
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.optim import train_state
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.tuning.objectives.lora import Lora
from gpt_jax.tuning.objectives.task import Classification
from tests.support import golden_io, tiny
from tests.support.cases import slow

FOLDER = golden_io.ROOT / 'gpt2_lora'


def objective(lora, num_rows=tiny.V, **fields):
  return lora.objective(Causal().bind(tiny.model(**fields)), num_rows)


@functools.cache
def drawn(lora, **fields):
  found = objective(lora, **fields)
  return jax.jit(functools.partial(parts_lib.init_params, found))(jax.random.key(1))


def with_random_b(params):
  """The parameters, with B's that are not 0."""
  flat = params_lib.flatten(params)
  for i, name in enumerate(sorted(flat)):
    if name.endswith('kernel_B'):
      flat[name] = tiny.random_like({'x': flat[name]}, seed=i)['x']
  return params_lib.nest(flat)


def test_recorded_logits_and_gradients_of_peft():
  """PEFT's c_attn is query, key and value, whose A's are one."""
  model, base = hf.load(str(FOLDER))
  lora = Lora(rank=4, alpha=8.0, on='query, key, value')
  case = golden_io.case(FOLDER, 'adapter')
  stored = load_file(FOLDER / 'adapter/adapter_model.safetensors')
  names = 'base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight'
  a, b = (np.stack([stored[names.format(i, kind)].T for i in range(2)]) for kind in 'AB')
  width = base['embed']['embedding'].shape[1]
  block = {
    name: {'kernel_A': a, 'kernel_B': b[..., i * width : (i + 1) * width]}
    for i, name in enumerate(('query', 'key', 'value'))
  }
  params = {
    'adapters': {'decoder': {'periods': {'block_0': {'attention': block}}}},
    'parts': {'base': base},
  }
  merged = lora.merged(params)
  inputs = case.inputs
  given = {n: inputs[n] for n in ('input_ids', 'attention_mask')}
  logits = hf.forward(model, merged, **given)['logits']
  for name in ('logits', 'merged_logits'):
    assert case.max_error(name, logits) < 1e-5

  # The mean over the tokens that HF counts: labels shifted by one.
  fields = {name: getattr(model, name) for name in hf.transformer_fields()}
  fields['dropout'] = 'none'
  causal = lora.objective(Causal().bind(make_model(**fields)), model.vocab_size)
  labels = inputs['labels'][:, 1:]
  batch = {
    'inputs': inputs['input_ids'][:, :-1],
    'targets': np.where(labels < 0, 0, labels).astype(np.int32),
    'weights': (labels >= 0).astype(np.float32),
  }

  def mean(adapters):
    loss = causal.loss({**params, 'adapters': adapters}, batch, None)
    return loss.sum / loss.weight

  value, grads = jax.jit(jax.value_and_grad(mean))(params['adapters'])
  np.testing.assert_allclose(value, case.outputs['loss'], rtol=1e-5)
  found = grads['decoder']['periods']['block_0']['attention']
  described = golden_io.meta(FOLDER)['cases']['adapter']['lora_grad_norm']
  for layer in range(2):
    of_a = sum(x['kernel_A'][layer] for x in found.values())
    of_b = np.concatenate([x['kernel_B'][layer] for x in found.values()], -1)
    for kind, grad in (('A', of_a), ('B', of_b)):
      np.testing.assert_allclose(
        np.linalg.norm(grad), described[names.format(layer, kind)], rtol=1e-4
      )


def test_b_starts_at_zero_and_a_as_in_peft():
  """So the first loss is the base's; and rows of new tokens are trained."""
  lora, size = Lora(rank=3, on='all'), {'vocab_size': tiny.V + 3}
  params = drawn(lora, **size)
  flat = params_lib.flatten(params['adapters'])
  for name, x in flat.items():
    assert name.endswith('A') or not np.any(x)
    if name.endswith('A'):
      *stack, num_in, rank = x.shape
      assert (*stack, rank) == (5, 3)
      # Uniform in +-1/sqrt(inputs), of which 5 layers' are all but the ends.
      assert 0.9 < np.abs(x).max() * np.sqrt(num_in) <= 1
      assert np.abs(np.mean(x)) < 0.2 / np.sqrt(num_in)
      assert np.any(x[0] != x[1])
  full = jax.jit(lora.merged)(params)
  plain = jax.eval_shape(
    functools.partial(parts_lib.init_params, Causal().bind(tiny.model(**size))), jax.random.key(0)
  )
  shapes = [jax.tree.map(lambda x: x.shape, tree) for tree in (full, plain)]
  assert shapes[0] == shapes[1]
  table = full['embed'].pop('embedding')
  jax.tree.map(np.testing.assert_array_equal, full, {**params['parts']['base'], 'embed': {}})
  assert params['new_rows']['embed']['embedding'].shape == (3, tiny.D)
  np.testing.assert_array_equal(table[tiny.V :], params['new_rows']['embed']['embedding'])


def test_the_product_is_added_in_each_layer():
  """Against NumPy, with the scale of alpha / r or alpha / sqrt(r)."""
  for rslora, scale in ((False, 7 / 3), (True, 7 / np.sqrt(3))):
    lora = Lora(rank=3, alpha=7.0, on='decoder/*/ffn/in/kernel', rslora=rslora)
    params = with_random_b(drawn(lora))
    ffn = params['adapters']['decoder']['periods']['block_0']
    assert {*ffn} == {'ffn'} and {*ffn['ffn']} == {'in'}
    pair = ffn['ffn']['in']
    base = params['parts']['base']['decoder']['periods']['block_0']['ffn']
    merged = lora.merged(params)['decoder']['periods']['block_0']['ffn']
    for layer in range(5):
      product = np.float64(pair['kernel_A'][layer]) @ pair['kernel_B'][layer]
      np.testing.assert_allclose(
        merged['in']['kernel'][layer], base['in']['kernel'][layer] + scale * product, atol=1e-5
      )


EXPERTS = "switch(num_experts=3, expert='relu', capacity_factor=3.0, jitter=0.0)"


@pytest.mark.parametrize(
  'on, fields',
  [
    ('all', {'num_layers': 2, 'remat': 'full'}),
    slow('all, decoder/*/router/kernel', {'num_layers': 2, 'ffn': EXPERTS}),
    slow('all', {'num_layers': 4, 'share': 'all'}),
    slow('all', {'num_layers': 2, 'attention': 'lstm(17)', 'block': 'plain'}),
  ],
)
def test_matrices_beside_kernels_are_matrices_added_to_them(on, fields):
  lora = Lora(rank=2, alpha=3.0, on=on)
  inner = Causal().bind(tiny.model(**fields))
  found = lora.objective(inner, tiny.V)
  params = with_random_b(drawn(lora, **fields))
  batch = tiny.batch(3, 7, tiny.V)

  def mean(loss):
    return loss.sum / loss.weight

  beside = jax.value_and_grad(lambda p: mean(found.loss(p, batch, None)))
  added = jax.value_and_grad(lambda p: mean(inner.loss(lora.merged(p), batch, None)))
  (a, of_a), (b, of_b) = jax.jit(beside)(params), jax.jit(added)(params)
  np.testing.assert_allclose(a, b, rtol=1e-5)
  for name, x in params_lib.flatten(of_b['adapters']).items():
    y = params_lib.flatten(of_a['adapters'])[name]
    assert np.abs(x).max() > 0, name
    np.testing.assert_allclose(y, x, rtol=1e-3, atol=1e-6, err_msg=name)


def test_dropout_is_on_the_input_of_a():
  """W x + s B A dropout(x), as in PEFT; evaluation drops nothing."""
  rng, rate = np.random.default_rng(0), 0.25
  x, w = rng.normal(size=(7, 11, 13)), rng.normal(size=(13, 17))
  a, b = rng.normal(size=(13, 13)), rng.normal(size=(13, 17))
  inits = jax.nn.initializers.zeros
  dense = layers.Dense(17, ('embed', 'mlp'), inits, False, np.float32)
  params = {'kernel': w, 'kernel_A': a, 'kernel_B': b, 'kernel_rate': rate}
  params = {n: np.float32(y) for n, y in params.items()}

  def apply(x, **rngs):
    return dense.apply({'params': params}, np.float32(x), rngs=rngs)

  np.testing.assert_allclose(apply(x), x @ (w + a @ b), atol=1e-4)
  key = jax.random.key(3)
  found = apply(x, dropout=key)
  dropped = (found - x @ w) @ np.linalg.pinv(b) @ np.linalg.pinv(a)
  kept = np.abs(dropped) > np.abs(x) / 2
  np.testing.assert_allclose(dropped, kept * x / (1 - rate), atol=2e-3)
  assert abs(kept.mean() - (1 - rate)) < 0.05
  np.testing.assert_array_equal(found, apply(x, dropout=key))
  # A row draws the same in another micro-batch.
  with layers.use_rows(layers.Rows(np.arange(7), 7, False)):
    whole = apply(x, dropout=key)
  with layers.use_rows(layers.Rows(np.arange(4, 7), 7, False)):
    np.testing.assert_allclose(apply(x[4:], dropout=key), whole[4:], atol=1e-5)


@pytest.mark.parametrize('fields', [slow({'remat': 'full'}), {'num_layers': 4, 'share': 'all'}])
def test_only_a_loss_with_a_key_drops(fields):
  batch, key = tiny.batch(5, 7, tiny.V), jax.random.key(2)
  plain, some = (objective(Lora(rank=2, on='all', dropout=x), **fields) for x in (0.0, 0.4))
  params = with_random_b(drawn(Lora(rank=2, on='all'), **fields))

  @jax.jit
  def gradients(params, key):
    def sums(objective, key):
      return jax.value_and_grad(
        lambda x: objective.loss({**params, 'adapters': x}, batch, key).sum
      )(params['adapters'])

    return sums(some, key), sums(some, None), sums(plain, key)

  (dropped, grads), (evaluated, _), (whole, _) = gradients(params, key)
  np.testing.assert_allclose(evaluated, whole, rtol=1e-6)
  assert abs(dropped / whole - 1) > 1e-5
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grads))
  again = gradients(params, jax.random.key(3))[0][0]
  assert abs(again / dropped - 1) > 1e-5


def test_experts_have_no_input_to_drop():
  lora = Lora(rank=2, on='all', dropout=0.1)
  found = objective(lora, ffn=EXPERTS)
  params = tiny.shapes(found)
  loss = functools.partial(found.loss, batch=tiny.batch(3, 7, tiny.V))
  with pytest.raises(UsageError, match=r'ffn/.*give dropout=0\.0'):
    jax.eval_shape(loss, params, key=jax.random.key(0))


def test_a_step_has_two_thirds_of_the_products():
  sizes = {'d_model': 61, 'd_ff': 127, 'num_layers': 2}
  inner = Causal().bind(tiny.model(**sizes))
  found = Lora(rank=1, on='all').objective(inner, tiny.V)
  batch = tiny.batch(3, 7, tiny.V)

  def products(objective):
    params = tiny.shapes(objective)
    params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
    trained = train_state.trained(params, objective.unsaved)

    def loss(trained):
      whole = train_state.with_frozen(trained, params, objective.unsaved)
      return objective.loss(whole, batch, None).sum

    return matmuls.flops(jax.make_jaxpr(jax.grad(loss))(trained))

  assert 0.66 < products(found) / products(inner) < 0.72


def test_only_adapters_heads_and_new_rows_are_trained():
  lora = Lora(rank=2)
  task = Classification(2, 7).bind(tiny.model(vocab_size=tiny.V + 3))
  found = lora.objective(task, tiny.V)
  assert found.frozen == found.unsaved == ('base',)
  config = tiny.config()
  axes = parts_lib.logical_axes(found)
  assert {*axes} == {'adapters', 'heads', 'new_rows'}
  names = params_lib.flatten(axes)
  block = 'adapters/decoder/periods/block_0/attention'
  assert names[f'{block}/query/kernel_A'] == P('layers', 'embed', None)
  assert names[f'{block}/query/kernel_B'] == P('layers', None, 'heads')
  assert names[f'{block}/value/kernel_B'] == P('layers', None, 'kv_heads')
  assert len([n for n in names if n.startswith('adapters')]) == 4
  shapes = tiny.shapes(found)
  size = sum(x.size for x in jax.tree.leaves(shapes['adapters']))
  heads, groups = tiny.H * tiny.K, tiny.G * tiny.K
  assert size == config.model.num_layers * 2 * (2 * tiny.D + heads + groups)


@pytest.mark.parametrize(
  'on, why',
  [
    ('quary', "no kernel is called 'quary'; give all, or some of .*query"),
    ('decoder/periods/2/*', 'names some layers of decoder/periods/block_0/'),
    ('query,', "no kernel is called ''"),
    ('embed/*', r"no kernel is called 'embed/\*'"),
  ],
)
def test_kernels_that_are_not_there(on, why):
  with pytest.raises(UsageError, match=f"^finetune.lora: on='.*{why}"):
    parts_lib.logical_axes(objective(Lora(on=on)))
