# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""An answer after its source in one row: see `ByMask` and `AfterPrefix`.

The source sees itself both ways, and nothing of the answer; a token of that the
source and what is before. So keys and values stay as they are, once the source
has been read as a whole.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class ByMask(NamedTuple):
  """How an encoder writes (UniLM: Dong et al., 2019, section 2.4).

  The next token is predicted in its own place, by a [MASK] after those that
  there are, and is then written over its keys and values; one step reads the
  newest token and the [MASK], as the released code does:

    [CLS] source [SEP] y1 ... yn [MASK]

  Attributes:
    mask_id: of [MASK].
    types: of the tokens of the source, and of the answer.
  """

  mask_id: int
  types: tuple[int, int]

  @property
  def ahead(self) -> int:
    """Slots of the caches that a step needs after the newest token."""
    return 1

  def prompt(self, ids: Sequence[int]) -> list[int]:
    """What is read before the first token: the source, and a [MASK]."""
    return [*ids, self.mask_id]

  def seen_of_prompts(
    self, positions_BL: jax.Array, lengths_B: jax.Array, num_slots: int
  ) -> dict[str, Any]:
    """What a `Transformer` is told of prompts that are read as a whole.

    Args:
      positions_BL: of their tokens.
      lengths_B: of the prompts, the [MASK] counted.
      num_slots: of the caches, that are seen.
    """
    of_source_BL = positions_BL < lengths_B[:, None] - 1
    slots_M = jnp.arange(num_slots)[None]
    source_BM = slots_M < lengths_B[:, None] - 1
    before_BLM = slots_M[None] <= positions_BL[..., None]
    return {
      'token_types_BL': jnp.where(of_source_BL, *self.types),
      'visible_BLM': jnp.where(
        of_source_BL[..., None], source_BM[:, None], before_BLM
      ),
    }

  def step(
    self, token_B: jax.Array, position_B: jax.Array, num_slots: int
  ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """What is read in a step: tokens and positions [B, 2], and what they see.

    Args:
      token_B: the newest.
      position_B: where it stands.
      num_slots: of the caches.
    """
    masks_B = jnp.full_like(token_B, self.mask_id)
    tokens_BL = jnp.stack([token_B, masks_B], axis=1)
    positions_BL = jnp.stack([position_B, position_B + 1], axis=1)
    slots_M = jnp.arange(num_slots)[None, None]
    return (
      tokens_BL,
      positions_BL,
      {
        'token_types_BL': jnp.full_like(tokens_BL, self.types[1]),
        'visible_BLM': slots_M <= positions_BL[..., None],
      },
    )


class AfterPrefix(NamedTuple):
  """How a decoder writes whose sources are prefixes (T5: section 3.2).

    source <start> y1 ... yn

  Attributes:
    both: whether the tokens of a source see each other both ways.
  """

  both: bool

  @property
  def ahead(self) -> int:
    """See `ByMask`."""
    return 0

  def prompt(self, ids: Sequence[int]) -> list[int]:
    """What is read before the first token: the source, and the start."""
    return [*ids]

  def seen_of_prompts(
    self, positions_BL: jax.Array, lengths_B: jax.Array, num_slots: int
  ) -> dict[str, Any]:
    """See `ByMask`; the last token of a prompt is the start."""
    del positions_BL, num_slots
    return {'prefix_B': lengths_B - 1} if self.both else {}

  def step(
    self, token_B: jax.Array, position_B: jax.Array, num_slots: int
  ) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    """See `ByMask`: tokens and positions are [B, 1]."""
    del num_slots
    return token_B[:, None], position_B[:, None], {}


InRow = ByMask | AfterPrefix
