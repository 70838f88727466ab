# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A stack whose layers a mesh splits over stages: see `pipeline`.

What differs between rows goes with them from stage to stage.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.core.nn import layers, layout, pipeline
from gpt_jax.core.nn.attend import ByDistance
from gpt_jax.core.nn.row import Context

# Inputs of layers, which all policies store; one by name does it in steps of a
# pipeline too.
_INPUT = 'layer_input'
_policies = jax.checkpoint_policies


def run(stack: Any, parts: pipeline.Parts, x_BLD: jax.Array, context: Context) -> jax.Array:
  """Runs the layers of a `Stack`: [B, L, D] -> [B, L, D]."""
  number, here = stack.num_periods, layers.rows_here()
  params, rngs = nn.meta.unbox(stack.get_variable('params', 'periods')), {}
  if stack.has_rng('dropout'):
    # The keys that `nn.scan` gives the layers.
    lazy = stack.scope.push('periods', reuse=True).rngs['dropout']
    keys = jax.random.split(lazy.rng, number)
    rngs = {'dropout': lazy.replace(rng=keys)}
  per_row, shared = _partition(context)
  numbers_B = None if here is None else here.numbers_B

  def part(run, of_layers, shared, rows):
    x_BLD, per_row, numbers_B = rows
    with layers.use_rows(here and here._replace(numbers_B=numbers_B)):
      return run(of_layers, x_BLD, _combine(per_row, shared))

  def stage(of_layers, shared, rows):
    run = functools.partial(_stage, stack, drawn=drawn)
    x_BLD, sown = part(run, of_layers, shared, rows)
    return (x_BLD, *rows[1:]), sown

  rows = jax.tree.map(parts.split, (x_BLD, per_row, numbers_B))
  S, W = rows[0].shape[:2]
  of_layers = params, jnp.arange(number), rngs
  # `nn.scan` traces the layers twice, and Flax counts what both traces draw:
  # without those of the first, other numbers would be drawn.
  one_part = jax.tree.map(lambda x: x[0, 0], rows)
  first = functools.partial(part, functools.partial(_first, stack))
  with layout.within(pipeline.STAGE):
    drawn, read = first(of_layers, shared, one_part)
  (x, *_), sown = pipeline.run(
    stage,
    of_layers,
    shared,
    rows,
    pipeline.Schedule(S, stack.circular.repeats, S * W),
    stack.storing(_policies.save_only_these_names(_INPUT)),
    parts.holders,
    (read, None, None),
  )

  def mean(x):  # [layers, M, ...], each a mean over rows
    return jnp.tensordot(_shares(parts, here, S * W), x, (0, 1))

  def joined(x):  # [layers, M, b, ...]
    return jax.vmap(parts.joined)(x.reshape(number, S, W, *x.shape[2:]))

  for name, values in sown.items():
    values = jax.tree.map(mean if name == 'router' else joined, values)
    stack.put_variable(name, 'periods', values)
  return parts.joined(x)


def _is_distance(x: Any) -> bool:
  return isinstance(x, ByDistance)


def _partition(context: Context) -> tuple[Context, Context]:
  """What differs between rows, and what all rows share; None for the rest."""

  def kept(of_rows: bool) -> Context:
    return jax.tree.map(
      lambda x: x if (not _is_distance(x) and len(x) > 1) == of_rows else None,
      context,
      is_leaf=_is_distance,
    )

  return kept(True), kept(False)


def _combine(per_row: Context, shared: Context) -> Context:
  """The inverse of `_partition`."""
  return jax.tree.map(
    lambda x, y: y if x is None else x, per_row, shared, is_leaf=lambda x: x is None
  )


def _first(stack: Any, of_layers: Any, x_BLD: jax.Array, context: Context) -> tuple[dict, Any]:
  """RNG counters after one period, and how each kernel is read.

  The latter are a `layout.Weight` or None for each parameter.
  """
  drawn, kernels = {}, {}

  def count(period: Any, index: jax.Array):
    period(x_BLD, context, stack.no_caches, index)
    drawn.update(period.scope.rng_counters)

  def first(of_layers: Any):
    params, index, rngs = jax.tree.map(lambda x: x[0], of_layers)
    apply = nn.apply(count, stack.period(), mutable=stack.sown())
    with layout.weights_read() as read:
      apply({'params': params}, index, rngs=rngs)
    kernels.update(jax.tree.map(lambda x: read.get(id(x)), params))

  jax.eval_shape(first, of_layers)
  return drawn, kernels


def _stage(
  stack: Any, of_layers: Any, x_BLD: jax.Array, context: Context, *, drawn: dict
) -> tuple[jax.Array, Any]:
  """Some of the layers, by their parameters, numbers and random keys."""
  run = of_period = stack.as_function(context, drawn)
  if stack.remat != 'none' and layout.num_parts('embed') > 1:

    def run(x_BLD, params, of_run):
      return of_period(x_BLD, pipeline.in_step(params, x_BLD), of_run)

  run = stack.rematerialized(jax.checkpoint, run)

  def step(x_BLD, of_layer):
    params, index, rngs = of_layer
    x_BLD = checkpoint_name(x_BLD, _INPUT)
    x_BLD, (_, sown) = run(x_BLD, params, (stack.no_caches, index, rngs))
    return x_BLD, sown

  unroll = len(of_layers[1]) if stack.is_unrolled else 1
  return jax.lax.scan(step, x_BLD, of_layers, unroll=unroll)


def _shares(parts: pipeline.Parts, rows: layers.Rows | None, number: int) -> jax.Array:
  """The weight of each micro-batch's means over its rows in those of all."""
  if rows is None or not rows.filled:
    return jnp.full(number, 1 / number)
  # The divisors of `layers.mean_over_rows`.
  real = layers.over_replicas(jnp.sum(parts.split(rows.real()), axis=2))
  return jnp.maximum(real.reshape(-1), 1) / jnp.maximum(jnp.sum(real), 1)
