# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens and where in the text they end."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

_NOWHERE = np.iinfo(np.int64).max


class Located(NamedTuple):
  """The tokens of a text.

  Attributes:
    ids: int32 [N].
    stops: int64 [N], never less than the one before: after the last character
      of each token. A token that holds none, such as the first bytes of a
      character that is spelled in several, has the next one's.
  """

  ids: np.ndarray
  stops: np.ndarray


def of(ids: Iterable[int], spans: Sequence[tuple[int, int]]) -> Located:
  """The tokens of a library, with the characters [start, stop) of each."""
  starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
  stops = np.where(starts == stops, _NOWHERE, stops)
  stops = np.minimum.accumulate(stops[::-1])[::-1]
  return Located(np.array(ids, np.int32), stops)


def join(parts: Sequence[Located], texts: Sequence[str]) -> Located:
  """The tokens of `texts` in a row, each of which was encoded alone."""
  starts = np.cumsum([0, *map(len, texts)])
  # A token at the end of a text that holds no character stays there.
  stops = [
    np.minimum(part.stops, len(text)) + start
    for part, text, start in zip(parts, texts, starts, strict=False)
  ]
  return Located(
    np.concatenate([part.ids for part in parts]), np.concatenate(stops)
  )
