# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy whose logits are never held as a whole.

With 50,257 tokens of vocabulary the logits of one batch outweigh the model.
They are computed a chunk of positions at a time, and the forward pass already
turns each chunk into its part of the gradients, so that the backward pass has
only to scale them: no logits are kept, none are computed twice.
"""

import jax
import jax.numpy as jnp

# Logits of one chunk, in elements: 128 MiB of float32.
CHUNK_LOGITS = 1 << 25


@jax.custom_vjp
def cross_entropy(
  hidden_BLD: jax.Array,
  table_VD: jax.Array,
  targets_BL: jax.Array,
  weights_BL: jax.Array,
) -> jax.Array:
  """Sum over positions of weight * (logsumexp(logits) - logits[target]).

  Args:
    hidden_BLD: last hidden states.
    table_VD: scores the vocabulary: logits = hidden table^T, in float32.
    targets_BL: ids.
    weights_BL: float32; 0 leaves a position out. Not differentiated.

  Returns:
    float32 scalar.
  """

  def add(total, chunk):
    hidden_ND, targets_N, weights_N = chunk
    logits_NV = _logits(hidden_ND, table_VD)
    nll_N = jax.nn.logsumexp(logits_NV, axis=-1) - _at(logits_NV, targets_N)
    return total + jnp.sum(nll_N * weights_N), None

  chunks = _split(table_VD.shape[0], hidden_BLD, targets_BL, weights_BL)
  return jax.lax.scan(add, jnp.float32(0), chunks)[0]


def _forward(hidden_BLD, table_VD, targets_BL, weights_BL):
  """The loss, and its gradients as residuals."""

  def add(sums, chunk):
    total, grad_VD = sums
    hidden_ND, targets_N, weights_N = chunk
    logits_NV = _logits(hidden_ND, table_VD)
    top_N = jnp.max(logits_NV, axis=-1)
    exp_NV = jnp.exp(logits_NV - top_N[:, None])
    sum_N = jnp.sum(exp_NV, axis=-1)
    nll_N = jnp.log(sum_N) + top_N - _at(logits_NV, targets_N)
    # d nll / d logits = softmax - onehot(target).
    hit_NV = jnp.arange(table_VD.shape[0])[None] == targets_N[:, None]
    delta_NV = exp_NV * (weights_N / sum_N)[:, None]
    delta_NV -= jnp.where(hit_NV, weights_N[:, None], 0)
    delta_NV = delta_NV.astype(hidden_ND.dtype)
    grad_ND = jnp.einsum('NV,VD->ND', delta_NV, table_VD)
    grad_VD += jnp.einsum(
      'NV,ND->VD', delta_NV, hidden_ND, preferred_element_type=jnp.float32
    )
    return (total + jnp.sum(nll_N * weights_N), grad_VD), grad_ND

  B, L, D = hidden_BLD.shape
  chunks = _split(table_VD.shape[0], hidden_BLD, targets_BL, weights_BL)
  zeros = (jnp.float32(0), jnp.zeros(table_VD.shape, jnp.float32))
  (total, grad_VD), grads = jax.lax.scan(add, zeros, chunks)
  grads = grads.reshape(len(grads), B, -1, D).swapaxes(0, 1)
  grad_BLD = grads.reshape(B, -1, D)[:, :L]
  return total, (grad_BLD, grad_VD.astype(table_VD.dtype))


def _backward(gradients, cotangent):
  grads = [(g * cotangent).astype(g.dtype) for g in gradients]
  return (*grads, None, None)


cross_entropy.defvjp(_forward, _backward)


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
