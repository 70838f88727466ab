# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Masked tokens under four masks of attention (UniLM, Dong et al., 2019).

One encoder; what its tokens see makes it a bidirectional model, one that reads
from left to right, one from right to left, or one that reads a source and then
writes a target (sections 2.2 and 2.3). A row [SOS] S1 [EOS] S2 [EOS] has one of
these masks, see `data.unified_order`. In each the chosen tokens are [MASK]s in
their places, and

  L = mean over the chosen tokens of all rows of -log P(x_t | what t sees)
    + mean over the bidirectional rows of -log P(label | C)

A token sees itself: of the 10% that stay as they are it may copy, by design.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data import unified_order
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.data.unified_order import NAMES, SEQ2SEQ
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Objective,
  Params,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.masked import of_masking
from gpt_jax.objectives.masking import Masking
from gpt_jax.objectives.per_token import per_token
from gpt_jax.ranges import Probability
from gpt_jax.spec import UsageError

# Section 2.3: 80% of the time one token, else a bigram or a trigram.
RUNS = (0.8, 0.1, 0.1)
# Types of the tokens of S1 and S2 under each mask: section 2.1, "different
# segment embeddings for different LM objectives", numbered as in the released
# code. A model of fewer types takes what is left of a number by division: with
# two, a row that is read in one direction has the same one throughout.
TYPES = np.array([[0, 1], [2, 2], [3, 3], [4, 5]], np.int32)


def unified(
  rate: Probability = 0.15,
  mask: Probability = 0.8,
  random: Probability = 0.1,
) -> Declared:
  """UniLM's pre-training.

  Args:
    rate: of a row's tokens that are chosen; of the target of sequence to
      sequence rows its [EOS] may be, too.
    mask: of the chosen tokens that become [MASK].
    random: of the chosen tokens that become a random one. The rest stays.

  Raises:
    UsageError: mask and random are more than all.
  """
  if mask + random > 1:
    raise UsageError(
      f'objective.name: mask={mask} and random={random} are parts of the '
      'chosen tokens; their sum must be at most 1'
    )
  masking = Masking(rate, mask, random, runs=RUNS)
  plain = of_masking(masking, pair='next')

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    return _objective(model, plain(model, tokenizer), _num_types(model))

  return Declared(plain.needs._replace(pair='unified'), build)


def visible(masks_B: jax.Array, second_BL: jax.Array) -> jax.Array:
  """Which tokens of its row each token sees, bool [B, L, M].

  Args:
    masks_B: of `unified_order`.
    second_BL: bool, the tokens of S2.
  """
  place_L = jnp.arange(second_BL.shape[1])
  before_LM = place_L[None] <= place_L[:, None]
  # The source sees itself both ways, the target that and what is before.
  seq2seq_BLM = ~second_BL[:, None] | (second_BL[..., None] & before_LM[None])
  both_BLM = jnp.ones_like(seq2seq_BLM)
  of_masks = [both_BLM, before_LM[None], before_LM.T[None], seq2seq_BLM]
  return jnp.select([masks_B[:, None, None] == m for m in range(4)], of_masks)


def types_of(model: Transformer, mask: int) -> np.ndarray:
  """The types of tokens of S1 and S2, int32 [2], of one of the four masks.

  Raises:
    UsageError: the model has another number of types.
  """
  return TYPES[mask] % _num_types(model)


def _num_types(model: Transformer) -> int:
  """How many types of tokens the model tells apart."""
  found = spec.build('model.input', model.input, INPUTS).num_token_types
  if found not in (2, TYPES.max() + 1):
    raise UsageError(
      f'model.input={model.input!r}: objective.name=unified tells S1 from S2 '
      'with token_types=2, and the four masks apart, too, with token_types=6; '
      'give one of these'
    )
  return found


def _objective(
  model: Transformer, plain: Objective, num_types: int
) -> Objective:
  """See `unified`; `plain` is that of masked tokens and next sentences."""
  text, make_plain = plain.text, plain.make_batch
  assert text is not None and make_plain is not None

  def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    assert rows.token_types is not None and rows.special is not None
    masks_B = unified_order.masks(keys.run)
    second_BL = rows.token_types == 1
    last_B = np.maximum(rows.real.sum(axis=1) - 1, 0)
    special_BL = rows.special.copy()
    special_BL[np.arange(len(last_B)), last_B] &= masks_B != SEQ2SEQ
    types_BL = np.take_along_axis(TYPES[masks_B], rows.token_types, axis=1)
    rows = rows._replace(special=special_BL, token_types=types_BL % num_types)
    batch = make_plain(rows, keys)
    of_pairs_B = masks_B == unified_order.BIDIRECTIONAL
    return {
      **batch,
      'pair_weights': batch['pair_weights'] * of_pairs_B,
      'masks': masks_B,
      'second': second_BL,
    }

  def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    seen = visible(batch['masks'], batch['second'])
    batch = {**batch, 'visible': seen}
    hidden_BLD, routers = text.states(params, batch, key)
    found = text.loss(params, hidden_BLD, batch, key is None)
    states_BPD = text.chosen(hidden_BLD, batch)
    each = per_token(
      scores.of_states(model, params, states_BPD), batch['masked_targets']
    )
    metrics = {
      # One figure of four kinds of models says nothing.
      name: mean
      for name, mean in (found.metrics or {}).items()
      if not name.startswith('objective/masked_')
    }
    for number, name in enumerate(NAMES):
      of_mask_B1 = (batch['masks'] == number)[:, None]
      weights_BP = batch['masked_weights'] * of_mask_B1
      weight = jnp.sum(weights_BP)
      nll = jnp.sum(each.nll_BL * weights_BP)
      metrics[f'objective/{name}_loss'] = Mean(nll, weight)
      if key is None:
        right = jnp.sum(each.right_BL * weights_BP)
        metrics[f'objective/{name}_accuracy'] = Mean(right, weight)
    found = found._replace(metrics=metrics)
    return add_routers(found, routers, training=key is not None)

  return Objective(
    make_batch, plain.init, loss, balance=plain.balance, kinds=NAMES
  )
