# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The second half of attention, softmax(scores) v, with its gradient.

Written out, since what differentiation makes of a softmax keeps three arrays of
the scores' size, where one is enough, and takes about twice the time on a CPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gpt_jax.nn.products import float32_einsum

# Not -inf: a query that sees no key (padding) would give nan, which would
# spread through later layers as 0 * nan. Its exponential is exactly zero.
HIDDEN = float(jnp.finfo(jnp.float32).min)
# The name of what the gradient reads of the forward pass, for `jax.checkpoint`.
KEPT = 'softmax'


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted(
  scores_BGQM: jax.Array,
  v_BGMK: jax.Array,
  mask: jax.Array,
  kept_BGQM: jax.Array | None = None,
  keep: float = 1.0,
) -> jax.Array:
  """softmax(scores) v, the probabilities in the dtype of the values.

  Args:
    scores_BGQM: float32, of the queries that share a head of values.
    v_BGMK: values.
    mask: bool, of a shape that broadcasts to the scores': True where a key is
      seen. A query that sees none gets the mean of the values.
    kept_BGQM: bool, which probabilities dropout leaves; None: all.
    keep: the share that it leaves, by which they are divided.

  Returns:
    [B, G, Q, K], of the values' dtype.
  """
  return _forward(scores_BGQM, v_BGMK, mask, kept_BGQM, keep)[0]


def _forward(scores_BGQM, v_BGMK, mask, kept_BGQM, keep):
  scores_BGQM = jnp.where(mask, scores_BGQM, HIDDEN)
  top_BGQ1 = jnp.max(scores_BGQM, axis=-1, keepdims=True)
  exp_BGQM = jnp.exp(scores_BGQM - top_BGQ1)
  share_BGQ1 = 1 / jnp.sum(exp_BGQM, axis=-1, keepdims=True)
  probs_BGQM = _dropped(exp_BGQM, kept_BGQM, keep).astype(v_BGMK.dtype)
  # Divided by the sum last, as there are fewer values than scores.
  sums_BGQK: Any = float32_einsum('BGQM,BGMK->BGQK', probs_BGQM, v_BGMK)
  out_BGQK = (share_BGQ1 * sums_BGQK).astype(v_BGMK.dtype)
  # The scores of a query that sees nothing have no gradient.
  of_scores_BGQ1 = jnp.where(top_BGQ1 > HIDDEN, share_BGQ1, 0)
  shares = share_BGQ1, of_scores_BGQ1
  exp_BGQM, shares, out_BGQK = checkpoint_name(
    (exp_BGQM, shares, out_BGQK), KEPT
  )
  return out_BGQK, (exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK)


def _backward(keep, residuals, grad_BGQK):
  """FlashAttention (Dao et al., 2022, appendix B.2).

  sum_m p_m dp_m, which a softmax's gradient needs, is the product of the
  output and its gradient: dropout changes nothing of that.
  """
  exp_BGQM, shares, v_BGMK, kept_BGQM, out_BGQK = residuals
  share_BGQ1, of_scores_BGQ1 = shares
  mean_BGQ1 = jnp.sum(
    grad_BGQK.astype(jnp.float32) * out_BGQK, axis=-1, keepdims=True
  )
  of_probs_BGQM: Any = float32_einsum('BGQK,BGMK->BGQM', grad_BGQK, v_BGMK)
  of_probs_BGQM = _dropped(of_probs_BGQM, kept_BGQM, keep)
  probs_BGQM = exp_BGQM * share_BGQ1
  probs_BGQM = _dropped(probs_BGQM, kept_BGQM, keep).astype(v_BGMK.dtype)
  of_values_BGMK = jnp.einsum('BGQM,BGQK->BGMK', probs_BGQM, grad_BGQK)
  of_scores_BGQM = exp_BGQM * of_scores_BGQ1 * (of_probs_BGQM - mean_BGQ1)
  return of_scores_BGQM, of_values_BGMK, None, None


weighted.defvjp(_forward, _backward)


def _dropped(
  x_BGQM: jax.Array, kept_BGQM: jax.Array | None, keep: float
) -> jax.Array:
  if kept_BGQM is None:
    return x_BGQM
  return jnp.where(kept_BGQM, x_BGQM / keep, 0)


@jax.custom_vjp
def plus_shared(x_BGQM: jax.Array, shared_GQM: jax.Array) -> jax.Array:
  """The sum; `shared_GQM`, float32, is the same for all rows.

  Its gradient is a sum over rows, which is taken as a product with ones: on a
  CPU ten times faster than XLA's own.
  """
  return x_BGQM + shared_GQM[None]


def _plus_shared(x_BGQM, shared_GQM):
  return plus_shared(x_BGQM, shared_GQM), None


def _of_shared(_, grad_BGQM):
  ones_B = jnp.ones(len(grad_BGQM), grad_BGQM.dtype)
  of_shared_GQM = jnp.einsum(
    'B,BGQM->GQM', ones_B, grad_BGQM, precision=jax.lax.Precision.HIGHEST
  )
  return grad_BGQM, of_shared_GQM


plus_shared.defvjp(_plus_shared, _of_shared)
