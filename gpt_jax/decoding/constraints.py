# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Forbids tokens where the scores of the next one are taken.

What never comes is `sampler.never_drawn`; this is what depends on the place and
the tokens before it. The rules and their order are those of Hugging Face
transformers 5. R rows of the model, T slots of their ids.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.data.tokenizers.constraints import Constraints
from gpt_jax.data.tokenizers.tokenizer import Tokenizer


def of(tokenizer: Tokenizer) -> Constraints:
  """What the files of a tokenizer's import say."""
  special = tokenizer.special
  return special.constraints._replace(stop_ids=tuple(sorted(special.stop_ids)))


def apply(
  scores_RV: jax.Array,
  constraints: Constraints,
  *,
  length_R: Any,
  start_R: Any,
  most_R: Any,
  ids_RT: jax.Array | None,
  source_R: Any,
) -> jax.Array:
  """The scores with -inf for tokens that may not come next.

  A forced token has the score 0, and all others -inf.

  Args:
    scores_RV: logits, or log-probabilities.
    constraints: known when a program is compiled.
    length_R: tokens so far, prompt included: where the next one stands.
    start_R: tokens of the prompt.
    most_R: tokens of the answer at most.
    ids_RT: the tokens so far; None unless `constraints.of_text`.
    source_R: how many of them, the first, do not count as repeated.
  """
  V = scores_RV.shape[1]
  new_R = length_R - start_R
  banned_RV = jnp.zeros((1, V), bool)
  if constraints.of_text:
    assert ids_RT is not None
    for run in constraints.sequences:
      ends_R = _ends_with(ids_RT, length_R, run[:-1])
      # transformers looks only at texts at least as long as the whole run.
      ends_R &= length_R >= len(run)
      is_last_V = _among(run[-1:], V)
      banned_RV = banned_RV | (ends_R[:, None] & is_last_V[None])
    if size := constraints.no_repeat_ngram:
      banned_RV = banned_RV | _repeating(ids_RT, source_R, length_R, size, V)
  if constraints.min_length or constraints.min_tokens:
    early_R = length_R < constraints.min_length
    early_R |= new_R < constraints.min_tokens
    is_stop_V = _among(constraints.stop_ids, V)
    banned_RV = banned_RV | (early_R[:, None] & is_stop_V[None])
  scores_RV = jnp.where(banned_RV, -jnp.inf, scores_RV)
  if constraints.first_id is not None:
    # Of a longer prompt the first token is there.
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
  """Bool [V]; a tokenizer may have more tokens than the table."""
  found_V = np.zeros(vocab_size, bool)
  found_V[[i for i in ids if i < vocab_size]] = True
  return found_V


def _forced(scores_RV: jax.Array, forced_R: jax.Array, token: int):
  only_V = np.where(_among((token,), scores_RV.shape[1]), 0, -np.inf)
  only_V = only_V.astype(scores_RV.dtype)
  return jnp.where(forced_R[:, None], only_V[None], scores_RV)


def _ends_with(
  ids_RT: jax.Array, length_R: jax.Array, run: tuple[int, ...]
) -> jax.Array:
  """Whether the tokens so far end with a run, bool [R]."""
  same_R = length_R >= len(run)
  for back, token in enumerate(reversed(run), start=1):
    same_R &= _before(ids_RT, length_R, back)[:, 0] == token
  return same_R


def _before(ids_RT: jax.Array, length_R: jax.Array, back: int) -> jax.Array:
  """The token `back` places before the next one, [R, 1]."""
  at_R1 = jnp.maximum(length_R - back, 0)[:, None]
  return jnp.take_along_axis(ids_RT, at_R1, axis=1)


def _repeating(
  ids_RT: jax.Array,
  source_R: Any,
  length_R: Any,
  size: int,
  vocab_size: int,
) -> jax.Array:
  """Tokens that would end a run of `size` a second time, bool [R, V]."""
  R, T = ids_RT.shape
  places_T = jnp.arange(T)
  # Where a run ends that is as the newest would be, but for its last.
  same_RT = places_T[None] < length_R[:, None]
  same_RT &= places_T[None] >= source_R[:, None] + size - 1
  for back in range(1, size):
    newest_R1 = _before(ids_RT, length_R, back)
    same_RT &= jnp.roll(ids_RT, back, axis=1) == newest_R1
  out_RV = jnp.zeros((R, vocab_size), bool)
  return out_RV.at[jnp.arange(R)[:, None], ids_RT].max(same_RT)
