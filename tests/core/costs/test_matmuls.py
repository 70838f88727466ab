# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""FLOPs of traced programs, loops and all."""

import functools

import jax
import jax.numpy as jnp
import pytest

from gpt_jax.core.costs import matmuls
from gpt_jax.core.nn import grouped
from tests.support import tiny


def count(f, *shapes):
  arrays = [jnp.zeros(shape, jnp.float32) for shape in shapes]
  return matmuls.flops(jax.make_jaxpr(f)(*arrays))


def test_a_product():
  assert count(jnp.dot, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
  einsum = functools.partial(jnp.einsum, 'bik,bkj->bij')
  assert count(einsum, (2, 3, 5), (2, 5, 7)) == 2 * 2 * 3 * 5 * 7


def test_its_gradient_takes_two_more():
  def loss(x, y):
    return jnp.sum(jnp.square(x @ y))

  gradient = jax.grad(loss, argnums=(0, 1))
  assert count(jax.jit(gradient), (3, 5), (5, 7)) == 3 * 2 * 3 * 5 * 7


def test_recomputing_counts():
  @jax.checkpoint
  def layer(x, y):
    return jnp.sin(x @ y)

  gradient = jax.grad(lambda x, y: jnp.sum(layer(x, y)), argnums=(0, 1))
  assert count(gradient, (3, 5), (5, 7)) == 4 * 2 * 3 * 5 * 7


def test_loops_times_their_trips():
  def powers(x):
    return jax.lax.scan(lambda c, _: (c @ x, c), x, None, length=11)

  assert count(powers, (5, 5)) == 11 * 2 * 5**3
  nested = jax.vmap(powers)
  assert count(nested, (3, 5, 5)) == 3 * 11 * 2 * 5**3

  def branches(x):
    return jax.lax.cond(x[0, 0] > 0, lambda y: y @ y @ y, lambda y: y @ y, x)

  assert count(branches, (5, 5)) == 2 * 2 * 5**3


def test_grouped_products():
  groups = jnp.array([2, 4, 5])

  def f(x, y):
    return jax.lax.ragged_dot(x, y, groups)

  assert count(f, (11, 5), (3, 5, 7)) == 2 * 11 * 5 * 7

  def loss(x, y):
    return jnp.sum(jnp.square(f(x, y)))

  gradient = jax.grad(loss, argnums=(0, 1))
  assert count(gradient, (11, 5), (3, 5, 7)) == 3 * 2 * 11 * 5 * 7


def test_kernels_whose_grid_depends_on_data():
  """One block of rows counts, of as many as there are."""
  blocks = grouped.layout(jnp.array([2, 1, 2]), 5, 128)

  def f(x, y):
    return grouped.by_kernel(x, y, blocks, interpret=True)

  rows = len(blocks.owners_X) * 128
  found = count(f, (rows, 384), (3, 384, 256))
  assert found == 2 * 128 * 384 * 256


def model_flops(**changes):
  """Forward and backward of one batch."""
  model = tiny.model(**changes)
  params, tokens = tiny.params(model), tiny.tokens(tiny.B, 13)

  def loss(params):
    return jnp.sum(model.apply({'params': params}, tokens).hidden_BLD)

  traced = jax.jit(jax.grad(loss)).trace(params)
  return matmuls.flops(traced.jaxpr), traced


def test_a_scanned_model_counts_as_an_unrolled_one():
  scanned, _ = model_flops()
  unrolled, _ = model_flops(loop='unroll')
  assert scanned == pytest.approx(unrolled, rel=0.01)


def test_the_compilers_own_count_where_it_has_no_loops():
  """It also counts element-wise work: more of it, the smaller the model."""
  sizes = {'d_model': 96, 'd_ff': 384, 'head_size': 16, 'vocab_size': 512}
  found, traced = model_flops(loop='unroll', num_layers=2, **sizes)
  expected = traced.lower().cost_analysis()['flops']
  assert found == pytest.approx(expected, rel=0.08)
  assert found < expected
