# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy whose logits are never held as a whole.

With 50,257 tokens of vocabulary the logits of one batch outweigh the model.
They are computed a chunk of positions at a time, and the forward pass already
turns each chunk into its part of the gradients, so that the backward pass has
only to scale them: no logits are kept, none are computed twice.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Logits of one chunk, in elements: 128 MiB of float32.
CHUNK_LOGITS = 1 << 25


class Sums(NamedTuple):
  """Float32 sums over the positions, each times its weight.

  Attributes:
    total: of the cross-entropy and the penalty; this is what has a gradient.
    penalty: of z_loss * log(Z)^2 alone, so that reports can leave it out. Not
      differentiated.
  """

  total: jax.Array
  penalty: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def penalised_cross_entropy(
  hidden_BLD: jax.Array,
  table_VD: jax.Array,
  targets_BL: jax.Array,
  weights_BL: jax.Array,
  z_loss: float,
) -> Sums:
  """Cross-entropy plus z_loss * log(Z)^2, Z = sum exp(logits).

  Z is the softmax's normaliser, which the penalty pulls towards 1 (PaLM,
  section 5).

  Args:
    hidden_BLD: last hidden states.
    table_VD: scores the vocabulary: logits = hidden table^T, in float32.
    targets_BL: ids.
    weights_BL: float32; 0 leaves a position out. Not differentiated.
    z_loss: factor of the penalty; at 0 nothing is computed for it.
  """

  def add(sums, chunk):
    hidden_ND, targets_N, weights_N = chunk
    logits_NV = _logits(hidden_ND, table_VD)
    log_z_N = jax.nn.logsumexp(logits_NV, axis=-1)
    nll_N = log_z_N - _at(logits_NV, targets_N)
    return _add(sums, nll_N, log_z_N, weights_N, z_loss), None

  chunks = _split(table_VD.shape[0], hidden_BLD, targets_BL, weights_BL)
  return jax.lax.scan(add, Sums(jnp.float32(0), jnp.float32(0)), chunks)[0]


def _forward(hidden_BLD, table_VD, targets_BL, weights_BL, z_loss):
  """The sums, and the gradients of their total as residuals."""

  def add(carry, chunk):
    sums, grad_VD = carry
    hidden_ND, targets_N, weights_N = chunk
    logits_NV = _logits(hidden_ND, table_VD)
    top_N = jnp.max(logits_NV, axis=-1)
    exp_NV = jnp.exp(logits_NV - top_N[:, None])
    sum_N = jnp.sum(exp_NV, axis=-1)
    log_z_N = jnp.log(sum_N) + top_N
    nll_N = log_z_N - _at(logits_NV, targets_N)
    # d nll / d logits = softmax - onehot(target), and
    # d log(Z)^2 / d logits = 2 log(Z) softmax.
    hit_NV = jnp.arange(table_VD.shape[0])[None] == targets_N[:, None]
    softmax_weights_N = weights_N
    if z_loss:
      softmax_weights_N = weights_N * (1 + 2 * z_loss * log_z_N)
    delta_NV = exp_NV * (softmax_weights_N / sum_N)[:, None]
    delta_NV -= jnp.where(hit_NV, weights_N[:, None], 0)
    delta_NV = delta_NV.astype(hidden_ND.dtype)
    grad_ND = jnp.einsum('NV,VD->ND', delta_NV, table_VD)
    grad_VD += jnp.einsum(
      'NV,ND->VD', delta_NV, hidden_ND, preferred_element_type=jnp.float32
    )
    return (_add(sums, nll_N, log_z_N, weights_N, z_loss), grad_VD), grad_ND

  B, L, D = hidden_BLD.shape
  chunks = _split(table_VD.shape[0], hidden_BLD, targets_BL, weights_BL)
  zeros = Sums(jnp.float32(0), jnp.float32(0))
  start = (zeros, jnp.zeros(table_VD.shape, jnp.float32))
  (sums, grad_VD), grads = jax.lax.scan(add, start, chunks)
  grads = grads.reshape(len(grads), B, -1, D).swapaxes(0, 1)
  grad_BLD = grads.reshape(B, -1, D)[:, :L]
  return sums, (grad_BLD, grad_VD.astype(table_VD.dtype))


def _backward(z_loss, gradients, cotangents):
  del z_loss
  grads = [(g * cotangents.total).astype(g.dtype) for g in gradients]
  return (*grads, None, None)


penalised_cross_entropy.defvjp(_forward, _backward)


def _add(
  sums: Sums,
  nll_N: jax.Array,
  log_z_N: jax.Array,
  weights_N: jax.Array,
  z_loss: float,
) -> Sums:
  """The sums with one more chunk."""
  total = sums.total + jnp.sum(nll_N * weights_N)
  if not z_loss:
    return Sums(total, sums.penalty)
  penalty = z_loss * jnp.sum(jnp.square(log_z_N) * weights_N)
  return Sums(total + penalty, sums.penalty + penalty)


def _logits(hidden_ND: jax.Array, table_VD: jax.Array) -> jax.Array:
  return jnp.einsum(
    'ND,VD->NV', hidden_ND, table_VD, preferred_element_type=jnp.float32
  )


def _at(logits_NV: jax.Array, targets_N: jax.Array) -> jax.Array:
  """The logit of each target."""
  return jnp.take_along_axis(logits_NV, targets_N[:, None], axis=-1)[:, 0]


def _split(vocab_size: int, *arrays: jax.Array) -> tuple[jax.Array, ...]:
  """[B, L, ...] to chunks [number of chunks, N, ...] of few enough logits.

  Along the length, so that batches stay split over the devices as they are.
  The last chunk is filled up with zeros, whose weight is zero too.
  """
  B, L = arrays[0].shape[:2]
  num = min(-(-B * L * vocab_size // CHUNK_LOGITS), L)
  size = -(-L // num)
  num = -(-L // size)

  def split(x: jax.Array) -> jax.Array:
    rest = x.shape[2:]
    x = jnp.pad(x, [(0, 0), (0, num * size - L), *[(0, 0)] * len(rest)])
    x = x.reshape(B, num, size, *rest).swapaxes(0, 1)
    return x.reshape(num, B * size, *rest)

  return tuple(split(x) for x in arrays)
