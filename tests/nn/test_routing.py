# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which expert takes which token, against loops over the tokens."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from gpt_jax.nn import moe
from gpt_jax.spec import UsageError

# The two worked examples of the load-balancing loss: p(x) of ten tokens.
BALANCED = [
  *([0.70, 0.10, 0.20], [0.80, 0.12, 0.08], [0.90, 0.05, 0.05]),
  *([0.65, 0.20, 0.15], [0.08, 0.80, 0.12], [0.20, 0.75, 0.05]),
  *([0.12, 0.73, 0.15], [0.10, 0.09, 0.81], [0.04, 0.06, 0.90]),
  [0.25, 0.07, 0.68],
]
COLLAPSED = [
  *([0.70, 0.10, 0.20], [0.80, 0.12, 0.08], [0.90, 0.05, 0.05]),
  # The negative number is printed so.
  *([0.65, 0.20, 0.15], [0.74, 0.05, 0.21], [0.85, 0.18, -0.03]),
  *([0.12, 0.73, 0.15], [0.73, 0.23, 0.04], [0.89, 0.06, 0.05]),
  [0.25, 0.07, 0.68],
]


def test_load_balance_of_the_balanced_example():
  choices = moe.choose(jnp.log(jnp.asarray(BALANCED)), 1, False)
  assert choices.experts_NJ.tolist() == [
    [i] for i in [0] * 4 + [1] * 3 + [2] * 3
  ]
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


A, E = 23, 5


@functools.partial(jax.jit, static_argnames='capacity')
def placed(experts_A, capacity):
  owners_S = jnp.arange(E * capacity) // capacity
  bases_E = jnp.arange(E) * capacity
  ranking = moe.rank(experts_A, E)
  slots = moe.place(ranking, experts_A, owners_S, bases_E, capacity)
  return ranking, slots


@hypothesis.settings(max_examples=40)
@hypothesis.given(
  # E: an expert of another device.
  st.lists(st.integers(0, E), min_size=A, max_size=A),
  st.sampled_from([1, 3, 7]),
)
def test_each_expert_takes_its_first(experts, capacity):
  """Each in turn, so that none depends on a later one."""
  counts, slots, sources = [0] * (E + 1), [], [A] * (E * capacity)
  for i, e in enumerate(experts):
    slot = e * capacity + counts[e]
    fits = e < E and counts[e] < capacity
    slots.append(slot if fits else E * capacity)
    if fits:
      sources[slot] = i
    counts[e] += 1
  ranking, found = placed(np.int32(experts), capacity)
  assert found.slots_A.tolist() == slots
  assert found.sources_S.tolist() == sources
  assert ranking.counts_E.tolist() == counts[:E]
  assert ranking.order_A.tolist() == sorted(range(A), key=experts.__getitem__)


def test_too_many_to_sort():
  experts = jax.ShapeDtypeStruct((2**24,), jnp.int32)
  with pytest.raises(UsageError, match='are too many to sort at once'):
    jax.eval_shape(functools.partial(moe.rank, num_experts=127), experts)


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
    return (
      moe.gather_slots(x, slots, top_k),
      moe.combine_slots(y, slots, gates),
    )

  def by_products(x, y, gates):
    return (
      jnp.einsum('TKS,TD->SD', onehot, x),
      jnp.einsum('TKS,TK,SD->TD', onehot, gates, y),
    )

  weights = tuple(
    jnp.sin(np.arange(n * D, dtype=np.float32)).reshape(n, D) for n in (S, T)
  )

  @functools.partial(jax.jit, static_argnums=0)
  def values_and_gradients(function, x, y, gates):
    values, pull = jax.vjp(function, x, y, gates)
    return *values, *pull(weights)

  found, expected = (
    values_and_gradients(f, x, y, gates) for f in (by_slots, by_products)
  )
  for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
