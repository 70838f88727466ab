# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masked tokens under four attention masks (UniLM, Dong et al., 2019).

The mask makes one encoder a bidirectional, left-to-right, right-to-left or
sequence-to-sequence model (sections 2.2 and 2.3). A row [SOS] S1 [EOS] S2 [EOS]
has one of these masks, see `unified_order`. In each of them the chosen
tokens become [MASK], and

  L = mean over the chosen tokens of all rows of -log P(x_t | what t sees)
    + mean over the bidirectional rows of -log P(label | C)

A token sees itself, so the 10% that are left unchanged can be copied, by
design.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.masks import Order
from gpt_jax.core.nn.transformer import Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective, Scored
from gpt_jax.core.objectives.cross_entropy import Scores, right, token_log_probs
from gpt_jax.core.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.core.ranges import Fraction, Probability
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.masked import Masked, Masking, check_shares, masked_batch
from gpt_jax.papers.t5 import prefix
from gpt_jax.papers.transformer.seq2seq import Seq2Seq, parallel_batch, written_loss
from gpt_jax.papers.unilm import unified_order
from gpt_jax.papers.unilm.unified_order import NAMES, SEQ2SEQ

# Section 2.3: 80% of the time one token, else a bigram or a trigram.
RUNS = (0.8, 0.1, 0.1)
# Token types of S1 and S2 under each mask: section 2.1, "different segment
# embeddings for different LM objectives", numbered as in the released code. A
# model with fewer types takes the number modulo theirs: with two types, a
# left-to-right or right-to-left row has the same type throughout.
TYPES = np.array([[0, 1], [2, 2], [3, 3], [4, 5]], np.int32)


@dataclass(frozen=True)
class _MaskedPairs(Masked):
  """Masked tokens and next sentences, with UniLM's runs of tokens."""

  @property
  def runs(self) -> tuple[float, ...]:
    return RUNS


@dataclass(frozen=True)
class Unified(Objective):
  """UniLM's pre-training.

  Attributes:
    rate: fraction of a row's tokens that are chosen; in sequence-to-sequence
      rows the target's [EOS] can be chosen too.
    mask: fraction of the chosen tokens that become [MASK].
    random: fraction of them that become a random token. The rest is unchanged.
  """

  rate: Probability = 0.15
  mask: Probability = 0.8
  random: Probability = 0.1
  kinds = NAMES

  def __post_init__(self):
    """Checks that `mask` and `random` are at most 1 in sum."""
    check_shares(self.mask, self.random)

  def _unbound(self) -> _MaskedPairs:
    return _MaskedPairs(self.rate, self.mask, self.random, pair='next')

  @functools.cached_property
  def plain(self) -> Masked:
    """The objective of masked tokens and next sentences."""
    return self._unbound().bind(self.model, self.tokenizer)

  @property
  def needs(self) -> Needs:
    """The needs of masked tokens, with rows for the four masks."""
    return self._unbound().needs._replace(pair='unified')

  @property
  def row_mask(self) -> Literal['order']:
    """See `Objective`."""
    return 'order'

  def check(self) -> None:
    """Rejects a model that does not tell the two texts apart."""
    self.plain.check()
    _num_types(self.model)

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Masked rows, the mask of each, and the tokens of its second text."""
    assert rows.token_types is not None and rows.special is not None
    masks_B = unified_order.masks(keys.run)
    second_BL = rows.token_types == 1
    last_B = np.maximum(rows.real.sum(axis=1) - 1, 0)
    special_BL = rows.special.copy()
    special_BL[np.arange(len(last_B)), last_B] &= masks_B != SEQ2SEQ
    types_BL = np.take_along_axis(TYPES[masks_B], rows.token_types, axis=1)
    types_BL %= _num_types(self.model)
    rows = rows._replace(special=special_BL, token_types=types_BL)
    batch = self.plain.make_batch(rows, keys)
    of_pairs_B = masks_B == unified_order.BIDIRECTIONAL
    return {
      **batch,
      'pair_weights': batch['pair_weights'] * of_pairs_B,
      'masks': masks_B,
      'second': second_BL,
    }

  def init(self, key: jax.Array) -> Params:
    return self.plain.init(key)

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    return self.plain.weights(batch)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file."""
    model, plain = self.model, self.plain
    seen: Any = {'order': order(batch['masks'], batch['second'])}
    hidden_BLD, stats = forward.states(model, params, batch | seen, key)
    found = plain.loss_of_states(params, hidden_BLD, batch, evaluating=key is None)
    states_BPD = plain.chosen(hidden_BLD, batch)
    targets_BP = batch['masked_targets']
    scores = forward.scores(model, params, states_BPD)
    constant = Scores(*jax.lax.stop_gradient(scores[:2]), scores.softcap)
    log_probs_BP = token_log_probs(constant, targets_BP)
    right_BP = None if key is not None else right(scores, targets_BP)
    metrics = {
      # A mean over four kinds of models would be meaningless.
      name: mean
      for name, mean in found.metrics.items()
      if not name.startswith('objective/masked_')
    }
    for number, name in enumerate(NAMES):
      of_mask_B1 = (batch['masks'] == number)[:, None]
      weights_BP = batch['masked_weights'] * of_mask_B1
      metrics[f'objective/{name}_loss'] = Mean.of(-log_probs_BP, weights_BP)
      if right_BP is not None:
        metrics[f'objective/{name}_accuracy'] = Mean.of(right_BP, weights_BP)
    return found._replace(metrics=metrics, stats=stats)


def order(masks_B: jax.Array, second_BL: jax.Array) -> Order:
  """The masks of rows as an order in which their tokens see each other.

  A token sees all whose rank is not above its own.

  Args:
    masks_B: numbers of `unified_order`.
    second_BL: bool, True for tokens of S2.
  """
  place_1L = jnp.arange(second_BL.shape[1], dtype=jnp.int32)[None]
  # The source sees all of itself; the target sees the source and its own past.
  seq2seq_BL = jnp.where(second_BL, 1 + place_1L, 0)
  of_masks = [jnp.zeros_like(place_1L), place_1L, -place_1L, seq2seq_BL]
  ranks_BL = jnp.select([masks_B[:, None] == m for m in range(4)], of_masks)
  return Order(ranks_BL, ranks_BL)


def types_of(model: Transformer, mask: int) -> np.ndarray:
  """The token types of S1 and S2 under one of the four masks, int32 [2]."""
  return TYPES[mask] % _num_types(model)


def _num_types(model: Transformer) -> int:
  """Number of the model's token types, which must be 2 or 6."""
  found = ModelChoices.of(model).input.num_token_types
  if found not in (2, TYPES.max() + 1):
    raise UsageError(
      f'model.input={model.input!r}: objective.name=unified tells S1 from S2 '
      'with token_types=2, and the four masks apart, too, with token_types=6; '
      'give one of these'
    )
  return found


# Fine-tuning an encoder for generation (UniLM, section 2.4).
#
# Source and target are one row, [CLS] S1 [SEP] S2 [SEP], under the
# sequence-to-sequence mask: the source sees itself; a target token sees the
# source and the target up to itself. Some tokens of the target, possibly its
# [SEP], become [MASK], and
#
#   L = mean over the chosen tokens of -log P(y_t | S1, masked y_<=t)
#
# The source's [CLS] comes from `data.rows="parallel(start='cls')"`; without it
# rows differ from pre-training. `decoding.in_row` generates.


@dataclass(frozen=True)
class UnifiedTarget(Objective):
  """UniLM's fine-tuning for generation, on pairs of `data.rows='parallel'`.

  Attributes:
    rate: fraction of a row's target tokens that are chosen (released code:
      0.7).
    mask: fraction of the chosen tokens that become [MASK].
    random: fraction of them that become a random token. The rest is unchanged.
    label_smoothing: see `EncoderDecoder` (released code: 0.1).
  """

  rate: Probability = 0.7
  mask: Probability = 0.8
  random: Probability = 0.1
  label_smoothing: Fraction = 0.0

  def __post_init__(self):
    """Checks that `mask` and `random` are at most 1 in sum."""
    check_shares(self.mask, self.random)

  @property
  def masking(self) -> Masking:
    """How tokens are chosen and replaced, before the tokenizer is known."""
    return Masking(self.rate, self.mask, self.random)

  @property
  def needs(self) -> Needs:
    """An encoder with room for both sides of a pair."""
    of_pairs = prefix.needs_of_sides(Seq2Seq().needs)
    assert of_pairs.scored is not None
    of_target, masking = of_pairs.scored.output, self.masking
    return of_pairs._replace(
      attention='bidirectional',
      decoder_start='',
      tokens=('mask', 'cls'),
      scored=Scored(lambda length: masking.places(of_target(length)), lambda length: 1),
      in_row='mask',
    )

  @property
  def row_mask(self) -> Literal['order']:
    """See `Objective`."""
    return 'order'

  def check(self) -> None:
    """Rejects an adaptive softmax, and a model without token types."""
    forward.check_scores(self.model, 'unified_target')
    _num_types(self.model)

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Rows of a source and a target with masked tokens."""
    both = prefix.joined(parallel_batch(rows, 0))
    prefix.check_fits(self.model, both)
    target = masked_batch(rows, keys, self.masking.known_to(self.tokenizer))
    M = both['inputs'].shape[1] - target['inputs'].shape[1]
    second_L = np.arange(both['inputs'].shape[1]) >= M
    second_BL = np.broadcast_to(second_L, both['inputs'].shape)
    types = types_of(self.model, SEQ2SEQ)
    return {
      'inputs': np.concatenate([both['inputs'][:, :M], target['inputs']], axis=1),
      'mask': np.concatenate([both['mask'][:, :M], rows.real], axis=1),
      'segments': both['segments'],
      'positions': both['positions'],
      'token_types': types[second_BL.astype(np.int32)],
      'second': second_BL,
      'masked_positions': M + target['masked_positions'],
      'masked_targets': target['masked_targets'],
      'masked_weights': target['masked_weights'],
    }

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """Cross-entropy of the target's chosen tokens."""
    model, evaluating = self.model, key is None
    hidden_BLD, stats = forward.states(model, params, with_mask(batch), key)
    states_BPD = forward.at_chosen(hidden_BLD, batch)
    found = written_loss(
      forward.scores(model, params, states_BPD),
      batch['masked_targets'],
      batch['masked_weights'],
      0.0 if evaluating else self.label_smoothing,
      evaluating=evaluating,
    )
    return found._replace(stats=stats)


def with_mask(batch: Batch) -> dict[str, Any]:
  """Adds the sequence-to-sequence mask to a batch."""
  masks_B = jnp.full(len(batch['inputs']), SEQ2SEQ)
  return {**batch, 'order': order(masks_B, batch['second'])}
