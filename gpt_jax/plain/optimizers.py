# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers: from clipped gradients to new parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from gpt_jax.plain.recipe import (
  ADAM_EPSILON,
  BETA1,
  BETA2,
  BETA2_POWER,
  CLIP_NORM,
  CLIP_UPDATE,
  FACTORED,
  MOMENTUM,
  WEIGHT_DECAY,
)
from gpt_jax.plain.types import Params


def clip(grads: Params) -> Params:
  """Gradients of a global norm of at most CLIP_NORM."""
  norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
  return jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP_NORM / (norm + 1e-6)), grads)


def decays(path: Any) -> bool:
  """Weight decay acts on kernels and tables, not on biases and scales."""
  return path[-1].key in ('kernel', 'embedding')


def init_adam(params: Params) -> Params:
  """The means of the gradients and of their squares, zeros."""
  return {name: jax.tree.map(jnp.zeros_like, params) for name in ('mean', 'square')}


def adam(
  params: Params, grads: Params, moments: Params, step: Array, rate: Array
) -> tuple[Params, Params]:
  """AdamW (Loshchilov and Hutter, 2019), with the decay times the rate: parameters, moments."""
  mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, moments['mean'], grads)
  square = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g**2, moments['square'], grads)
  t = step + 1.0

  def update(path: Any, p: Array, m: Array, s: Array) -> Array:
    direction = m / (1 - BETA1**t) / (jnp.sqrt(s / (1 - BETA2**t)) + ADAM_EPSILON)
    if WEIGHT_DECAY:
      direction += WEIGHT_DECAY * p if decays(path) else 0
    return p - rate * direction

  params = jax.tree_util.tree_map_with_path(update, params, mean, square)
  return params, {'mean': mean, 'square': square}


def init_adafactor(params: Params) -> Params:
  """The means of the squares of gradients: of rows and columns, or of each number; zeros."""

  def zeros(p: Array) -> Params:
    if FACTORED and is_factored(p):
      return {'rows': jnp.zeros(p.shape[:-1]), 'columns': jnp.zeros((*p.shape[:-2], p.shape[-1]))}
    return {'all': jnp.zeros_like(p)}

  moments = {'square': jax.tree.map(zeros, params)}
  if MOMENTUM:
    moments['mean'] = jax.tree.map(jnp.zeros_like, params)
  return moments


def is_factored(p: Array) -> bool:
  """A matrix with sides of 128 or more keeps the means of its rows and columns alone."""
  return p.ndim > 1 and min(p.shape[-2:]) >= 128


def adafactor(
  params: Params, grads: Params, moments: Params, step: Array, rate: Array
) -> tuple[Params, Params]:
  """Adafactor (Shazeer and Stern, 2018, algorithms 4 and 5): new parameters and moments."""
  beta2 = 1 - (step + 1.0) ** -BETA2_POWER

  def of_tensor(p: Array, g: Array, s: Params) -> tuple[Array, Params]:
    g2 = jnp.square(g) + 1e-30
    if FACTORED and is_factored(p):
      rows = beta2 * s['rows'] + (1 - beta2) * jnp.mean(g2, axis=-1)
      columns = beta2 * s['columns'] + (1 - beta2) * jnp.mean(g2, axis=-2)
      shares = rows / jnp.mean(rows, axis=-1, keepdims=True)
      u = g / jnp.sqrt(shares)[..., None] / jnp.sqrt(columns)[..., None, :]
      s = {'rows': rows, 'columns': columns}
    else:
      s = {'all': beta2 * s['all'] + (1 - beta2) * g2}
      u = g / jnp.sqrt(s['all'])
    if CLIP_UPDATE:
      u /= jnp.maximum(1.0, root_mean_square(u) / CLIP_UPDATE)
    # The rate is relative to the size of the parameter.
    return u * jnp.maximum(root_mean_square(p), 1e-3) * -rate, s

  leaves, tree = jax.tree.flatten(params)
  given = zip(leaves, jax.tree.leaves(grads), tree.flatten_up_to(moments['square']), strict=True)
  pairs = [of_tensor(*each) for each in given]
  updates = tree.unflatten([u for u, _ in pairs])
  moments = moments | {'square': tree.unflatten([s for _, s in pairs])}
  if MOMENTUM:
    updates = jax.tree.map(lambda m, u: BETA1 * m + (1 - BETA1) * u, moments['mean'], updates)
    moments['mean'] = updates
  if WEIGHT_DECAY:
    updates = jax.tree_util.tree_map_with_path(
      lambda path, u, p: u - WEIGHT_DECAY * rate**2 * p if decays(path) else u, updates, params
    )
  return jax.tree.map(jnp.add, params, updates), moments


def root_mean_square(x: Array) -> Array:
  """sqrt(mean(x^2)) of a tensor; of each expert's, where they are stacked."""
  axes = (-2, -1) if x.ndim > 2 else None
  return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True))
