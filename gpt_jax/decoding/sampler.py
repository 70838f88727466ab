# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws the next token of each row from its scores, under constraints."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.decoding.constraints import Constraints
from gpt_jax.decoding.settings import Sampler

# Drawn if the scores of a row are NaN or infinite.
NO_TOKEN = -1
# Logits of which the largest is found at once; see `largest`.
_BLOCK = 128


class Samplers(NamedTuple):
  """The samplers of a batch as arrays, with the seeds."""

  temperature_B: np.ndarray
  top_k_B: np.ndarray
  top_p_B: np.ndarray
  min_p_B: np.ndarray
  repetition_penalty_B: np.ndarray
  seed_B: np.ndarray


def stack(samplers: Sequence[Sampler], seeds: Sequence[int]) -> Samplers:
  """The samplers of rows as arrays."""
  temperature, top_k, top_p, min_p, penalty = zip(*samplers, strict=True)
  return Samplers(
    np.array(temperature, np.float32),
    np.array(top_k, np.int32),
    np.array(top_p, np.float32),
    np.array(min_p, np.float32),
    np.array(penalty, np.float32),
    np.array([seed % 2**32 for seed in seeds], np.uint32),
  )


def seeds_of(seed: int, num_rows: int) -> list[int]:
  """Seeds for rows that share one; the first row keeps it."""
  others = np.random.SeedSequence(seed).generate_state(num_rows - 1)
  return [seed, *others.tolist()]


def suppress(logits: jax.Array, never_V: Any) -> jax.Array:
  """-inf for the ids of `constraints.never_drawn`: logits [..., V]."""
  return logits if never_V is None else jnp.where(never_V, -jnp.inf, logits)


def penalize(logits_BV: jax.Array, seen_BV: jax.Array, samplers: Samplers) -> jax.Array:
  """Applies the repetition penalty to seen tokens."""
  penalty_B1 = jnp.asarray(samplers.repetition_penalty_B)[:, None]
  penalized_BV = jnp.where(logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1)
  return jnp.where(seen_BV, penalized_BV, logits_BV)


# What no row of a batch uses is skipped as a program runs (`jax.lax.cond`): a
# program for each mixture of settings would be compiled while a server's
# clients wait.


def draw(logits_BV: jax.Array, samplers: Samplers, index_B: jax.Array) -> jax.Array:
  """Draws a token of each row: logits [B, V] to ids [B].

  A draw depends on the row's logits, sampler, seed and number of earlier
  draws. It is `NO_TOKEN` in a `broken` row.
  """
  drawn_B = jax.lax.cond(
    jnp.any(_is_drawn(samplers)),
    lambda: categorical(allowed(logits_BV, samplers), samplers, index_B),
    lambda: largest(logits_BV),
  )
  return jnp.where(broken(logits_BV), NO_TOKEN, drawn_B)


def largest(logits_BV: jax.Array) -> jax.Array:
  """`jnp.argmax` of each row, in two levels: ids [B].

  First the largest of each block of logits, which a CPU finds with vector
  instructions, then the place of the largest block, and the place in it. Of
  several that are equal it is the first one; rows with NaN are `broken`.
  """
  B, V = logits_BV.shape
  blocks_BXC = jnp.pad(logits_BV, ((0, 0), (0, -V % _BLOCK)), constant_values=-jnp.inf).reshape(
    B, -1, _BLOCK
  )
  block_B = jnp.argmax(jnp.max(blocks_BXC, axis=-1), axis=-1)
  found_BC = jnp.take_along_axis(blocks_BXC, block_B[:, None, None], axis=1)
  place_B = jnp.argmax(found_BC[:, 0], axis=-1)
  return (block_B * _BLOCK + place_B).astype(jnp.int32)


def broken(logits_XV: jax.Array) -> jax.Array:
  """Whether scores [..., V] hold NaN or +inf: bool [...].

  `jnp.max` does not tell: on CPUs it loses a NaN among many scores.
  """
  wrong_XV = jnp.isnan(logits_XV) | (logits_XV == jnp.inf)
  return jnp.any(wrong_XV, axis=-1)


def _is_drawn(samplers: Samplers) -> jax.Array:
  """Which rows are not greedy."""
  return jnp.asarray(samplers.temperature_B) != 0


def allowed(logits_BV: jax.Array, samplers: Samplers) -> jax.Array:
  """The logits, -inf for tokens outside top_k, top_p and min_p.

  A greedy row keeps its most probable token alone.
  """
  V = logits_BV.shape[1]
  best_BV = largest(logits_BV)[:, None] == jnp.arange(V)[None]
  greedy_B = ~_is_drawn(samplers)
  temperature_B = jnp.where(greedy_B, 1, samplers.temperature_B)
  logits_BV = _kept(logits_BV / temperature_B[:, None], samplers)
  return jnp.where(greedy_B[:, None] & ~best_BV, -jnp.inf, logits_BV)


def categorical(logits_BV: jax.Array, samplers: Samplers, index_B: jax.Array) -> jax.Array:
  """Draws in proportion to exp(logits): ids [B]."""
  draws = jax.vmap(jax.random.categorical)
  return draws(keys(samplers, index_B), logits_BV).astype(jnp.int32)


def keys(samplers: Samplers, index_B: jax.Array) -> jax.Array:
  """The keys of each row's draw number `index_B`."""

  def make(seed, index):
    return jax.random.fold_in(jax.random.key(seed), index)

  return jax.vmap(make)(samplers.seed_B, index_B)


def _kept(logits_BV: jax.Array, samplers: Samplers) -> jax.Array:
  """`allowed` without greedy rows.

  The smallest logit to keep is found by bisection over all float32 numbers,
  which is exact and needs no sort.
  """
  V, drawn_B = logits_BV.shape[1], _is_drawn(samplers)
  top_k_B, top_p_B = map(jnp.asarray, (samplers.top_k_B, samplers.top_p_B))
  order_BV = _order(logits_BV)
  most_B1 = jnp.max(logits_BV, axis=1, keepdims=True)

  def of_top_k(logits_BV: jax.Array) -> jax.Array:
    enough_B = jnp.where(top_k_B > 0, jnp.minimum(top_k_B, V), V)
    least_B = _bisect(order_BV, jnp.ones_like(order_BV, jnp.int32), enough_B)
    return jnp.where(order_BV >= least_B[:, None], logits_BV, -jnp.inf)

  def of_top_p(logits_BV: jax.Array) -> jax.Array:
    probs_BV = jnp.exp(logits_BV - most_B1)
    enough_B = top_p_B * jnp.sum(probs_BV, axis=1)
    least_B = _bisect(order_BV, probs_BV, enough_B)
    kept_BV = (order_BV >= least_B[:, None]) | (top_p_B[:, None] >= 1)
    return jnp.where(kept_BV, logits_BV, -jnp.inf)

  for uses_B, keep in (((top_k_B > 0) & drawn_B, of_top_k), ((top_p_B < 1) & drawn_B, of_top_p)):
    logits_BV = jax.lax.cond(jnp.any(uses_B), keep, lambda x: x, logits_BV)
  floor_B1 = most_B1 + jnp.log(samplers.min_p_B)[:, None]
  return jnp.where(logits_BV < floor_B1, -jnp.inf, logits_BV)


def _order(x: jax.Array) -> jax.Array:
  """Maps float32 to uint32 numbers in the same order."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  sign = jnp.uint32(1 << 31)
  return jnp.where(bits >= sign, ~bits, bits | sign)


def _bisect(order_BV: jax.Array, amount_BV: jax.Array, enough_B: jax.Array) -> jax.Array:
  """The largest threshold at or above which the amounts add up to enough, [B].

  Between the smallest and the largest number of the row.
  """

  def halve(_, bounds):
    low_B, high_B = bounds
    middle_B = high_B - (high_B - low_B) // 2
    kept_BV = order_BV >= middle_B[:, None]
    sum_B = jnp.sum(jnp.where(kept_BV, amount_BV, 0), axis=1)
    holds_B = sum_B >= enough_B
    return (jnp.where(holds_B, middle_B, low_B), jnp.where(holds_B, high_B, middle_B - 1))

  # With `low` it always holds, and the bounds meet after as many halves as
  # the numbers have bits.
  bounds = jnp.min(order_BV, axis=1), jnp.max(order_BV, axis=1)
  low_B, _ = jax.lax.fori_loop(0, 32, halve, bounds)
  return low_B


# Constraints on the next token that depend on its position and the tokens
# before it; ids that never occur are `constraints.never_drawn`.
#
# The rules and their order are those of Hugging Face transformers 5. R rows of
# the model, T slots of their ids.


def constrain(
  scores_RV: jax.Array,
  constraints: Constraints,
  *,
  length_R: Any,
  start_R: Any,
  most_R: Any,
  ids_RT: jax.Array | None,
  source_R: Any,
) -> jax.Array:
  """The scores, -inf for tokens that may not come next.

  A forced token has the score 0, all others -inf.

  Args:
    scores_RV: logits, or log-probabilities.
    constraints: static.
    length_R: tokens so far, prompt included: the next token's position.
    start_R: tokens of the prompt.
    most_R: the most tokens of the answer.
    ids_RT: the tokens so far; None unless `constraints.of_text`.
    source_R: how many of the first tokens are exempt from no_repeat_ngram.
  """
  V = scores_RV.shape[1]
  new_R = length_R - start_R
  banned_RV = jnp.zeros((1, V), bool)
  if constraints.of_text:
    assert ids_RT is not None
    if constraints.sequences:
      banned_RV |= _completing(constraints.sequences, ids_RT, length_R, V)
    # A longer n-gram than any text occurs in none.
    if 0 < (size := constraints.no_repeat_ngram) <= ids_RT.shape[1]:
      banned_RV |= _repeating(ids_RT, source_R, length_R, size, V)
  if constraints.min_length or constraints.min_tokens:
    early_R = length_R < constraints.min_length
    early_R |= new_R < constraints.min_tokens
    is_stop_V = _among(constraints.stop_ids, V)
    banned_RV = banned_RV | (early_R[:, None] & is_stop_V[None])
  scores_RV = jnp.where(banned_RV, -jnp.inf, scores_RV)
  if constraints.first_id is not None:
    # A longer prompt has its first token already.
    forced_R = (new_R == 0) & (start_R == 1)
    scores_RV = _forced(scores_RV, forced_R, constraints.first_id)
  if constraints.last_id is not None:
    forced_R = new_R == most_R - 1
    scores_RV = _forced(scores_RV, forced_R, constraints.last_id)
  if constraints.never_first:
    after_R = (start_R == 1) & (constraints.first_id is not None)
    first_R = new_R == after_R
    never_V = _among(constraints.never_first, V)
    banned_RV = first_R[:, None] & never_V[None]
    scores_RV = jnp.where(banned_RV, -jnp.inf, scores_RV)
  return scores_RV


def _among(ids: tuple[int, ...], vocab_size: int) -> np.ndarray:
  """Which tokens are among ids, bool [V]; ids beyond the table are ignored."""
  found_V = np.zeros(vocab_size, bool)
  found_V[[i for i in ids if i < vocab_size]] = True
  return found_V


def _forced(scores_RV: jax.Array, forced_R: jax.Array, token: int):
  only_V = np.where(_among((token,), scores_RV.shape[1]), 0, -np.inf)
  only_V = only_V.astype(scores_RV.dtype)
  return jnp.where(forced_R[:, None], only_V[None], scores_RV)


# One array holds all runs, and loops go over their tokens: a program with code
# for each run, or each token of one, would take minutes to compile.


def _completing(
  runs: tuple[tuple[int, ...], ...], ids_RT: jax.Array, length_R: jax.Array, vocab_size: int
) -> jax.Array:
  """Tokens that would complete one of the N `runs`, bool [R, V]."""
  # Others are longer than any text.
  runs = tuple(run for run in runs if len(run) <= ids_RT.shape[1] + 1)
  if not runs:
    return jnp.zeros((1, vocab_size), bool)
  longest = max(map(len, runs))
  # Aligned at the end, with the last token in the first column.
  ids_NL = np.zeros((len(runs), longest), np.int32)
  for ids_L, run in zip(ids_NL, runs, strict=True):
    ids_L[: len(run)] = run[::-1]
  lengths_N = np.array([len(run) for run in runs])

  def compare(back: jax.Array, same_RN: jax.Array) -> jax.Array:
    token_N = jnp.asarray(ids_NL)[:, back]
    newest_R1 = _before(ids_RT, length_R, back)
    return same_RN & ((newest_R1 == token_N[None]) | (lengths_N[None] <= back))

  same_RN = length_R[:, None] >= lengths_N[None] - 1
  same_RN = jax.lax.fori_loop(1, longest, compare, same_RN)
  out_RV = jnp.zeros((len(ids_RT), vocab_size), bool)
  return out_RV.at[:, ids_NL[:, 0]].max(same_RN, mode='drop')


def _before(ids_RT: jax.Array, length_R: jax.Array, back: Any) -> jax.Array:
  """The token `back` positions before the next one, [R, 1]."""
  at_R1 = jnp.maximum(length_R - back, 0)[:, None]
  return jnp.take_along_axis(ids_RT, at_R1, axis=1)


def _repeating(
  ids_RT: jax.Array, source_R: Any, length_R: Any, size: int, vocab_size: int
) -> jax.Array:
  """Tokens that would complete a repeated n-gram of `size`, bool [R, V]."""
  R, T = ids_RT.shape
  places_T = jnp.arange(T)
  # Ends of n-grams whose first size - 1 tokens are the newest ones.
  same_RT = places_T[None] < length_R[:, None]
  same_RT &= places_T[None] >= source_R[:, None] + size - 1

  def compare(back: jax.Array, same_RT: jax.Array) -> jax.Array:
    newest_R1 = _before(ids_RT, length_R, back)
    return same_RT & (jnp.roll(ids_RT, back, axis=1) == newest_R1)

  same_RT = jax.lax.fori_loop(1, size, compare, same_RT)
  out_RV = jnp.zeros((R, vocab_size), bool)
  return out_RV.at[jnp.arange(R)[:, None], ids_RT].max(same_RT)
