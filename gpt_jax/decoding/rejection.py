# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How proposals are judged, so that what is drawn has the model's distribution.

Leviathan et al., 2023: Fast Inference from Transformers via Speculative
Decoding, Algorithm 1. N is the number of proposals; p and q are the
distributions of model and draft, after all that a row's sampler does to them.
"""

import jax
import jax.numpy as jnp

from gpt_jax.decoding import sampler
from gpt_jax.decoding.sampler import Samplers

# The random numbers of one place in a text: those that propose its token, judge
# the proposal, and draw instead of it. None is used for two of them, or again:
# what follows a refused proposal is proposed anew, but nothing depended on it.
_PROPOSE, _JUDGE, _REPLACE = range(3)


def propose(
  logits_BV: jax.Array, samplers: Samplers, index_B: jax.Array
) -> jax.Array:
  """Draws from q, whose logits these are: ids [B]."""
  return sampler.categorical(logits_BV, samplers, 3 * index_B + _PROPOSE)


def judge(
  proposed_BN: jax.Array,
  logits_BNV: jax.Array,
  proposals_BNV: jax.Array,
  samplers: Samplers,
  index_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Accepts proposals x while u <= p(x) / q(x), u uniform; draws one token.

  That one is of norm(max(0, p - q)) where a proposal was refused, and of p
  after the last.

  Args:
    proposed_BN: the proposals.
    logits_BNV: of p, [B, N + 1, V]; -inf for what is never drawn.
    proposals_BNV: of q, [B, N, V].
    samplers: have the seeds.
    index_B: of the first proposal among the draws of its row.

  Returns:
    How many were accepted, and the token: both [B].
  """
  N = proposed_BN.shape[1]
  p_BNV = jax.nn.softmax(logits_BNV, axis=-1)
  # After the last proposal it subtracts nothing.
  q_BNV = jax.nn.softmax(proposals_BNV, axis=-1)
  q_BNV = jnp.pad(q_BNV, ((0, 0), (0, 1), (0, 0)))
  x_BN1 = proposed_BN[:, :, None]
  p_BN = jnp.take_along_axis(p_BNV[:, :N], x_BN1, axis=2)[:, :, 0]
  q_BN = jnp.take_along_axis(q_BNV[:, :N], x_BN1, axis=2)[:, :, 0]
  u_BN = jnp.stack(
    [
      jax.vmap(jax.random.uniform)(
        sampler.keys(samplers, 3 * (index_B + i) + _JUDGE)
      )
      for i in range(N)
    ],
    axis=1,
  )
  # Not <=: u may be zero, and what p excludes is never accepted.
  accepted_B = leading(u_BN * q_BN < p_BN)
  p_BV, q_BV = at(p_BNV, accepted_B), at(q_BNV, accepted_B)
  rest_BV = jnp.maximum(p_BV - q_BV, 0)
  # Where p and q are equal but for rounding, nothing may be left.
  some_B1 = jnp.sum(rest_BV, axis=1, keepdims=True) > 0
  rest_BV = jnp.where(some_B1, rest_BV, p_BV)
  index_B = 3 * (index_B + accepted_B) + _REPLACE
  return accepted_B, sampler.categorical(jnp.log(rest_BV), samplers, index_B)


def leading(accepted_BN: jax.Array) -> jax.Array:
  """How many hold before the first that does not, [B]."""
  return jnp.sum(jnp.cumprod(accepted_BN, axis=1), axis=1)


def at(x_BN: jax.Array, index_B: jax.Array) -> jax.Array:
  """x[b, index[b]]: [B, N, ...] to [B, ...]."""
  return x_BN[jnp.arange(len(index_B)), index_B]
