# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A teacher's outputs as soft targets (Hinton et al., 2015, section 2).

All sums are float32; weights have no gradient.
"""

import jax
import jax.numpy as jnp

from gpt_jax.core.objectives.cross_entropy import (
  NEVER,
  Scores,
  chunk_logits,
  chunked,
  map_logits,
  whole_table,
)

# Makes the norm of an all-zero state differentiable.
_TINY = 1e-12


def divergence(
  student: Scores, teacher: Scores, weights_BL: jax.Array, temperature: float
) -> jax.Array:
  """The weighted sum of KL(softmax(z_t / T) || softmax(z_s / T)).

  The logits z are computed a chunk of positions at a time, and recomputed in
  the backward pass. The factor T^2 is not included.

  Args:
    weights_BL: float32; 0 leaves a position out.
    temperature: T.
  """
  V = len(student.table_VD)
  assert len(teacher.table_VD) == V, 'see distilled._check'
  tables = whole_table(student.table_VD), whole_table(teacher.table_VD)
  softcaps = student.softcap, teacher.softcap

  def add(total, chunk):
    *hidden, weights_PN = chunk
    log_s, log_t = (
      jax.nn.log_softmax(chunk_logits(x, table, V, cap) / temperature)
      for x, table, cap in zip(hidden, tables, softcaps, strict=True)
    )
    kl_PN = jnp.sum(jnp.exp(log_t) * (log_t - log_s), axis=-1)
    return total + jnp.sum(kl_PN * weights_PN), None

  chunks = chunked(V, student.hidden_BLD, teacher.hidden_BLD, weights_BL)
  return jax.lax.scan(jax.checkpoint(add), jnp.float32(0), chunks)[0]


def most_probable(teacher: Scores, top_k: int, temperature: float) -> tuple[jax.Array, jax.Array]:
  """A teacher's most probable tokens, and their log-probabilities.

  Args:
    top_k: k, at most the vocabulary size V.
    temperature: T of softmax(z / T).

  Returns:
    Ids, int32 [B, L, k], and float32 [B, L, k + 1]: their log-probabilities,
    then that of all other tokens together, -inf if k = V.
  """

  def take(logits_PNV):
    log_probs_PNV = jax.nn.log_softmax(logits_PNV / temperature)
    top_PNk, ids_PNk = jax.lax.top_k(log_probs_PNV, top_k)
    rest_PN = jnp.full(top_PNk.shape[:2], -jnp.inf)
    if top_k < len(teacher.table_VD):
      rest_PN = _of_others(log_probs_PNV, ids_PNk)
    return ids_PNk, jnp.append(top_PNk, rest_PN[..., None], axis=-1)

  return map_logits(take, teacher)


def top_divergence(
  student: Scores,
  ids_BLk: jax.Array,
  log_probs_BLk: jax.Array,
  weights_BL: jax.Array,
  temperature: float,
) -> jax.Array:
  """The weighted sum of the KL from the outputs of `most_probable`.

  The rest of the vocabulary R counts as one token: with S the k tokens, p the
  teacher and q the student at temperature T

    sum_{v in S} p_v log(p_v / q_v) + p_R log(p_R / q_R),  p_R = 1 - sum_S p

  so that the student learns the total probability outside S, but not how it is
  distributed. It is at most the KL of the whole vocabulary, and equal to it if
  k = V. The p are divided by their sum, which rounding leaves near 1.

  Args:
    log_probs_BLk: [B, L, k + 1], the last for all other tokens.
    weights_BL: float32; 0 leaves a position out.
    temperature: T.
  """
  V, k = len(student.table_VD), ids_BLk.shape[-1]
  table = whole_table(student.table_VD)

  def add(total, chunk):
    hidden, ids_PNk, stored_PNk, weights_PN = chunk
    logits = chunk_logits(hidden, table, V, student.softcap) / temperature
    log_s_PNV = jax.nn.log_softmax(logits)
    log_s_PNk = jnp.take_along_axis(log_s_PNV, ids_PNk, axis=-1)
    if k < V:
      rest_PN1 = _of_others(log_s_PNV, ids_PNk)[..., None]
      log_s_PNk = jnp.append(log_s_PNk, rest_PN1, axis=-1)
    log_t_PNk = stored_PNk[..., : k + (k < V)].astype(jnp.float32)
    log_t_PNk = jax.nn.log_softmax(log_t_PNk)
    # Tokens with teacher probability 0 add nothing; 0 * inf would be NaN.
    ruled_out = jnp.isneginf(log_t_PNk)
    difference = jnp.where(ruled_out, 0, log_t_PNk - log_s_PNk)
    kl_PN = jnp.sum(jnp.exp(log_t_PNk) * difference, axis=-1)
    return total + jnp.sum(kl_PN * weights_PN), None

  chunks = chunked(V, student.hidden_BLD, ids_BLk, log_probs_BLk, weights_BL)
  return jax.lax.scan(jax.checkpoint(add), jnp.float32(0), chunks)[0]


def _of_others(log_probs_PNV: jax.Array, ids_PNk: jax.Array) -> jax.Array:
  """The log-probability of all tokens but the given ones."""
  others = jnp.put_along_axis(log_probs_PNV, ids_PNk, NEVER, axis=-1, inplace=False)
  return jax.nn.logsumexp(others, axis=-1)


def cosine_distance(
  student_BLD: jax.Array, teacher_BLD: jax.Array, weights_BL: jax.Array
) -> jax.Array:
  """The weighted sum of 1 - cos(student, teacher)."""
  units = []
  for states_BLD in (student_BLD, teacher_BLD):
    x_BLD = states_BLD.astype(jnp.float32)
    squared_BL1 = jnp.sum(jnp.square(x_BLD), axis=-1, keepdims=True)
    units.append(x_BLD * jax.lax.rsqrt(squared_BL1 + _TINY))
  cosine_BL = jnp.sum(units[0] * units[1], axis=-1)
  return jnp.sum((1 - cosine_BL) * weights_BL)
