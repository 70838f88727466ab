# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each token's scores say of it, to be reported: no gradient."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.objectives.cross_entropy import (
  chunk_logits,
  chunked,
  joined,
  whole_table,
)
from gpt_jax.objectives.scores import Scores


class PerToken(NamedTuple):
  """Of each position.

  Attributes:
    nll_BL: its cross-entropy, float32.
    right_BL: whether the target has the largest logit; bool.
  """

  nll_BL: jax.Array
  right_BL: jax.Array


def per_token(scores: Scores, targets_BL: jax.Array) -> PerToken:
  """Scores of the vocabulary against targets, a chunk of logits at a time."""
  hidden_BLD, table_VD = jax.lax.stop_gradient(scores[:2])
  V, (B, L) = len(table_VD), targets_BL.shape
  table_VD = whole_table(table_VD)

  def measure(_, chunk):
    hidden_PND, targets_PN = chunk
    logits_PNV = chunk_logits(hidden_PND, table_VD, V, scores.softcap)
    at_PN = jnp.take_along_axis(logits_PNV, targets_PN[..., None], axis=-1)
    nll_PN = jax.nn.logsumexp(logits_PNV, axis=-1) - at_PN[..., 0]
    return None, PerToken(nll_PN, jnp.argmax(logits_PNV, -1) == targets_PN)

  chunks = chunked(V, hidden_BLD, targets_BL)
  found = jax.lax.scan(measure, None, chunks)[1]

  return PerToken(*(joined(x, B, L) for x in found))
