# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of tokens, as the model gives them.

The log-softmax of the model's own logits over its whole table: before
temperature, top_k, top_p, min_p and penalties, and before tokens are ruled out.
They are those of a forward pass over the same text, whatever the sampler.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Alternatives that a program returns for each token: OpenAI's most for chats.
NUM_TOP = 20


class TokenLogprobs(NamedTuple):
  """The log-probability of a token, and the most probable tokens in its place.

  Attributes:
    logprob: None for the first token of a prompt, which nothing precedes.
    top: ids and their log-probabilities, the most probable first.
  """

  id: int
  logprob: float | None
  top: tuple[tuple[int, float], ...] = ()


class Logprobs(NamedTuple):
  """The log-probabilities of an array of tokens.

  Attributes:
    own_X: of the tokens themselves.
    top_XK: the K largest at each place, in order.
    top_ids_XK: whose they are.
  """

  own_X: Any
  top_XK: Any
  top_ids_XK: Any

  def at(self, index: Any) -> 'Logprobs':
    """Those of some of the tokens."""
    return Logprobs(*(x[index] for x in self))

  def token(self, id: int, num_top: int) -> TokenLogprobs:
    """Of a single token, with `num_top` alternatives; the arrays are NumPy."""
    top = zip(self.top_ids_XK.tolist(), self.top_XK.tolist(), strict=True)
    return TokenLogprobs(id, float(self.own_X), tuple(top)[:num_top])


def score(logits_XV: jax.Array, ids_X: jax.Array) -> Logprobs:
  """Log-probabilities of tokens, from the logits at their places."""
  logits_XV = logits_XV.astype(jnp.float32)
  total_X = jax.nn.logsumexp(logits_XV, axis=-1)
  # `NO_TOKEN` is negative.
  index_X1 = jnp.maximum(ids_X, 0)[..., None]
  own_X = jnp.take_along_axis(logits_XV, index_X1, axis=-1)[..., 0]
  num_top = min(NUM_TOP, logits_XV.shape[-1])
  top_XK, top_ids_XK = jax.lax.top_k(logits_XV, num_top)
  return Logprobs(own_X - total_X, top_XK - total_X[..., None], top_ids_XK)


@functools.partial(jax.jit, static_argnames='model')
def score_block(params, hidden_BLD, next_BL, *, model) -> Logprobs:
  """Scores `next_BL` after each place of a block of prompts, row by row.

  The logits of all rows together would be large.
  """

  def score_row(row):
    hidden_LD, next_L = row
    logits_LV = model.apply({'params': params}, hidden_LD, method='logits')
    return score(logits_LV, next_L)

  return jax.lax.map(score_row, (hidden_BLD, next_BL))
