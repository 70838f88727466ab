# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Experts: the layer, who takes which token, and how it gets there."""

import functools
import math

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core.meta import unbox
from hypothesis import strategies as st

from gpt_jax.core import sharding, spec
from gpt_jax.core.nn import grouped, moe
from gpt_jax.core.nn.choices import FFNS, INITS
from gpt_jax.core.spec import UsageError
from tests.support import reference, tiny

B, L, D, F, E = 4, 6, 5, 7, 3
KEY = jax.random.key(7)


def layer(text, *, bias=True, dtype=jnp.float32):
  choice = spec.build('model.ffn', text, FFNS)
  return choice.make(d_ff=F, bias=bias, inits=INITS['normal']()(1), dtype=dtype)


def params_of(module, seed=1):
  x = np.zeros((1, 1, D), np.float32)
  boxed = jax.eval_shape(module.init, jax.random.key(0), x)['params']
  # Large, for probabilities far from uniform.
  return tiny.random_like(unbox(boxed), seed=seed, size=0.7)


def inputs(seed=2, rows=B):
  rng = np.random.default_rng(seed)
  return np.float32(rng.normal(size=(rows, L, D)))


@functools.partial(jax.jit, static_argnames=('module', 'training'))
def apply(module, params, x, training=True):
  rngs = {'dropout': KEY} if training else {}
  y, sown = module.apply({'params': params}, x, rngs=rngs, mutable=['router', 'intermediates'])
  return y, sown['router']['stats'][0], sown['intermediates']


def by_token(params, x, *, expert, top_k=1, group=L, capacity=None):
  """Equations 1 to 6, one token after the other, in float64."""
  params = reference.widened(params)
  kernel = params['router']['kernel']
  groups = np.float64(x).reshape(-1, group, D)
  out, kept = np.zeros_like(groups), np.zeros((*groups.shape[:2], top_k), bool)
  balances, loads, log_zs, entropies = [], [], [], []
  for g, tokens in enumerate(groups):
    used, chosen, probs = np.zeros(E, int), np.zeros(E), np.zeros(E)
    for t, token in enumerate(tokens):
      h = token @ kernel + params['router'].get('bias', 0)
      p = np.exp(h) / np.exp(h).sum()
      log_zs.append(np.log(np.exp(h).sum()))
      entropies.append(-np.sum(p * np.log(p)))
      probs += p / group
      best = np.argsort(-p)[:top_k]
      gates = p[best] / (p[best].sum() if top_k > 1 else 1)
      for k, (i, gate) in enumerate(zip(best, gates, strict=True)):
        chosen[i] += 1 / (group * top_k)
        if capacity is not None and used[i] == capacity:
          continue
        used[i] += 1
        kept[g, t, k] = True
        own = {n: {k: a[i] for k, a in p.items()} for n, p in params.items() if n != 'router'}
        out[g, t] += gate * reference.feed_forward(own, token, expert)
    balances.append(E * np.sum(chosen * probs))
    loads.append(chosen)
  stats = {
    'load_E': np.mean(loads, axis=0),
    'dropped': 1 - kept.mean(),
    'entropy': np.mean(entropies),
    'balance': np.mean(balances),
    'z_loss': np.mean(np.square(log_zs)),
  }
  return out.reshape(x.shape), kept.reshape(*x.shape[:2], top_k), stats


CASES = {
  # 6 tokens a row * 1.25 / 3 experts = 2.5, rounded down.
  'switch': ({}, {'capacity': 2}),
  'smaller groups': ({'group_size': 3, 'capacity_factor': 1}, {'capacity': 1}),
  'larger groups': ({'group_size': 12, 'capacity_factor': 1}, {'capacity': 4}),
  'fixed': ({'capacity': 1, 'expert': 'swiglu'}, {'capacity': 1}),
  'bias of the router': ({'router_bias': True}, {'capacity': 2}),
  'top 2': ({'top_k': 2, 'capacity_factor': 1.7}, {'capacity': 3}),
  'dropless': ({'capacity_factor': 'none'}, {}),
  'dropless top 2': ({'capacity_factor': 'none', 'top_k': 2, 'expert': 'geglu'}, {}),
}


@pytest.mark.parametrize('case', CASES)
def test_layer(case):
  asked, wanted = CASES[case]
  options = {'num_experts': E, 'jitter': 0, 'balance': 0.3, 'z_loss': 0.2}
  options |= asked
  text = ', '.join(f'{name}={value!r}' for name, value in options.items())
  module = layer(f'switch({text})', bias=case != 'top 2')
  params, x = params_of(module), inputs()
  y, stats, sown = apply(module, params, x)
  expected, kept, numbers = by_token(
    params,
    x,
    expert=options.get('expert', 'relu'),
    top_k=options.get('top_k', 1),
    group=options.get('group_size') or L,
    **wanted,
  )
  assert (0 < numbers['dropped'] < 0.6) == bool(wanted)
  np.testing.assert_array_equal(sown['router_kept'][0], kept)
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  for name, value in numbers.items():
    np.testing.assert_allclose(getattr(stats, name), value, rtol=1e-4, atol=1e-6)
  penalty = 0.3 * numbers['balance'] + 0.2 * numbers['z_loss']
  np.testing.assert_allclose(stats.penalty, penalty, rtol=1e-4)
  assert ('bias' in params['router']) == ('router_bias' in asked)
  logits = np.float64(x) @ np.float64(params['router']['kernel'])
  logits += params['router'].get('bias', 0)
  np.testing.assert_allclose(sown['router_logits'][0], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'text',
  [
    "switch(num_experts=3, jitter=0, expert='swiglu')",
    "switch(num_experts=3, jitter=0, capacity_factor='none', top_k=2)",
  ],
)
def test_gradients(text):
  """Against every expert on every token, with those not chosen at zero."""
  module = layer(text)
  router = spec.build('model.ffn', text, FFNS).router
  params, x = params_of(module), inputs()
  kept = apply(module, params, x)[2]['router_kept'][0]
  weights = jnp.cos(jnp.arange(x.size)).reshape(x.shape)

  def dense(params, x):
    logits = jnp.einsum('BLD,DE->BLE', x, params['router']['kernel'])
    gates, best = jax.lax.top_k(jax.nn.softmax(logits), router.top_k)
    if router.top_k > 1:
      gates /= gates.sum(-1, keepdims=True)
    gates = jnp.einsum('BLK,BLKE->BLE', gates * kept, jax.nn.one_hot(best, router.num_experts))

    def widen(name):
      y = jnp.einsum('BLD,EDF->BLEF', x, params[name]['kernel'])
      return y + params[name]['bias'][None, None]

    h = widen('in')
    h = h * jax.nn.silu(widen('gate')) if 'gate' in params else jax.nn.relu(h)
    y = jnp.einsum('BLEF,EFD->BLED', h, params['out']['kernel'])
    y += params['out']['bias'][None, None]
    return jnp.sum(weights * jnp.einsum('BLE,BLED->BLD', gates, y))

  def ours(params, x):
    return jnp.sum(weights * apply(module, params, x)[0])

  found, expected = (jax.jit(jax.value_and_grad(f, (0, 1)))(params, x) for f in (ours, dense))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def permuted(params, order):
  out = {
    name: {n: a[order] for n, a in parts.items()}
    for name, parts in params.items()
    if name != 'router'
  }
  return {'router': {'kernel': params['router']['kernel'][:, order]}, **out}


@pytest.mark.parametrize('factor', [1.25, "'none'"])
def test_permuting_the_experts_permutes_their_order_alone(factor):
  module = layer(f'switch(num_experts=3, jitter=0, capacity_factor={factor})')
  params, order = params_of(module), np.array([2, 0, 1])
  y, stats, sown = apply(module, params, inputs())
  other, other_stats, other_sown = apply(module, permuted(params, order), inputs())
  np.testing.assert_allclose(other, y, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(other_sown['router_kept'][0], sown['router_kept'][0])
  assert len({*stats.load_E.tolist()}) > 1
  np.testing.assert_allclose(other_stats.load_E, stats.load_E[order])
  for a, b in zip(other_stats[1:], stats[1:], strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize('factor', [1, "'none'"])
def test_one_expert_is_the_dense_layer(factor):
  """Its gate is 1."""
  text = f"switch(num_experts=1, expert='swiglu', capacity_factor={factor})"
  module, dense = layer(text), layer('swiglu')
  params = params_of(module)
  y, stats, _ = apply(module, params, inputs())
  own = {n: {k: a[0] for k, a in params[n].items()} for n in params_of(dense)}
  expected = dense.apply({'params': own}, inputs())
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
  assert stats.dropped == 0


def test_a_large_capacity_is_dropless():
  """Up to the whole group: 6 * 3 / 3."""
  params = params_of(layer('switch(num_experts=3)'))
  large, none = (
    apply(layer(f'switch(num_experts=3, jitter=0, capacity_factor={factor})'), params, inputs())
    for factor in (3, "'none'")
  )
  assert large[1].dropped == 0
  np.testing.assert_allclose(large[0], none[0], rtol=1e-5, atol=1e-6)


def test_jitter_moves_the_router_alone_and_in_training_alone():
  module, plain = (layer(f'switch(num_experts=3, capacity=6, jitter={eps})') for eps in (0.1, 0))
  params, x = params_of(module), inputs()
  logits = [
    np.asarray(apply(m, params, x, training)[2]['router_logits'][0])
    for m, training in ((module, True), (module, False), (plain, True))
  ]
  np.testing.assert_array_equal(logits[1], logits[2])
  bound = 0.1 * np.abs(x) @ np.abs(params['router']['kernel'])
  moved = np.abs(logits[0] - logits[1])
  assert np.all(moved <= bound + 1e-5) and np.all(moved > 0)
  # The experts' inputs are as they were.
  params['router']['kernel'] = np.zeros_like(params['router']['kernel'])
  same = (apply(m, params, x)[0] for m in (module, plain))
  np.testing.assert_array_equal(*same)


def test_a_row_is_evaluated_alone_as_in_a_batch():
  module = layer('switch(num_experts=3)')
  params, x = params_of(module), inputs()
  whole, stats, _ = apply(module, params, x, training=False)
  assert stats.dropped == 0
  alone = apply(module, params, x[2:3], training=False)[0]
  np.testing.assert_allclose(alone, whole[2:3], rtol=1e-6, atol=1e-6)


def test_bfloat16_with_a_router_in_float32():
  module = layer('switch(num_experts=3, jitter=0)', dtype=jnp.bfloat16)
  params, x = params_of(module), jnp.asarray(inputs(), jnp.bfloat16)
  y, stats, sown = apply(module, params, x)
  assert y.dtype == jnp.bfloat16
  assert sown['router_logits'][0].dtype == jnp.float32
  assert {a.dtype for a in stats} == {jnp.dtype('float32')}
  expected, kept, _ = by_token(params, np.float32(x), expert='relu', capacity=2)
  np.testing.assert_array_equal(sown['router_kept'][0], kept)
  np.testing.assert_allclose(np.float32(y), expected, rtol=0.03, atol=0.03)


def test_initial_parameters():
  """The router's with a scale of 0.1; each expert's its own."""
  module = layer('switch(num_experts=3)')
  x = np.zeros((1, 1, 300), np.float32)
  boxed = jax.jit(module.init)(jax.random.key(0), x)['params']
  axes = {f'{part}/{kind}': p.names for part, kinds in boxed.items() for kind, p in kinds.items()}
  assert axes == {
    'router/kernel': ('embed', 'router'),
    'in/kernel': ('expert', 'embed', 'mlp'),
    'in/bias': ('expert', 'mlp'),
    'out/kernel': ('expert', 'mlp', 'embed'),
    'out/bias': ('expert', 'embed'),
  }
  params = unbox(boxed)
  router = params['router']['kernel']
  assert np.std(router) == pytest.approx(math.sqrt(0.1 / 300), rel=0.1)
  # Truncated at two standard deviations, of a normal that is wider by 1/0.88.
  assert np.max(np.abs(router)) < 2.28 * math.sqrt(0.1 / 300)
  kernels = params['in']['kernel']
  assert not np.any(kernels[0] == kernels[1])
  np.testing.assert_allclose(np.std(kernels, axis=(1, 2)), 0.02, rtol=0.1)


def largest(jaxpr):
  """Elements of the largest array that a program makes."""
  sizes = [0]
  for equation in jaxpr.eqns:
    sizes += [v.aval.size for v in equation.outvars]
    for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, 'eqns')):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        sizes.append(largest(inner))
  return max(sizes)


@pytest.mark.parametrize('factor', [1.25, "'none'"])
def test_memory_is_linear_in_the_tokens(factor):
  """A one-hot [tokens, experts, capacity] would grow with their square."""
  module = layer(f'switch(num_experts=16, top_k=2, capacity_factor={factor})', bias=False)
  params = params_of(module)

  def size(tokens):
    x = jax.ShapeDtypeStruct((1, tokens, D), jnp.float32)

    def total(params, x):
      return jnp.sum(apply(module, params, x)[0])

    return largest(jax.make_jaxpr(jax.grad(total, (0, 1)))(params, x).jaxpr)

  small, large = size(256), size(1024)
  # Tokens * choices * experts, where the experts' assignments are counted.
  assert small <= 256 * 2 * 16
  assert large <= 4.1 * small


@pytest.mark.parametrize(
  'text, why',
  [
    ('num_experts=0', 'num_experts=0 must be at least 1'),
    ("num_experts=2, expert='switch'", "expert='switch' is unknown; one"),
    ('num_experts=2, top_k=3', 'switch(top_k=3): must be from 1 to num_exp'),
    ('num_experts=2, top_k=0', 'top_k=0 must be at least 1'),
    ('num_experts=2, capacity_factor=1e999', "must be a positive number or 'n"),
    ('num_experts=2, renormalize=1', 'renormalize=1 must be True or'),
    (
      'num_experts=2, capacity_factor=0',
      "switch(capacity_factor=0): must be a positive number or 'none'",
    ),
    (
      "num_experts=2, eval_capacity_factor='all'",
      "switch(eval_capacity_factor='all'): must be a positive number or 'none'",
    ),
    ('num_experts=2, group_size=-1', 'group_size=-1 must be at least 0'),
    ('num_experts=2, jitter=1.0', 'jitter=1.0 must be below 1'),
    ('num_experts=2, balance=-0.1', 'balance=-0.1 must be at least 0'),
  ],
)
def test_bad_arguments(text, why):
  with pytest.raises(UsageError) as error:
    spec.build('model.ffn', f'switch({text})', FFNS)
  assert str(error.value).startswith('model.ffn')
  assert why in str(error.value)
  assert '\n' not in str(error.value)


def router(text):
  return spec.build('model.ffn', f'switch({text})', FFNS).router


def test_capacity():
  # 0.7 * 30 / 3 is a little less than 7 in floating point.
  assert router('num_experts=3, capacity_factor=0.7').capacity_of(30, True) == 7
  assert router('num_experts=4').capacity_of(13, True) == 4
  # Each token chooses an expert at most once.
  assert router('num_experts=1').capacity_of(13, True) == 13
  assert router('num_experts=4, capacity=64').capacity_of(13, False) == 13
  with pytest.raises(UsageError) as error:
    router('num_experts=8, eval_capacity_factor=1').capacity_of(7, False)
  assert str(error.value) == (
    'model.ffn: eval_capacity_factor=1.0 gives each of 8 experts 0.875 of the '
    '7 tokens of a group, which rounds to zero; raise it, give a larger '
    'group_size, or take fewer experts'
  )


@pytest.mark.parametrize(
  'size, rows, group',
  [(0, 3, 8), (4, 3, 4), (8, 3, 8), (16, 4, 16), (16, 3, 0), (3, 3, 0), (12, 3, 0)],
)
def test_group(size, rows, group):
  asked = router(f'num_experts=2, group_size={size}')
  if group:
    assert asked.group_of(rows, 8) == group
    return
  with pytest.raises(UsageError, match=f'group_size={size} does not fit {rows}'):
    asked.group_of(rows, 8)


# Which expert takes which token, against loops over the tokens.


# The two worked examples of the load-balancing loss: p(x) of ten tokens.
BALANCED = [
  [0.70, 0.10, 0.20],
  [0.80, 0.12, 0.08],
  [0.90, 0.05, 0.05],
  [0.65, 0.20, 0.15],
  [0.08, 0.80, 0.12],
  [0.20, 0.75, 0.05],
  [0.12, 0.73, 0.15],
  [0.10, 0.09, 0.81],
  [0.04, 0.06, 0.90],
  [0.25, 0.07, 0.68],
]
COLLAPSED = [
  [0.70, 0.10, 0.20],
  [0.80, 0.12, 0.08],
  [0.90, 0.05, 0.05],
  # The negative number is printed so.
  [0.65, 0.20, 0.15],
  [0.74, 0.05, 0.21],
  [0.85, 0.18, -0.03],
  [0.12, 0.73, 0.15],
  [0.73, 0.23, 0.04],
  [0.89, 0.06, 0.05],
  [0.25, 0.07, 0.68],
]


def test_load_balance_of_the_balanced_example():
  choices = moe.choose(jnp.log(jnp.asarray(BALANCED)), 1, False)
  assert choices.experts_NJ.tolist() == [[i] for i in [0] * 4 + [1] * 3 + [2] * 3]
  fractions = np.bincount(np.ravel(choices.experts_NJ)) / 10
  found = moe.load_balance(choices.probs_NE, np.float32(fractions))
  assert float(found) / 3 == pytest.approx(0.3384, abs=5e-5)


def test_load_balance_of_the_collapsed_example():
  fractions = np.float32([0.8, 0.1, 0.1])
  chosen = np.argmax(COLLAPSED, axis=-1)
  np.testing.assert_allclose(np.bincount(chosen) / 10, fractions)
  found = moe.load_balance(np.float32(COLLAPSED), fractions)
  assert float(found) / 3 == pytest.approx(0.5641, abs=5e-5)


def test_load_balance_is_one_when_uniform():
  probs = np.full((5, 7), 1 / 7, np.float32)
  assert float(moe.load_balance(probs, probs[0])) == pytest.approx(1)


@pytest.mark.parametrize('top_k', [1, 2, 3])
@pytest.mark.parametrize('renormalize', [True, False])
def test_choose(top_k, renormalize):
  logits = np.random.default_rng(0).normal(size=(11, 5))
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  order = np.argsort(-probs, axis=-1)[:, :top_k]
  gates = np.take_along_axis(probs, order, -1)
  if renormalize:
    gates /= gates.sum(-1, keepdims=True)
  found = moe.choose(np.float32(logits), top_k, renormalize)
  np.testing.assert_array_equal(found.experts_NJ, order)
  np.testing.assert_allclose(found.gates_NJ, gates, rtol=1e-5)
  np.testing.assert_allclose(found.probs_NE, probs, rtol=1e-5)


A, N = 23, 5


@functools.partial(jax.jit, static_argnames='capacity')
def placed(experts_A, capacity):
  owners_S = jnp.arange(N * capacity) // capacity
  bases_E = jnp.arange(N) * capacity
  ranking = moe.rank(experts_A, N)
  slots = moe.place(ranking, experts_A, owners_S, bases_E, capacity)
  return ranking, slots


@hypothesis.settings(max_examples=40)
@hypothesis.given(
  st.lists(st.integers(0, N - 1), min_size=A, max_size=A), st.sampled_from([1, 3, 7])
)
def test_each_expert_takes_its_first(experts, capacity):
  """Each in turn, so that none depends on a later one."""
  counts, slots, sources = [0] * N, [], [A] * (N * capacity)
  for i, e in enumerate(experts):
    slot = e * capacity + counts[e]
    fits = counts[e] < capacity
    slots.append(slot if fits else N * capacity)
    if fits:
      sources[slot] = i
    counts[e] += 1
  ranking, found = placed(np.int32(experts), capacity)
  assert found.slots_A.tolist() == slots
  assert found.sources_S.tolist() == sources
  assert ranking.counts_E.tolist() == counts
  assert ranking.order_A.tolist() == sorted(range(A), key=experts.__getitem__)


def test_too_many_to_sort():
  experts = jax.ShapeDtypeStruct((2**24,), jnp.int32)
  with pytest.raises(UsageError, match='are too many to sort at once'):
    jax.eval_shape(functools.partial(moe.rank, num_experts=129), experts)


@pytest.mark.parametrize('top_k', [1, 2])
def test_gather_and_combine(top_k):
  """And their gradients, against products with the one-hot of the slots."""
  T, D, capacity, num_experts = 7, 3, 2, 4
  S = num_experts * capacity
  rng = np.random.default_rng(top_k)
  # None to the last expert, and more than two to others.
  experts = np.argsort(rng.random((T, 3)))[:, :top_k].reshape(-1)

  @jax.jit
  def place(experts_A):
    owners_S = jnp.arange(S) // capacity
    bases_E = jnp.arange(num_experts) * capacity
    ranking = moe.rank(experts_A, num_experts)
    return moe.place(ranking, experts_A, owners_S, bases_E, capacity)

  slots = place(np.int32(experts))
  assert np.sum(np.asarray(slots.slots_A) == S) > 0, 'none is dropped'
  assert np.sum(np.asarray(slots.sources_S) == T * top_k) > 0, 'none is empty'
  x, y = (jnp.float32(rng.normal(size=(n, D))) for n in (T, S))
  gates = np.float32(rng.random((T, top_k)))
  onehot = np.eye(S + 1, dtype=np.float32)[np.asarray(slots.slots_A), :S]
  onehot = onehot.reshape(T, top_k, S)

  def by_slots(x, y, gates):
    return (moe.gather_slots(x, slots, top_k), moe.combine_slots(y, slots, gates))

  def by_products(x, y, gates):
    return (jnp.einsum('TKS,TD->SD', onehot, x), jnp.einsum('TKS,TK,SD->TD', onehot, gates, y))

  weights = tuple(jnp.sin(np.arange(n * D, dtype=np.float32)).reshape(n, D) for n in (S, T))

  @functools.partial(jax.jit, static_argnums=0)
  def values_and_gradients(function, x, y, gates):
    values, pull = jax.vjp(function, x, y, gates)
    return *values, *pull(weights)

  found, expected = (values_and_gradients(f, x, y, gates) for f in (by_slots, by_products))
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


# Of 150 tokens: most to one expert, none to another.
EXPERTS = np.random.default_rng(0).choice([1, 1, 1, 2], size=150)


@pytest.mark.parametrize('size', [1, 8, 32])
@pytest.mark.parametrize('experts', [EXPERTS, np.arange(150) % E])
def test_slots_in_blocks(experts, size):
  """Every token in a block of its expert, in order, each in its own row."""

  @jax.jit
  def place(experts_A):
    ranking = moe.rank(experts_A, E)
    blocks = grouped.layout(ranking.counts_E, len(experts_A), size)
    bases_E = grouped.starts(ranking.counts_E, size)
    owners_S = jnp.repeat(blocks.owners_X, size)
    return owners_S, moe.place(ranking, experts_A, owners_S, bases_E)

  owners, found = place(np.int32(experts))
  slots = np.asarray(found.slots_A)
  np.testing.assert_array_equal(owners[slots], experts)
  for e in range(E):
    assert np.all(np.diff(slots[experts == e]) == 1)
  sources = np.full(len(owners), len(experts))
  sources[slots] = np.arange(len(experts))
  np.testing.assert_array_equal(found.sources_S, sources)


# Tokens on their way to the experts of other devices, and back.


P, HELD, ROOM = 4, 2, 59
# Tokens of each device for each expert: some for none, one device has none.
COUNTS = np.random.default_rng(3).integers(0, 4, size=(P, P * HELD))
COUNTS[:, 5], COUNTS[2] = 0, 0
# Device 1 sends nothing to itself.
COUNTS[1, 2:4] = 0


def move(sent, runs, room):
  """The ragged all-to-all by its definition, one run after the other."""
  out = np.zeros((len(sent), room, *sent.shape[2:]), sent.dtype)
  for source, rows in enumerate(runs):
    per_device = len(rows.starts_K) // len(sent)
    sizes = [np.split(r.arriving_K, len(sent))[source] for r in runs]
    assert np.concatenate(sizes).tolist() == rows.sizes_K.tolist()
    for k, (start, size, target) in enumerate(zip(*rows[:3], strict=True)):
      piece = sent[source, start : start + size]
      assert len(piece) == size
      place = out[k // per_device, target : target + size]
      assert len(place) == size and not np.any(place), 'overlaps'
      place[:] = piece
  return out


def test_runs():
  """Each token arrives in a row of its expert, and comes back to its place."""
  totals = COUNTS.sum(0).reshape(P, HELD)
  bases = np.ravel(grouped.starts(totals, 8))
  runs = [moe.runs(jnp.asarray(COUNTS), p, bases) for p in range(P)]
  runs = jax.tree.map(np.asarray, runs)
  there, back = ([pair[i] for pair in runs] for i in range(2))
  # (device, expert, number) + 1, in the order of experts.
  sent = np.zeros((P, max(COUNTS.sum(1)), 3), int)
  for p, counts in enumerate(COUNTS):
    experts = np.repeat(np.arange(P * HELD), counts)
    sent[p, : len(experts)] = np.stack(
      [np.full_like(experts, p), experts, np.arange(len(experts))], axis=1
    )
    sent[p, : len(experts)] += 1
  there = move(sent, there, ROOM)
  for e in range(P * HELD):
    rows = there[e // HELD, bases[e] : bases[e] + COUNTS[:, e].sum()]
    assert np.all(rows[:, 1] == e + 1)
    assert rows[:, 0].tolist() == sorted(rows[:, 0])
  assert np.sum(there > 0) == 3 * COUNTS.sum()
  np.testing.assert_array_equal(move(there, back, sent.shape[1]), sent)


def test_fewer_rows_than_devices():
  """As in decoding: others are added, which take no place of theirs."""
  module = layer("switch(num_experts=3, top_k=2, capacity_factor='none')")
  params, x = params_of(module), inputs(rows=2)
  expected = apply(module, params, x, training=False)[0]
  mesh = tiny.make_mesh(1, 1, 1, expert=3)
  rules = sharding.parse_rules(tiny.config().mesh.rules)
  with sharding.use(mesh, rules):
    y = apply(module, params, x, training=False)[0]
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_exchange():
  """And its gradient, against the definition of a ragged all-to-all."""
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:P]), ('expert',))
  bases = grouped.starts(COUNTS.sum(0).reshape(P, HELD), 8).reshape(-1)
  rng = np.random.default_rng(5)
  longest = max(COUNTS.sum(1)) + 3
  x = np.float32(rng.normal(size=(P, longest, 2)))
  weights = np.float32(rng.normal(size=(P, ROOM, 2)))

  def on_device(x_ND):
    here = jax.lax.axis_index('expert')
    runs = moe.runs(jnp.asarray(COUNTS), here, bases)
    return moe.exchange(('expert',), (longest, ROOM), x_ND, *runs)

  spec = jax.sharding.PartitionSpec('expert')
  function = jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

  @jax.jit
  def both(x):
    y, pull = jax.vjp(function, x.reshape(-1, 2))
    return y, pull(weights.reshape(-1, 2))[0]

  y, dx = both(x)
  runs = [moe.runs(jnp.asarray(COUNTS), p, bases) for p in range(P)]
  there, back = ([pair[i] for pair in runs] for i in range(2))
  np.testing.assert_array_equal(y.reshape(P, ROOM, 2), move(x, there, ROOM))
  expected = move(weights, back, longest)
  np.testing.assert_array_equal(dx.reshape(x.shape), expected)
