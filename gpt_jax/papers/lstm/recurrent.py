# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Language modelling with LSTMs: segments, and penalties of activations.

Back-propagation through time is truncated: a row is cut into segments of drawn
lengths, and no gradient passes from one to the state at the end of the one
before, which is carried on. A row begins with a state of 0, so a step depends
on its rows and the seed alone.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.stack import len_then_name
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.objectives.loss import Batch, Loss, Params, share
from gpt_jax.core.ranges import Count, Probability, Weight
from gpt_jax.core.rows.rows import CUTTING, Keys, Rows
from gpt_jax.core.spec import UsageError

# Merity et al. (2017), section 5: the standard deviation of a segment's length;
# the shortest is from their released code.
DEVIATION, SHORTEST = 5, 5


@dataclass(frozen=True)
class Recurrent(Causal):
  """Next-token prediction in segments (Merity et al. 2017: AWD-LSTM).

  The loss is the mean over all tokens, so that a segment weighs as much as it
  is long; the paper scales the learning rate to the same effect (section 4.1).

  Attributes:
    segment: tokens of a segment; each length is drawn from N(segment, 5), at
      least 5 (section 4.1).
    full_share: fraction of the segments that are so long; the others are half
      as long.
    alpha: factor of the mean square of the last layer's outputs after dropout
      (section 4.7, AR); in training, not reported.
    beta: factor of the mean square of the difference between its outputs before
      dropout at neighbouring tokens of a segment (TAR), likewise.
    direction: backward: rows are read from right to left, and each token is
      predicted from those after it (Howard and Ruder 2018, section 3.3).
  """

  segment: Count = 70
  full_share: Probability = 0.95
  alpha: Weight = 2.0
  beta: Weight = 1.0
  direction: Literal['forward', 'backward'] = 'forward'

  @property
  def needs(self) -> Needs:
    """A decoder; read backward, rows of a stream, which have no documents."""
    if self.direction == 'forward':
      return super().needs
    return Needs(rows=('stream',), backward=True)

  def check(self) -> None:
    """Rejects models without recurrent layers, and segments beyond a row."""
    super().check()
    if not ModelChoices.of(self.model).recurrent:
      raise UsageError(
        f'model.attention={self.model.attention!r}: objective.name=recurrent '
        "trains LSTMs; take 'lstm(...)' with model.block='plain'"
      )
    if self.segment > self.model.context_length:
      raise UsageError(
        f'objective.name: recurrent(segment={self.segment}): a row, '
        f'model.context_length={self.model.context_length}, is shorter than a '
        'segment; give a shorter one, or longer rows'
      )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """The batch of `causal`, and `cuts`: the first tokens of segments."""
    batch = super().make_batch(rows, keys)
    if self.direction == 'backward':
      batch |= {
        'inputs': _reversed(batch['targets'], rows),
        'targets': _reversed(batch['inputs'], rows),
      }
    cuts = np.zeros(rows.tokens.shape, bool)
    for cuts_L, generator in zip(cuts, keys.generators(CUTTING), strict=True):
      place = 0
      while place < len(cuts_L):
        whole = generator.random() < self.full_share
        mean = self.segment if whole else self.segment / 2
        place += max(SHORTEST, int(generator.normal(mean, DEVIATION)))
        cuts_L[place : place + 1] = True
    return {**batch, 'cuts': cuts}

  def weighed(self, batch: Batch) -> Batch:
    """Adds `pairs` [B, L - 1], the weights of pairs of neighbours."""
    pairs_BL = _pairs(batch)
    of_pair = share(jnp.sum(batch['weights']), jnp.sum(pairs_BL))
    return {**batch, 'pairs': pairs_BL * of_pair}

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The cross-entropy; in training with both penalties."""
    if key is None:
      return super().loss(params, batch, None)
    out, sown = forward.apply(
      self.model, params, self.model.row(batch, cuts=batch['cuts']), key, sow=('intermediates',)
    )
    found = self.loss_of_states(params, out.hidden_BLD, batch, evaluating=False)
    raw_BLD = last_raw(sown['intermediates']).astype(jnp.float32)
    squares_BL = jnp.mean(jnp.square(out.hidden_BLD.astype(jnp.float32)), -1)
    steps_BL = jnp.mean(jnp.square(raw_BLD[:, 1:] - raw_BLD[:, :-1]), -1)
    penalty = self.alpha * jnp.sum(squares_BL * batch['weights'])
    penalty += self.beta * jnp.sum(steps_BL * batch['pairs'])
    return found._replace(sum=found.sum + penalty, penalty=found.penalty + penalty)


def _pairs(batch: Batch) -> jax.Array:
  """1 for each token and the next one of its segment; float32 [B, L - 1]."""
  real_BL = batch['weights'] > 0
  pairs_BL = real_BL[:, 1:] & real_BL[:, :-1] & ~batch['cuts'][:, 1:]
  if 'segments' in batch:  # of documents, each of which starts anew
    pairs_BL &= batch['segments'][:, 1:] == batch['segments'][:, :-1]
  return pairs_BL.astype(jnp.float32)


def _reversed(tokens_BL: np.ndarray, rows: Rows) -> np.ndarray:
  """Each row from right to left; padding stays at its end."""
  places_BL = np.arange(tokens_BL.shape[1])[None]
  last_B1 = rows.real.sum(axis=1, keepdims=True) - 1
  order_BL = np.where(places_BL <= last_B1, last_B1 - places_BL, places_BL)
  return np.take_along_axis(tokens_BL, order_BL, axis=1)


def last_raw(intermediates: Any) -> jax.Array:
  """The output of the last recurrent layer before dropout, [B, L, D]."""
  blocks = intermediates['decoder']['periods']
  names = [name for name in blocks if name.startswith('block_')]
  return blocks[max(names, key=len_then_name)]['raw'][0][-1]
