# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ids of the two sides of a pair of texts, for an encoder-decoder.

  source   [start] text eos     the encoder's input
  target   text eos             the decoder's targets
  inputs   first text           the decoder's input: targets, shifted by one

`start` is what the tokenizer puts before a text: <s> for BART, nothing for T5
and for the tokenizers that we train. `first` is set by the model's objective:
see `objectives.base.Needs.decoder_start`.
"""

from typing import Any, Literal

import numpy as np

from gpt_jax.core.tokenizers.special import Special

Start = Literal['pad', 'eos']


def source_ids(ids: Any, special: Special) -> np.ndarray:
  """The encoder's input, int32 [M].

  Args:
    ids: of the text, with its eos as in a token store, or without.
  """
  return np.concatenate([source_start(special), target_ids(ids, special)])


def target_ids(ids: Any, special: Special) -> np.ndarray:
  """The decoder's targets, int32 [L]; `ids` as for `source_ids`."""
  ids = np.asarray(ids, np.int32)
  if len(ids) and ids[-1] == special.eos_id:
    return ids
  return np.append(ids, np.int32(special.eos_id))


def source_start(special: Special) -> np.ndarray:
  """The ids before each source's text, int32; often none."""
  return np.array(special.prompt_start, np.int32)


def start_ids(start: str, special: Special) -> list[int]:
  """The result of `start_id` as a list; [] if `start` is ''."""
  return [start_id(start, special)] if start else []


def start_id(start: str, special: Special) -> int:
  """The token that a decoder starts with.

  Args:
    start: 'pad' (T5, Marian) or 'eos' (BART). If there is no padding token both
      are the end of a document.
  """
  return special.pad_id if start == 'pad' else special.eos_id


def decoder_inputs(
  targets: np.ndarray, first_id: int, positions: np.ndarray | None = None
) -> np.ndarray:
  """The token before each target; `first_id` before the first of a text.

  Args:
    targets: int32 [B, L].
    positions: int32 [B, L], of packed rows: a text begins at each 0; None:
      each row is one text.
  """
  inputs = np.empty_like(targets)
  inputs[:, 1:] = targets[:, :-1]
  inputs[:, :1] = first_id
  if positions is not None:
    inputs[positions == 0] = first_id
  return inputs
