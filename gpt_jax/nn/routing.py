# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which expert takes which token: pure functions, all shapes static.

More suffixes: N tokens, T tokens of a group, J choices of a token, A = T J
assignments (choice j of token t is assignment t J + j), E experts, S slots
(the places of the experts' inputs, one token each).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.spec import UsageError


class Choices(NamedTuple):
  """The experts of each token, and the factors of their outputs."""

  probs_NE: jax.Array
  experts_NJ: jax.Array
  gates_NJ: jax.Array


def choose(logits_NE: jax.Array, top_k: int, renormalize: bool) -> Choices:
  """The `top_k` most probable experts of each token.

  Args:
    logits_NE: float32 [..., E], of the router.
    top_k: 1 is Switch (section 2.1), more is the mixture of experts.
    renormalize: a token's gates sum to one (GShard, Mixtral; the gate of one
      choice is then 1, and no gradient of it reaches the router); else they
      are the probabilities themselves (Switch, equation 2).
  """
  probs_NE = jax.nn.softmax(logits_NE, axis=-1)
  if top_k == 1:
    # As top_k has it, but faster.
    experts_NJ = jnp.argmax(probs_NE, axis=-1, keepdims=True)
    gates_NJ = jnp.max(probs_NE, axis=-1, keepdims=True)
  else:
    gates_NJ, experts_NJ = jax.lax.top_k(probs_NE, top_k)
  if renormalize:
    gates_NJ /= jnp.sum(gates_NJ, axis=-1, keepdims=True)
  return Choices(probs_NE, experts_NJ.astype(jnp.int32), gates_NJ)


def load_balance(probs_NE: jax.Array, fractions_E: jax.Array) -> jax.Array:
  """N sum_i f_i P_i (Switch, equations 4 to 6), without the factor alpha.

  1 when both are uniform.

  Args:
    probs_NE: [N, E]; P_i is their mean over the tokens.
    fractions_E: f_i, the fraction of the assignments that chose expert i.
  """
  num_experts = probs_NE.shape[-1]
  return num_experts * jnp.sum(fractions_E * jnp.mean(probs_NE, axis=0))


class Ranking(NamedTuple):
  """The assignments, sorted by expert, each expert's in token order."""

  order_A: jax.Array
  counts_E: jax.Array
  starts_E: jax.Array  # of the experts in `order_A`
  ranks_A: jax.Array  # of each assignment among those of its expert


def rank(experts_A: jax.Array, num_experts: int) -> Ranking:
  """Sorts assignments by expert. Those to expert E and above come last.

  A token's rank depends on earlier tokens only.
  """
  A = len(experts_A)
  if (num_experts + 1) * A >= 2**31:
    raise UsageError(
      f'model.ffn: {A} assignments to {num_experts} experts are too many to '
      'sort at once; give fewer rows at a time'
    )
  # One number each, since XLA sorts pairs much slower.
  index_A = jnp.arange(A, dtype=jnp.int32)
  keys_A = jnp.sort(jnp.minimum(experts_A, num_experts) * A + index_A)
  order_A, sorted_A = keys_A % A, keys_A // A
  chosen_AE = experts_A[:, None] == jnp.arange(num_experts)[None]
  counts_E = jnp.sum(chosen_AE, axis=0, dtype=jnp.int32)
  starts_E = jnp.cumsum(counts_E) - counts_E
  ranks_A = index_A - starts_E.at[sorted_A].get(mode='clip')
  ranks_A = (
    jnp.zeros_like(ranks_A).at[order_A].set(ranks_A, unique_indices=True)
  )
  return Ranking(order_A, counts_E, starts_E, ranks_A)


class Slots(NamedTuple):
  """A place for each assignment that is kept, and back."""

  slots_A: jax.Array  # S: dropped
  sources_S: jax.Array  # the assignment in a slot; A: empty


def place(
  ranking: Ranking,
  experts_A: jax.Array,
  owners_S: jax.Array,
  bases_E: jax.Array,
  size: int | None = None,
) -> Slots:
  """Gives the first assignments of each expert the slots from its base on.

  Args:
    ranking: of `experts_A`.
    experts_A: E and above have no slots.
    owners_S: the expert of each slot.
    bases_E: the first slot of each expert.
    size: how many slots an expert has; None: enough.
  """
  A, E, S = len(experts_A), len(bases_E), len(owners_S)
  within_S = jnp.arange(S, dtype=jnp.int32) - bases_E[owners_S]
  sources_S = ranking.order_A.at[ranking.starts_E[owners_S] + within_S].get(
    mode='clip'
  )
  sources_S = jnp.where(within_S < ranking.counts_E[owners_S], sources_S, A)
  kept_A = experts_A < E
  if size is not None:
    kept_A &= ranking.ranks_A < size
  slots_A = bases_E.at[experts_A].get(mode='clip') + ranking.ranks_A
  return Slots(jnp.where(kept_A, slots_A, S), sources_S)


@jax.custom_vjp
def move(x_ND: jax.Array, from_Q: jax.Array, to_NJ: jax.Array) -> jax.Array:
  """y[q] = x[from_Q[q]], and zero where that is out of range.

  Args:
    x_ND: rows.
    from_Q: the row for each of Q results.
    to_NJ: the inverse: up to J results that each row is moved to; Q: none.
      With it the gradient gathers too; TPUs scatter slowly.
  """
  del to_NJ
  return x_ND.at[from_Q].get(mode='fill', fill_value=0)


def _move(x_ND, from_Q, to_NJ):
  return move(x_ND, from_Q, to_NJ), to_NJ


def _move_gradient(to_NJ, dy_QD):
  picked: Any = dy_QD.at[to_NJ].get(mode='fill', fill_value=0)
  return jnp.sum(picked, axis=1), None, None


move.defvjp(_move, _move_gradient)


def gather(x_ND: jax.Array, slots: Slots, top_k: int) -> jax.Array:
  """The tokens in their slots: [T, D] to [S, D], zero where one is empty."""
  to_NJ = slots.slots_A.reshape(-1, top_k)
  return move(x_ND, slots.sources_S // top_k, to_NJ)


def combine(y_SD: jax.Array, slots: Slots, gates_NJ: jax.Array) -> jax.Array:
  """sum_j gate_j y_j: [S, D] to float32 [T, D]; a dropped choice adds zero."""
  picked_AD: Any = move(y_SD, slots.slots_A, slots.sources_S[:, None])
  picked_NJD = picked_AD.reshape(*gates_NJ.shape, -1)
  return jnp.sum(gates_NJ[..., None] * picked_NJD, axis=-2)
