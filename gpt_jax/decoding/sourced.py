# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A source text as a model is given it, whoever asks: one rule for all.

A source that is too long loses its last tokens, as rows of pairs do in
training; it keeps what stands before a source, and its end.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt_jax.rows import sides
from gpt_jax.tokenizers.special import Special

# Tokens that an answer may have more than its source.
MORE = 50

log = logging.getLogger('gpt_jax')


class Read(NamedTuple):
  """What a model reads of a source.

  Attributes:
    ids: with what stands before and after it: see `sides.source_ids`.
    cut: how many of its tokens did not fit, its last.
  """

  ids: list[int]
  cut: int


def read(ids: Any, special: Special, room: int) -> Read:
  """What is read of a source, at most `room` tokens of it and around it.

  Args:
    ids: of the text, int [N].
    special: of the tokenizer.
    room: in tokens.
  """
  kept = max(room - len(sides.source_ids([], special)), 0)
  whole = sides.source_ids(ids[:kept], special).tolist()
  return Read(whole, max(len(ids) - kept, 0))


def most(num_tokens: int) -> int:
  """Tokens of an answer at most, its end among them, where nothing says so.

  Args:
    num_tokens: that are read of its source (Vaswani et al., 2017, section 6.1).
  """
  return num_tokens + MORE


def tell(cuts: Sequence[int], context_length: int) -> None:
  """Warns of sources that did not fit, of how many there are.

  Args:
    cuts: of each source, see `Read`.
    context_length: of the model.
  """
  if number := sum(cut > 0 for cut in cuts):
    log.warning(
      '%d of %d sources do not fit model.context_length=%d and lose their last '
      'tokens, up to %d',
      *(number, len(cuts), context_length, max(cuts)),
    )
