# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prediction of tokens in a random order (XLNet, Yang et al. 2019).

  L = mean over the chosen tokens z_t, t > c, of -log p(x_{z_t} | x_{z_<t})
    p = softmax(e(x)^T g_theta(x_{z_<t}, z_t))            (equations 3, 4 and 5)

Only the last tokens of an order z are predicted (section 2.3), a fixed number
per row, and the second stream g has only these. The order is a mask: tokens and
their positions are unchanged. If a row has several segments, each has the
content stream of the earlier ones in its memory (section 2.4).
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.activations import Activations
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.masks import Order
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Scored
from gpt_jax.core.objectives.loss import Batch, LayerStats, Loss, Params
from gpt_jax.core.ranges import Count
from gpt_jax.core.rows.rows import MASKING, Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.masked import masked_loss, ngrams
from gpt_jax.papers.transformer_xl.transformer_xl import init_memories
from gpt_jax.papers.xlnet.two_streams import XlNet

# Orders in which the tokens of a row are predicted; NumPy, on the host.
#
# A row's order is given by one rank per token. A token's content stream sees
# all tokens of at most its own rank; the query stream that predicts it sees
# those of lower rank (equation 4). Tokens that are not predicted (section 2.3,
# partial prediction) share the lowest rank: all tokens see them, and they see
# no predicted token. In a row of two halves, the second half is ranked after
# the whole first half, and sees it.
#
# Tokens are chosen as in the released code (zihangdai/xlnet, data_utils.py):
# runs of 1 to 5 words, p(n) ~ 1/n, each amid K n other tokens, then single
# tokens until the exact number is reached; <sep> and <cls> are never chosen,
# but ranked like chosen tokens.


class Permutation(NamedTuple):
  """How tokens are chosen and ranked.

  Attributes:
    context: K: one of K tokens is predicted.
    runs: the probabilities that 1, 2, ... consecutive words are chosen
      together.
    block: number of tokens that are permuted together; all blocks have the same
      permutation, and follow each other.
  """

  context: int
  runs: tuple[float, ...]
  block: int

  def places(self, length: int) -> int:
    """Number of predicted tokens in a row: 85 of 512 with K = 6."""
    return max(length // self.context, 1)

  def __call__(
    self, rows: Rows, keys: Keys, starts: np.ndarray, segments: int = 1
  ) -> dict[str, np.ndarray]:
    """Chooses and ranks tokens.

    Args:
      starts: bool [B, L], which tokens begin a word.
      segments: number of parts of equal length, each with its own order.

    Returns:
      `ranks` int32 [B, L], and with P = `places(L / segments)` of each segment:
      `masked_positions` and `masked_targets` int32 [B, segments * P], and
      `masked_weights` float32, 1 where a place holds a chosen token.
    """
    none_BL = np.zeros(rows.tokens.shape, bool)
    special_BL = none_BL if rows.special is None else rows.special
    reused_BL = none_BL if rows.reused is None else rows.reused
    chosen_BL, ranks_BL = none_BL.copy(), np.zeros(none_BL.shape, np.int32)
    length = rows.tokens.shape[1] // segments
    P = self.places(length)
    for row, generator in enumerate(keys.generators(MASKING)):
      open_L = rows.real[row] & ~special_BL[row]
      for begin in range(0, segments * length, length):
        segment = slice(begin, begin + length)
        # A row with padding has fewer tokens to choose.
        goal = min(P, max(int(rows.real[row, segment].sum()) // self.context, 1))
        order_L = np.zeros(length, np.int64)
        for place, count in _parts(reused_BL[row, segment], goal):
          chosen_BL[row, begin + place] = self._choose(
            open_L[begin + place], starts[row, begin + place], count, generator
          )
          order_L[place] = self.order(len(place), generator)
        late_L = chosen_BL[row, segment] | special_BL[row, segment]
        ranks_BL[row, segment] = ranks(order_L, late_L, reused_BL[row, segment])
    return {'ranks': ranks_BL, **_gathered(rows.tokens, chosen_BL, segments, P)}

  def order(self, length: int, generator: np.random.Generator) -> np.ndarray:
    """Each token's place in the order of prediction, int64 [length]."""
    in_block = generator.permutation(self.block)
    place = np.arange(length)
    found = in_block[place % self.block] + place // self.block * self.block
    return np.argsort(np.argsort(found))  # a last block may be shorter

  def _choose(
    self, open_L: np.ndarray, starts_L: np.ndarray, goal: int, generator: np.random.Generator
  ) -> np.ndarray:
    """Chooses `goal` of the open tokens, or all of them; bool [L]."""
    chosen_L = np.zeros(len(open_L), bool)
    left = min(goal, int(open_L.sum()))
    begins = np.flatnonzero(open_L & starts_L)
    # A word ends where another word or a token that is not open begins.
    ends = np.flatnonzero(np.append(starts_L | ~open_L, True))
    at = 0
    while left:
      n = 1 + int(generator.choice(len(self.runs), p=self.runs))
      before = int(generator.integers(self.context * n))
      first = int(np.searchsorted(begins, at + before))
      if first == len(begins):
        break
      begin = end = int(begins[first])
      for word in begins[first : first + n].tolist():
        stop = int(ends[np.searchsorted(ends, word, side='right')])
        if word != end or stop - begin > left:
          break
        end = stop
      chosen_L[begin:end] = True
      left -= end - begin
      at = end + self.context * n - before
    rest = np.flatnonzero(open_L & ~chosen_L)
    chosen_L[generator.permutation(rest)[:left]] = True
    return chosen_L


def ranks(order_L: np.ndarray, late_L: np.ndarray, reused_L: np.ndarray) -> np.ndarray:
  """The ranks of a row's tokens.

  Args:
    order_L: each token's place in the order of its part.
    late_L: bool, predicted tokens, <sep> and <cls>.
    reused_L: bool, tokens of the first half; all False if there is none.
  """
  ranks_L = np.where(late_L, order_L + 1, 0)
  return np.where(reused_L, 0, reused_L.any() * len(order_L)) + ranks_L


def _parts(reused_L: np.ndarray, goal: int) -> list[tuple[np.ndarray, int]]:
  """The positions of each part of a row, and how many of them to choose."""
  if not reused_L.any():
    return [(np.arange(len(reused_L)), goal)]
  halves = np.flatnonzero(reused_L), np.flatnonzero(~reused_L)
  return list(zip(halves, (goal - goal // 2, goal // 2), strict=True))


def _gathered(
  tokens_BL: np.ndarray, chosen_BL: np.ndarray, segments: int, num_places: int
) -> dict[str, np.ndarray]:
  """Positions, targets and weights: `num_places` for each segment in turn."""
  B, L = tokens_BL.shape
  # The chosen positions in ascending order, then others as padding.
  order = np.argsort(~chosen_BL.reshape(B, segments, -1), axis=2, kind='stable')
  order = order[:, :, :num_places] + np.arange(0, L, L // segments)[:, None]
  positions_BP = order.reshape(B, -1)
  weights_BP = np.take_along_axis(chosen_BL, positions_BP, axis=1)
  return {
    'masked_positions': positions_BP.astype(np.int32),
    'masked_targets': np.take_along_axis(tokens_BL, positions_BP, axis=1),
    'masked_weights': weights_BP.astype(np.float32),
  }


@dataclass(frozen=True)
class Permuted(Objective):
  """XLNet's pre-training.

  Attributes:
    context: K: one of K tokens is predicted (the paper's base: 6 or 7).
    longest: choose up to this many consecutive words, n with probability
      proportional to 1 / n (section 2.5: 5).
    block: number of tokens that are permuted together; blocks follow each
      other.
    segments: number of equal parts in which a row is read, each with the
      earlier ones in its memory, which `model.position` must support.
  """

  context: Count = 6
  longest: Count = 5
  block: Count = 256
  segments: Count = 1

  @property
  def permutation(self) -> Permutation:
    """How tokens are chosen and ranked."""
    return Permutation(self.context, ngrams(self.longest), self.block)

  @property
  def needs(self) -> Needs:
    """An encoder with a second stream; only the latter is scored."""

    def places(length: int) -> int:
      of_segment = self.permutation.places(length // self.segments)
      return self.segments * of_segment

    return Needs(
      attention='bidirectional',
      rows=('stream', 'halves') if self.segments == 1 else ('stream',),
      scored=Scored(places, lambda length: 0),
      num_predicted=places,
    )

  def check(self) -> None:
    """Rejects a model without second stream, XLNet positions or memory."""
    model, name = self.model, 'objective.name=permuted'
    choices = ModelChoices.of(model)
    if not choices.input.queries:
      raise UsageError(
        f'model.input={model.input!r}: {name} predicts by a second stream; set '
        "model.input='tokens(queries=True)'"
      )
    if not isinstance(model, XlNet):
      raise UsageError(
        f'model.position={model.position!r}: {name} knows places by distances '
        "alone; set model.position='xlnet'"
      )
    if self.segments > 1 and not choices.position.recurrence.memory:
      raise UsageError(
        f'model.position={model.position!r}: {name} with segments='
        f"{self.segments} keeps a memory; set model.position='xlnet("
        "memory=384)'"
      )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Unchanged rows, and the order in which their tokens are predicted."""
    L = rows.tokens.shape[1]
    if L % self.segments:
      raise UsageError(
        f'objective.name: segments={self.segments} do not divide a row of {L} '
        'tokens; change model.context_length or batch.length'
      )
    starts = np.ones(rows.tokens.shape, bool)
    if self.tokenizer is not None:
      starts = self.tokenizer.word_starts(rows.tokens)
    chosen = self.permutation(rows, keys, starts, self.segments)
    batch = {'inputs': rows.tokens, 'mask': rows.real, **chosen}
    if rows.token_types is not None:
      batch['token_types'] = rows.token_types
    return batch

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    model = self.model
    states_BPD, stats = predictions(model, params, batch, key, self.segments)
    scores = forward.scores(model, params, states_BPD)
    found = masked_loss(scores, batch, evaluating=key is None)
    return found._replace(stats=stats)


def order(ranks_BL: jax.Array, of_targets_BP: jax.Array) -> Order:
  """Which tokens each token, then each prediction, sees.

  Args:
    of_targets_BP: ranks of the predicted tokens.
  """
  bounds = jnp.concatenate([ranks_BL, of_targets_BP - 1], axis=1)
  return Order(bounds, ranks_BL)


def predictions(
  model: Transformer, params: Params, batch: Batch, key: jax.Array | None, segments: int = 1
) -> tuple[jax.Array, dict[str, LayerStats]]:
  """The last states of the second stream [B, P, D], and what the layers report.

  Args:
    model: with a second stream.
    key: for dropout; None: no dropout.
    segments: see `Permuted`; the batch's predictions are in their order.
  """
  B, L = batch['inputs'].shape
  caches = init_memories(model, B) if segments > 1 else None
  length, P = L // segments, batch['masked_positions'].shape[1] // segments
  states, stats = [], {}
  for nth in range(segments):
    part = slice(nth * length, (nth + 1) * length)
    predicted_BP = batch['masked_positions'][:, nth * P : (nth + 1) * P]
    predicted_BP = predicted_BP - nth * length
    ranks_BL = batch['ranks'][:, part]
    of_targets_BP = jnp.take_along_axis(ranks_BL, predicted_BP, axis=1)
    types_BL = batch.get('token_types')
    of_part = None if key is None else jax.random.fold_in(key, nth)
    out, sown = forward.apply(
      model,
      params,
      Row(
        batch['inputs'][:, part],
        real_BL=batch['mask'][:, part],
        token_types_BL=None if types_BL is None else types_BL[:, part],
        order=order(ranks_BL, of_targets_BP),
        extra={'predicted': predicted_BP},
      ),
      of_part,
      caches=caches,
    )
    states.append(out.hidden_BLD[:, length:])
    caches = out.caches if segments > 1 else None
    found = forward.stats(sown)
    stats = {name: _together(stats.get(name), x, segments) for name, x in found.items()}
  return jnp.concatenate(states, axis=1), stats


def _together(before: LayerStats | None, found: LayerStats, segments: int) -> LayerStats:
  """What layers report of one more of equally long segments of the rows."""
  if not isinstance(found, Activations):
    return found if before is None else jax.tree.map(jnp.add, before, found)
  found = found._replace(mean_square_NB=found.mean_square_NB / segments)
  if not isinstance(before, Activations):
    return found
  largest = before.largest_logit_NB
  if largest is not None and found.largest_logit_NB is not None:
    largest = jnp.maximum(largest, found.largest_logit_NB)
  return Activations(before.mean_square_NB + found.mean_square_NB, largest)
