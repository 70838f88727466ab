# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Answers after their source in the same row: see `ByMask` and `AfterPrefix`.

The source sees itself in both directions, and nothing of the answer; a token of
the answer sees the source and the tokens before it. So keys and values stay
valid once the source has been read as a whole.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.row import Row


class ByMask(NamedTuple):
  """How an encoder generates (UniLM: Dong et al., 2019, section 2.4).

  A [MASK] after the newest token predicts the next one, which then takes its
  place in the caches. As in the released code, one step reads the newest token
  and the [MASK]:

    [CLS] source [SEP] y1 ... yn [MASK]

  Attributes:
    types: token types of the source and of the answer.
  """

  mask_id: int
  types: tuple[int, int]

  @property
  def ahead(self) -> int:
    """Slots that a step needs in the caches beyond the newest token."""
    return 1

  def prompt(self, ids: Sequence[int]) -> list[int]:
    """What is read before the first token: the source and a [MASK]."""
    return [*ids, self.mask_id]

  def of_prompts(self, row: Row, lengths_B: jax.Array, num_slots: int) -> Row:
    """What the model reads of prompts that are read as a whole.

    Args:
      row: their tokens and positions.
      lengths_B: of the prompts, including the [MASK].
      num_slots: of the caches that are attended to.
    """
    positions_BL = row.positions_BL
    assert positions_BL is not None
    of_source_BL = positions_BL < lengths_B[:, None] - 1
    slots_M = jnp.arange(num_slots)[None]
    source_BM = slots_M < lengths_B[:, None] - 1
    before_BLM = slots_M[None] <= positions_BL[..., None]
    return row._replace(
      token_types_BL=jnp.where(of_source_BL, *self.types),
      visible_BLM=jnp.where(of_source_BL[..., None], source_BM[:, None], before_BLM),
    )

  def step(self, token_B: jax.Array, position_B: jax.Array, num_slots: int) -> Row:
    """What the model reads in a step, of two tokens.

    Args:
      token_B: the newest tokens.
      position_B: their positions.
    """
    masks_B = jnp.full_like(token_B, self.mask_id)
    tokens_BL = jnp.stack([token_B, masks_B], axis=1)
    positions_BL = jnp.stack([position_B, position_B + 1], axis=1)
    slots_M = jnp.arange(num_slots)[None, None]
    return Row(
      tokens_BL,
      positions_BL,
      token_types_BL=jnp.full_like(tokens_BL, self.types[1]),
      visible_BLM=slots_M <= positions_BL[..., None],
    )


class AfterPrefix(NamedTuple):
  """How a decoder generates after a prefix (T5: section 3.2).

    source <start> y1 ... yn

  Attributes:
    both: whether the tokens of a source see each other in both directions.
  """

  both: bool

  @property
  def ahead(self) -> int:
    """See `ByMask`."""
    return 0

  def prompt(self, ids: Sequence[int]) -> list[int]:
    """What is read before the first token: the source and the start token."""
    return [*ids]

  def of_prompts(self, row: Row, lengths_B: jax.Array, num_slots: int) -> Row:
    """See `ByMask`; the last token of a prompt is the start token."""
    del num_slots
    return row._replace(prefix_B=lengths_B - 1) if self.both else row

  def step(self, token_B: jax.Array, position_B: jax.Array, num_slots: int) -> Row:
    """See `ByMask`; of one token."""
    del num_slots
    return Row(token_B[:, None], position_B[:, None])


InRow = ByMask | AfterPrefix
