# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A student of a teacher that is not there: its outputs come with the batch.

  L = soft * mean of T^2 KL(teacher || student) over k tokens and the rest
    + hard * the loss of the text itself

See `soft_targets.top_divergence` for the KL, and `distilled` for the loss with
a teacher at hand. Held-out text has no outputs: there the loss is `hard` times
that of the text alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores, soft_targets
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Means,
  Needs,
  Objective,
  Params,
  Stored,
  Text,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.spec import UsageError


def taught(
  declared: Declared,
  needs: Needs,
  stored: Stored,
  *,
  soft: float,
  hard: float,
) -> Declared:
  """See `distilled`, whose arguments these are.

  Args:
    declared: the text's own loss.
    needs: of the student.
    stored: the teacher's outputs.
    soft: weight of the KL.
    hard: of the text's loss.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    if stored.top_k > model.vocab_size:
      raise UsageError(
        f'objective.name: top_k={stored.top_k}: the model scores '
        f'{model.vocab_size} tokens; give no more'
      )
    plain = declared(model, tokenizer)
    assert plain.text is not None, 'see distilled.TEXTS'
    student = _Student(model, plain.balance, plain.text, stored, soft, hard)
    return plain._replace(
      loss=student.loss, balance=student.balance, every_token=False, text=None
    )

  return Declared(needs._replace(stored=stored), build)


class _Student(NamedTuple):
  """The rest is as in `taught`."""

  model: Transformer
  plain_balance: Callable[[Batch], Batch] | None
  text: Text
  stored: Stored
  soft: float
  hard: float

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    hidden, routers = self.text.states(params, batch, key)
    found = self.text.loss(params, hidden, batch, key is None)
    metrics: dict[str, Mean | Means] = {
      **(found.metrics or {}),
      'objective/hard_loss': found.means,
    }
    found = found.times(self.hard)
    if key is not None:
      weights, T = self._weights(batch), self.stored.temperature
      if self.stored.places == 'chosen':
        hidden = self.text.chosen(hidden, batch)
      summed = T**2 * soft_targets.top_divergence(
        scores.of_states(self.model, params, hidden),
        *(batch['teacher_ids'], batch['teacher_log_probs'], weights, T),
      )
      metrics['objective/soft_loss'] = Mean(summed, jnp.sum(weights))
      added = self.soft * jnp.max(batch['soft_factor']) * summed
      found = found._replace(sum=found.sum + added)
    found = found._replace(metrics=metrics)
    return add_routers(found, routers, training=key is not None)

  def balance(self, batch: Batch) -> Batch:
    """See `distilled`: each loss is a mean of the whole batch."""
    if self.plain_balance:
      batch = self.plain_balance(batch)
    counted = jnp.sum(self.text.counted(batch))
    share = counted / jnp.maximum(jnp.sum(self._weights(batch)), 1)
    rows = jnp.ones(len(batch['inputs']), jnp.float32)
    return {**batch, 'soft_factor': rows * share}

  def _weights(self, batch: Batch) -> jax.Array:
    chosen = self.stored.places == 'chosen'
    return (self.text.counted if chosen else self.text.real)(batch)
