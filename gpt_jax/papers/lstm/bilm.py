# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The bidirectional language model of ELMo (Peters et al., 2018, section 3.1).

  L = - 1/2 sum_k log p(t_k | t_1 ... t_k-1) + log p(t_k | t_k+1 ... t_N)

Both directions share the vectors of words and the softmax; their LSTMs are
separate: `lstm(directions='separate')`. A row of n tokens and the token before
it have n pairs of neighbours; in each the first predicts the second, and the
second the first.

In training the softmax is over the target and a sample of words (Jean et al.,
2015), each with its logit - log(expected count in the sample). Its loss is
lower than that of the whole vocabulary, over which models are evaluated.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.embed import look_up
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.cross_entropy import NEVER, Scores, token_loss
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.core.ranges import Count, Whole
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError


@dataclass(frozen=True)
class BiLm(Objective):
  """Both directions of language modelling with separate LSTMs (ELMo).

  Attributes:
    segment: tokens after which back-propagation through time is cut, in each
      direction; the state is carried on (the released code: 20).
    negatives: words of the sample of a step, all different, log-uniform by
      frequency (the released code: 8,192); 0: the whole vocabulary.
  """

  segment: Count = 20
  negatives: Whole = 8192
  kinds = ('forward', 'backward')

  @property
  def needs(self) -> Needs:
    """A model of two directions."""
    return Needs(attention='separate', rows=('stream',), candidates=self.negatives)

  def check(self) -> None:
    """Rejects models whose directions read each other, or one softmax."""
    model, choices = self.model, ModelChoices.of(self.model)
    if not choices.separate:
      raise UsageError(
        f'model.attention={model.attention!r}: objective.name=bilm trains '
        'LSTMs of two directions; take '
        "\"lstm(..., directions='separate')\" with model.block='plain'"
      )
    forward.check_scores(model, 'bilm')
    if self.negatives >= model.vocab_size:
      raise UsageError(
        f'objective.name: bilm(negatives={self.negatives}): must be fewer than '
        f'model.vocab_size={model.vocab_size}; give 0 for the whole vocabulary'
      )
    if choices.input.reader and self.tokenizer is not None:
      forward.read(self.model, self.tokenizer, np.zeros((1, 1), np.int32))

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Each row with the token before it; nothing is random.

    `inputs` are `tokens`, or the characters of each. `weights` are of pairs of
    neighbours.
    """
    del keys
    assert rows.before is not None, 'see Needs.rows'
    tokens_BL = np.column_stack([rows.before, rows.tokens])
    place_L = np.arange(tokens_BL.shape[1])
    cuts_BL = np.broadcast_to(place_L % self.segment == 0, tokens_BL.shape)
    return {
      'inputs': forward.read(self.model, self.tokenizer, tokens_BL),
      'tokens': tokens_BL,
      'mask': np.column_stack([rows.real[:, :1], rows.real]),
      'cuts': np.ascontiguousarray(cuts_BL),
      'weights': rows.real.astype(np.float32),
    }

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The mean of both directions'; with a key over a sample of words."""
    hidden_BLD, _ = forward.states(self.model, params, batch, key, cuts=batch['cuts'])
    ahead_BLD, back_BLD = jnp.split(hidden_BLD, 2, axis=-1)
    tokens_BL, weights_BL = batch['tokens'], batch['weights']
    sampled = key is not None and self.negatives > 0
    sums, means = [], {}
    for i, (name, states_BLD, targets_BL) in enumerate(
      (
        ('forward', ahead_BLD[:, :-1], tokens_BL[:, 1:]),
        ('backward', back_BLD[:, 1:], tokens_BL[:, :-1]),
      )
    ):
      scores = forward.scores(self.model, params, states_BLD)
      if sampled:
        assert key is not None
        nll_BL = sampled_nll(scores, targets_BL, jax.random.fold_in(key, i + 1), self.negatives)
        total = jnp.sum(nll_BL * weights_BL)
      else:
        total = token_loss(scores, targets_BL, weights_BL).sum
      sums.append(total)
      measure = 'sampled_loss' if sampled else 'loss'
      mean = Mean(total, jnp.sum(weights_BL))
      means[f'objective/{name}_{measure}'] = mean
    return Loss((sums[0] + sums[1]) / 2, jnp.sum(weights_BL), metrics=means)


# Sampled softmax.
#
# Words are sorted by frequency, and word k is drawn with the probability
# log((k + 2) / (k + 1)) / log(V + 1), without putting any back. In n draws with
# replacement of which N are different, 1 - (1 - p)^n is the expected count of
# a word; n is such that they add up to N. (TensorFlow's sampler takes the n of
# the sample.)


def sampled_nll(scores: Scores, targets_BL: jax.Array, key: jax.Array, number: int) -> jax.Array:
  """-log softmax of each target among a sample of words, float32 [B, L].

  All targets have the same sample; where it holds the target itself, that
  counts once.

  Args:
    key: draws the sample.
    number: words in it.
  """
  hidden_BLD, table_VD, softcap = scores
  V, dtype = len(table_VD), table_VD.dtype
  log_probs_V = _log_probs(jnp.arange(V), V)
  noise_V = jax.random.gumbel(key, (V,))
  drawn: Any = jax.lax.top_k(log_probs_V + noise_V, number)
  ids_N = drawn[1]

  def corrected(logits: jax.Array, ids: jax.Array) -> jax.Array:
    if softcap:
      logits = softcap * jnp.tanh(logits / softcap)
    return logits - log_expected(ids, V, number)

  rows_BLD = look_up(table_VD, targets_BL, dtype)
  true_BL = jnp.einsum('BLD,BLD->BL', hidden_BLD, rows_BLD, preferred_element_type=jnp.float32)
  true_BL = corrected(true_BL, targets_BL)
  rows_1ND: Any = look_up(table_VD, ids_N[None], dtype)
  logits_BLN = jnp.einsum(
    'BLD,ND->BLN', hidden_BLD, rows_1ND[0], preferred_element_type=jnp.float32
  )
  logits_BLN = corrected(logits_BLN, ids_N[None, None])
  hits_BLN = targets_BL[..., None] == ids_N[None, None]
  logits_BLN = jnp.where(hits_BLN, NEVER, logits_BLN)
  all_BLN = jnp.concatenate([true_BL[..., None], logits_BLN], axis=-1)
  return jax.nn.logsumexp(all_BLN, axis=-1) - true_BL


def log_expected(ids: jax.Array, vocab_size: int, number: int) -> jax.Array:
  """The log of the expected count of words in a sample, float32."""
  probs = jnp.exp(_log_probs(ids, vocab_size))
  tries = num_tries(vocab_size, number)
  return jnp.log(-jnp.expm1(tries * jnp.log1p(-probs)))


def _log_probs(ids: jax.Array, vocab_size: int) -> jax.Array:
  """The log-probability of words in one draw."""
  ids = ids.astype(jnp.float32)
  return jnp.log(jnp.log1p(1 / (ids + 1)) / math.log(vocab_size + 1))


@functools.lru_cache(16)
def num_tries(vocab_size: int, number: int) -> float:
  """Draws with replacement that are expected to find `number` words."""
  ids = np.arange(vocab_size, dtype=np.float64)
  log_missed = np.log1p(-np.log1p(1 / (ids + 1)) / math.log(vocab_size + 1))
  low, high = 0.0, float(number)

  def found(tries: float) -> float:
    return float(-np.expm1(tries * log_missed).sum())

  while found(high) < number:
    low, high = high, 2 * high
  while high - low > 1e-9 * high:
    middle = (low + high) / 2
    low, high = (middle, high) if found(middle) < number else (low, middle)
  return high
