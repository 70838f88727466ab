# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows as they go through a model: their tokens, and who sees whom."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.masks import Order


class Visibility(NamedTuple):
  """Row-dependent visibility of keys; None where unused.

  All fields but the prefix hide keys that the pattern shows.

  Attributes:
    key_mask_BM: bool, False for padding.
    segments_BL: int, the document of each token of a packed row; documents do
      not see each other.
    prefix_B: int, number of tokens at the start of a row that see each other
      both ways, even if the pattern is causal (a prefix LM).
    visible_BLM: bool, whether a token sees a key.
    places_1L: int, the place of each token in its row, [1, L]; None: they are
      in order. The other fields follow the tokens' order.
    order: a mask by numbers of queries and keys.
  """

  key_mask_BM: jax.Array | None = None
  segments_BL: jax.Array | None = None
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None
  places_1L: jax.Array | None = None
  order: Order | None = None

  @property
  def uneven(self) -> bool:
    """Whether a prefix, a mask `visible_BLM` or an order is given."""
    masks = self.prefix_B, self.visible_BLM, self.order
    return any(x is not None for x in masks)

  @property
  def mask_BLM(self) -> jax.Array | None:
    """The explicit mask, or the one that `order` implies."""
    if self.order is None:
      return self.visible_BLM
    assert self.visible_BLM is None
    return self.order.visible()


class Row(NamedTuple):
  """The rows of a batch, as a model reads them; None where unused.

  Attributes:
    tokens_BL: int32 ids; [B, L, C], those of each word's characters, if the
      input reads these.
    positions_BL: int32, of each token in its document; None: 0, 1, 2, ...
    real_BL: bool, False for padding.
    segments_BL: the document of each token of a packed row.
    token_types_BL: for `input='tokens(token_types=2)'`; without these, a token
      of the vocabulary whose vector is added (GPT-1 and GPT-2 in Hugging Face).
    prefix_B: int, number of tokens at the start of each row that see each
      other both ways; with caches, one call must read the whole prefix.
    visible_BLM: bool, a mask on top of `model.attention`: which tokens of its
      row, or slots of the caches, each token sees.
    order: the same by numbers of each token, which kernels take too.
    places_1L: int32 [1, L], the place of each token in its row, if they are
      not in order: see `zigzag.zigzag`. All arrays of tokens, and the hidden
      states, are in that order.
    extra: what only the modules of one paper read, by name.
  """

  tokens_BL: Any
  positions_BL: jax.Array | None = None
  real_BL: jax.Array | None = None
  segments_BL: jax.Array | None = None
  token_types_BL: jax.Array | None = None
  prefix_B: jax.Array | None = None
  visible_BLM: jax.Array | None = None
  order: Order | None = None
  places_1L: jax.Array | None = None
  extra: Mapping[str, Any] = {}

  @classmethod
  def of(cls, row: 'Row | jax.Array') -> 'Row':
    """The row; of an array, which is its tokens, nothing else is known."""
    return row if isinstance(row, Row) else cls(row)

  @property
  def positions(self) -> jax.Array | None:
    """The positions, or the places that stand for them."""
    return self.places_1L if self.positions_BL is None else self.positions_BL

  @property
  def visibility(self) -> Visibility:
    """Who sees whom."""
    return Visibility(
      key_mask_BM=self.real_BL,
      segments_BL=self.segments_BL,
      prefix_B=self.prefix_B,
      visible_BLM=self.visible_BLM,
      places_1L=self.places_1L,
      order=self.order,
    )


class Context(NamedTuple):
  """Inputs shared by all layers of a stack; None where unused.

  Attributes:
    positions_BL: position of each token; None means 0, 1, 2, ...
    visibility: padding, packed documents, prefixes, whole masks.
    bias: on the scores of self-attention, [B or 1, H, L, M], or by distance
      where the backend takes it so.
    extra: `Row.extra`, and what a paper's model adds for its layers.
  """

  positions_BL: jax.Array | None = None
  visibility: Visibility = Visibility()
  bias: Any = None
  extra: Mapping[str, Any] = {}

  def positions(self, length: int) -> jax.Array:
    """Positions of a row's tokens, [B or 1, L]."""
    if self.positions_BL is not None:
      return self.positions_BL
    return jnp.arange(length)[None]

  def adding(self, **extra: Any) -> 'Context':
    """The context with more of `extra`."""
    return self._replace(extra={**self.extra, **extra})
