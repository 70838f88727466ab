# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a teacher says of a text, as targets (Hinton et al., 2015, section 2).

All sums are float32; weights have no gradient.
"""

import jax
import jax.numpy as jnp

from gpt_jax.objectives.cross_entropy import (
  NEVER,
  chunk_logits,
  chunked,
  joined,
  whole_table,
)
from gpt_jax.objectives.forward import Scores

# So that the norm of an all-zero state can be differentiated.
_TINY = 1e-12


def divergence(
  student: Scores,
  teacher: Scores,
  weights_BL: jax.Array,
  temperature: float,
) -> jax.Array:
  """The weighted sum of KL(softmax(z_t / T) || softmax(z_s / T)).

  z are the logits, of which only those of a chunk of positions are held, and
  computed again for the backward pass. Without the factor T^2.

  Args:
    student: of V tokens.
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


def most_probable(
  teacher: Scores, top_k: int, temperature: float
) -> tuple[jax.Array, jax.Array]:
  """The tokens that a teacher finds most probable, and how probable.

  Args:
    teacher: of V tokens.
    top_k: k of them, at most V.
    temperature: T of softmax(z / T).

  Returns:
    Ids, int32 [B, L, k], and float32 [B, L, k + 1]: the logarithms of their
    probabilities, and of that of all other tokens, -inf where k = V.
  """
  V, (B, L) = len(teacher.table_VD), teacher.hidden_BLD.shape[:2]
  table = whole_table(teacher.table_VD)

  def take(_, chunk):
    logits = chunk_logits(chunk[0], table, V, teacher.softcap) / temperature
    log_probs_PNV = jax.nn.log_softmax(logits)
    top_PNk, ids_PNk = jax.lax.top_k(log_probs_PNV, top_k)
    rest_PN = jnp.full(top_PNk.shape[:2], -jnp.inf)
    if top_k < V:
      rest_PN = _of_others(log_probs_PNV, ids_PNk)
    return None, (ids_PNk, jnp.append(top_PNk, rest_PN[..., None], axis=-1))

  chunks = chunked(V, teacher.hidden_BLD)
  ids, log_probs = jax.lax.scan(take, None, chunks)[1]
  return joined(ids, B, L), joined(log_probs, B, L)


def top_divergence(
  student: Scores,
  ids_BLk: jax.Array,
  log_probs_BLk: jax.Array,
  weights_BL: jax.Array,
  temperature: float,
) -> jax.Array:
  """The weighted sum of the KL of what `most_probable` gave.

  The rest of the vocabulary is one more token: with S the k tokens, p the
  teacher and q the student at temperature T

    sum_{v in S} p_v log(p_v / q_v) + p_R log(p_R / q_R),  p_R = 1 - sum_S p

  so that the student learns how much is not in S, but not how it is divided.
  It is at most the KL of the whole vocabulary, and that where k = V. The p are
  divided by their sum, which rounding leaves near 1.

  Args:
    student: of V tokens.
    log_probs_BLk: [B, L, k + 1], the last that of all others.
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
    # What the teacher rules out adds nothing, where 0 * inf is no number.
    ruled_out = jnp.isneginf(log_t_PNk)
    difference = jnp.where(ruled_out, 0, log_t_PNk - log_s_PNk)
    kl_PN = jnp.sum(jnp.exp(log_t_PNk) * difference, axis=-1)
    return total + jnp.sum(kl_PN * weights_PN), None

  chunks = chunked(V, student.hidden_BLD, ids_BLk, log_probs_BLk, weights_BL)
  return jax.lax.scan(jax.checkpoint(add), jnp.float32(0), chunks)[0]


def _of_others(log_probs_PNV: jax.Array, ids_PNk: jax.Array) -> jax.Array:
  """The logarithm of the probability of all tokens but some."""
  others = jnp.put_along_axis(
    log_probs_PNV, ids_PNk, NEVER, axis=-1, inplace=False
  )
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
