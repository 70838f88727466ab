# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the next token is drawn from its scores, in each row by itself."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Sampler(NamedTuple):
  """How the next token of a row is drawn.

  Attributes:
    temperature: divides the logits; 0 takes the most probable token.
    top_k: only the k most probable tokens are drawn; 0 means all.
    top_p: only the fewest tokens whose probabilities reach p are drawn
      (Holtzman et al., 2020, section 3.1); of what top_k left.
    min_p: only tokens that are at least this many times as probable as the
      most probable one are drawn (Nguyen et al., 2024, section 3).
    repetition_penalty: divides the positive logits of the tokens that the
      prompt and its continuation hold, and multiplies the negative ones
      (Keskar et al., 2019, section 4.1; the signs as Hugging Face has them).
      1 changes nothing.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0


class Samplers(NamedTuple):
  """The samplers of the rows of a batch: fields of `Sampler`, and the seeds."""

  temperature_B: np.ndarray
  top_k_B: np.ndarray
  top_p_B: np.ndarray
  min_p_B: np.ndarray
  repetition_penalty_B: np.ndarray
  seed_B: np.ndarray


class Method(NamedTuple):
  """What a batch of samplers asks for at all, known when it is compiled.

  Attributes:
    greedy: each row takes the most probable token.
    num_best: so many of the best scores have to be sorted.
  """

  greedy: bool
  num_best: int


def stack(samplers: Sequence[Sampler], seeds: Sequence[int]) -> Samplers:
  """The arrays of some rows."""
  temperature, top_k, top_p, min_p, penalty = zip(*samplers, strict=True)
  return Samplers(
    np.array(temperature, np.float32),
    np.array(top_k, np.int32),
    np.array(top_p, np.float32),
    np.array(min_p, np.float32),
    np.array(penalty, np.float32),
    np.array([seed % 2**32 for seed in seeds], np.uint32),
  )


def method(samplers: Sequence[Sampler], vocab_size: int) -> Method:
  """Takes part of the vocabulary's sort where that is enough, in few sizes."""
  drawn = [s for s in samplers if s.temperature != 0]
  num_best = max((s.top_k for s in drawn), default=0)
  if any(s.top_p < 1 and not s.top_k for s in drawn):
    num_best = vocab_size
  if num_best:
    num_best = min(max(64, 1 << (num_best - 1).bit_length()), vocab_size)
  return Method(not drawn, num_best)


def seeds_of(seed: int, num_rows: int) -> list[int]:
  """Seeds for rows that were given one together: its own is the first."""
  others = np.random.SeedSequence(seed).generate_state(num_rows - 1)
  return [seed, *others.tolist()]


def penalize(
  logits_BV: jax.Array, seen_BV: jax.Array, samplers: Samplers
) -> jax.Array:
  """Applies the repetition penalty to the tokens that were seen."""
  penalty_B1 = jnp.asarray(samplers.repetition_penalty_B)[:, None]
  penalized_BV = jnp.where(
    logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1
  )
  return jnp.where(seen_BV, penalized_BV, logits_BV)


def draw(
  logits_BV: jax.Array, samplers: Samplers, index_B: jax.Array, how: Method
) -> jax.Array:
  """Draws a token for each row: logits [B, V] to ids [B].

  A draw depends on the row's logits, sampler and seed, and on its index among
  the row's draws.
  """
  best_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
  if how.greedy:
    return best_B
  greedy_B = jnp.asarray(samplers.temperature_B) == 0
  temperature_B = jnp.where(greedy_B, 1, samplers.temperature_B)
  logits_BV = logits_BV / temperature_B[:, None]
  logits_BV = jnp.where(
    logits_BV < _least(logits_BV, samplers, how)[:, None], -jnp.inf, logits_BV
  )

  def choose(logits_V, seed, index):
    key = jax.random.fold_in(jax.random.key(seed), index)
    return jax.random.categorical(key, logits_V)

  drawn_B = jax.vmap(choose)(logits_BV, samplers.seed_B, index_B)
  return jnp.where(greedy_B, best_B, drawn_B.astype(jnp.int32))


def _least(logits_BV: jax.Array, samplers: Samplers, how: Method) -> jax.Array:
  """The smallest logit of each row that may be drawn, [B]."""
  most_B = jnp.max(logits_BV, axis=-1)
  least_B = most_B + jnp.log(samplers.min_p_B)
  if not how.num_best:
    return least_B
  N, top_k_B = how.num_best, jnp.asarray(samplers.top_k_B)
  if logits_BV.shape[-1] > N:
    best_BN = jax.lax.top_k(logits_BV, N)[0]
  else:
    best_BN = jnp.sort(logits_BV, axis=-1, descending=True)
  k_B1 = jnp.where(top_k_B > 0, top_k_B, N)[:, None]
  kept_BN = jnp.arange(N)[None] < k_B1
  probs_BN = jax.nn.softmax(jnp.where(kept_BN, best_BN, -jnp.inf), axis=-1)
  # Kept as long as the more probable tokens have not reached p; the most
  # probable one always.
  before_BN = jnp.cumsum(probs_BN, axis=-1) - probs_BN
  top_p_B1 = jnp.asarray(samplers.top_p_B)[:, None]
  kept_BN &= (before_BN < top_p_B1) | (top_p_B1 >= 1)
  kept_BN = kept_BN.at[:, 0].set(True)
  best_B = jnp.min(jnp.where(kept_BN, best_BN, jnp.inf), axis=-1)
  limited_B = (top_k_B > 0) | (samplers.top_p_B < 1)
  return jnp.where(limited_B, jnp.maximum(least_B, best_B), least_B)
