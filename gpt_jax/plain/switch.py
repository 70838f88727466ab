# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Switch layer: a feed-forward layer in which each token goes to one expert."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import silu as gate_activation

from gpt_jax.plain.layers import gelu as activation
from gpt_jax.plain.recipe import BIASES, CAPACITY_FACTOR, DTYPE, GATED, NUM_EXPERTS, ROUTER_JITTER
from gpt_jax.plain.types import Params


def experts_dense(x: Array, p: Params) -> Array:
  """A dense layer of each expert, of its own tokens: [groups, experts, C, inputs]."""
  y = jnp.einsum('uecd,edf->uecf', x, p['kernel'].astype(DTYPE))
  return y + p['bias'].astype(DTYPE)[:, None] if BIASES else y


def switch_layer(x: Array, p: Params, group: int, key: Array | None) -> tuple[Array, Array]:
  """Y = p_i(x) E_i(x), i = argmax p(x) (Fedus et al., 2021, eq. 1 and 2).

  An expert takes the first tokens of a group of tokens that choose it, up to its capacity; the
  others get zeros. Without a key, when a text is written, it takes all.

  Returns:
    [B, L, D], and the balance N sum_i f_i P_i (eq. 4 to 6), 1 if experts are chosen evenly.
  """
  T = x.shape[1] if key is None else group
  capacity = T if key is None else min(int(T * CAPACITY_FACTOR / NUM_EXPERTS + 1e-9), T)
  tokens = x.reshape(-1, T, x.shape[-1])
  # Section 2.4: the router is in float32.
  inputs = tokens.astype(jnp.float32)
  if ROUTER_JITTER and key is not None:
    inputs *= jax.random.uniform(
      key, inputs.shape, minval=1 - ROUTER_JITTER, maxval=1 + ROUTER_JITTER
    )
  scores = jnp.einsum('utd,de->ute', inputs, p['router']['kernel'], precision='highest')
  probs = jax.nn.softmax(scores, axis=-1)
  expert, gate = jnp.argmax(probs, axis=-1), jnp.max(probs, axis=-1)
  chosen = jax.nn.one_hot(expert, NUM_EXPERTS)
  balance = NUM_EXPERTS * jnp.sum(jnp.mean(chosen, axis=1) * jnp.mean(probs, axis=1), axis=-1)
  # How many tokens before each chose its expert.
  rank = jnp.sum((jnp.cumsum(chosen, axis=1) - 1) * chosen, axis=-1).astype(jnp.int32)
  slots = NUM_EXPERTS * capacity
  slot = jnp.where(rank < capacity, expert * capacity + rank, slots)

  def placed(tokens: Array, slot: Array) -> Array:
    empty = jnp.zeros((slots, x.shape[-1]), x.dtype)
    return empty.at[slot].set(tokens, mode='drop').reshape(NUM_EXPERTS, capacity, -1)

  def picked(outputs: Array, slot: Array) -> Array:
    return outputs.reshape(slots, -1).at[slot].get(mode='fill', fill_value=0)

  h = jax.vmap(placed)(tokens, slot)
  if GATED:
    h = gate_activation(experts_dense(h, p['gate'])) * experts_dense(h, p['in'])
  else:
    h = activation(experts_dense(h, p['in']))
  y = gate[..., None] * jax.vmap(picked)(experts_dense(h, p['out']), slot)
  return y.astype(x.dtype).reshape(x.shape), jnp.mean(balance)
