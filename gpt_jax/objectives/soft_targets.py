# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a teacher says of a text, as targets (Hinton et al., 2015, section 2).

All sums are float32; weights have no gradient.
"""

import jax
import jax.numpy as jnp

from gpt_jax.objectives.cross_entropy import (
  chunk_logits,
  chunked,
  whole_table,
)
from gpt_jax.objectives.scores import Scores

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
    teacher: of the same V tokens.
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
