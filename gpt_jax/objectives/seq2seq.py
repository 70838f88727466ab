# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A target text from a source text (the Transformer, 2017, section 5).

objective.name = 'seq2seq(label_smoothing=0.1)'
"""

import numpy as np

from gpt_jax.data import sides
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import encoder_decoder
from gpt_jax.objectives.base import Declared, Needs, Objective
from gpt_jax.ranges import Fraction
from gpt_jax.spec import UsageError


def seq2seq(label_smoothing: Fraction = 0.0, start: str = 'eos') -> Declared:
  """Prediction of the target texts of `data.rows='parallel'`.

  Args:
    label_smoothing: share of each label that all tokens have alike (section
      5.4: 0.1).
    start: the token that the decoder starts with, 'pad' (T5, Marian) or 'eos'
      (BART).
  """
  check_start(start)

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    # Without a tokenizer batches are made for their shapes alone.
    first_id = sides.start_id(start, tokenizer.special) if tokenizer else 0

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      del keys
      return parallel_batch(rows, first_id)

    return encoder_decoder.objective(
      model, make_batch, label_smoothing=label_smoothing
    )

  needs = Needs(
    attention='causal', encoder=True, starts=start, rows=('parallel',)
  )
  return Declared(needs, build)


def check_start(start: str) -> None:
  """Checks the argument `start` of an objective.

  Raises:
    UsageError: it is unknown.
  """
  if start not in sides.STARTS:
    raise UsageError(
      f'objective.name: start={start!r}: unknown; one of '
      + ', '.join(sides.STARTS)
    )


def parallel_batch(rows: Rows, first_id: int) -> dict[str, np.ndarray]:
  """The batch of rows that have both sides.

  Args:
    rows: with a source.
    first_id: what the decoder reads before the first token of a text.
  """
  source = rows.source
  assert source is not None, 'see Needs.rows'
  batch = {
    'sources': source.tokens,
    'source_mask': source.real,
    'inputs': sides.decoder_inputs(rows.tokens, first_id, rows.positions),
    'targets': rows.tokens,
    'weights': rows.real.astype(np.float32),
  }
  if rows.segments is not None and rows.positions is not None:
    assert source.segments is not None and source.positions is not None
    batch |= {
      'source_segments': source.segments,
      'source_positions': source.positions,
      'segments': rows.segments,
      'positions': rows.positions,
    }
  return batch
