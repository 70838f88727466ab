# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which tokens may come next."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gpt_jax.core.tokenizers.special import Special
from gpt_jax.core.tokenizers.tokenizer import Tokenizer


class Constraints(NamedTuple):
  """Which tokens may come next; by default all may.

  The last two fields forbid nothing: they are defaults of beam search.
  """

  # Tokens that are never generated: see `never_drawn`.
  never: tuple[int, ...] = ()
  # Tokens that never begin an answer.
  never_first: tuple[int, ...] = ()
  # Sequences of two or more tokens that are never generated.
  sequences: tuple[tuple[int, ...], ...] = ()
  # The first token that an encoder-decoder writes.
  first_id: int | None = None
  # The last token of an answer that reaches its limit.
  last_id: int | None = None
  # The fewest tokens of prompt and answer together; of an encoder-decoder the
  # start of the decoder is the prompt.
  min_length: int = 0
  min_tokens: int = 0  # the fewest tokens of the answer
  # No sequence of this many tokens is repeated, prompt included; 0: any may be.
  no_repeat_ngram: int = 0
  stop_ids: tuple[int, ...] = ()  # each ends an answer
  # See `decoding.settings.BeamSettings`; None: its defaults.
  length_penalty: float | None = None
  early_stopping: bool | None = None

  @property
  def of_text(self) -> bool:
    """Whether the tokens allowed next depend on those before."""
    return bool(self.sequences or self.no_repeat_ngram)


# All tokens may come.
ANY = Constraints()

# Known from the tokenizer, not from a file.
_OF_TOKENIZER = ('stop_ids',)


def of(special: Special) -> Constraints:
  """What an import's files say of the answers of its model."""
  return restored(special.constraints or {})


def written(constraints: Constraints) -> dict[str, Any]:
  """The entries of `special.json`, for `restored`."""
  return {
    name: value
    for name, value in constraints._asdict().items()
    if name not in _OF_TOKENIZER and value != ANY._asdict()[name]
  }


def restored(entries: Mapping[str, Any]) -> Constraints:
  """The inverse of `written`."""

  def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  return Constraints(**{name: tuples(x) for name, x in entries.items()})


def never_drawn(tokenizer: Tokenizer, vocab_size: int) -> np.ndarray | None:
  """The ids that a model never generates, bool [V]; None if there are none.

  The rows of the model's table past the tokenizer's last id, and
  `Special.never_ids`. Sampling renormalises over the other ids. Scores of beam
  search, `fill` and `evaluate` are normalised over the whole table, as the
  training loss is.

  Args:
    vocab_size: V, of the model.
  """
  never_V = np.arange(vocab_size) >= tokenizer.vocab_size
  never_V[[i for i in tokenizer.special.never_ids if i < vocab_size]] = True
  return never_V if never_V.any() else None
