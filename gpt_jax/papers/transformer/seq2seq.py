# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predicting a target from a source text (the Transformer, 2017, section 5).

objective.name = 'seq2seq(label_smoothing=0.1)'
"""

from dataclasses import dataclass

import jax
import numpy as np

from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, TextObjective
from gpt_jax.core.objectives.cross_entropy import Scores, accuracy, token_loss
from gpt_jax.core.objectives.loss import Batch, Loss, Params
from gpt_jax.core.ranges import Fraction
from gpt_jax.core.rows import sides
from gpt_jax.core.rows.rows import Keys, Rows

# The loss of encoder-decoders:
#
#   L = -sum_t log P(y_t | y_<t, x)        (Sutskever et al., 2014, equation 1)
#
# A batch has `sources`, `source_mask` [B, M], `inputs`, `targets`, `weights`
# [B, L], and if rows are packed `source_segments`, `source_positions` [B, M],
# `segments`, `positions` [B, L]: see `rows.sides`.


class EncoderDecoder(TextObjective):
  """Base of objectives that predict a decoder's targets from a source.

  Attributes:
    start: the token that the decoder starts with, 'pad' (T5, Marian) or 'eos'
      (BART).
    label_smoothing: label mass spread evenly over the vocabulary; only in
      training, neither reported nor evaluated.
  """

  start: sides.Start
  label_smoothing: Fraction = 0.0

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, 'seq2seq')

  @property
  def first_id(self) -> int:
    """The decoder's start token; 0 in batches made for their shapes only."""
    tokenizer = self.tokenizer
    return sides.start_id(self.start, tokenizer.special) if tokenizer else 0

  def loss_of_states(
    self, params: Params, hidden_BLD: jax.Array, batch: Batch, *, evaluating: bool
  ) -> Loss:
    """Cross-entropy with the target text."""
    scores = forward.scores(self.model, params, hidden_BLD)
    targets = batch['targets'], batch['weights']
    smoothing = 0.0 if evaluating else self.label_smoothing
    return written_loss(scores, *targets, smoothing, evaluating=evaluating)


def written_loss(
  scores: Scores,
  targets: jax.Array,
  weights: jax.Array,
  label_smoothing: float,
  *,
  evaluating: bool,
) -> Loss:
  """The loss of the targets; in evaluation, their token accuracy too."""
  found = token_loss(scores, targets, weights, smoothing=label_smoothing)
  if not evaluating:
    return found
  share = accuracy(scores, targets, weights)
  return found._replace(metrics={'objective/token_accuracy': share})


@dataclass(frozen=True)
class Seq2Seq(EncoderDecoder):
  """Prediction of the target texts of `data.rows='parallel'`.

  Attributes:
    label_smoothing: 0.1 in section 5.4.
    start: see `EncoderDecoder`.
  """

  label_smoothing: Fraction = 0.0
  start: sides.Start = 'eos'

  @property
  def needs(self) -> Needs:
    """An encoder-decoder, and pairs of texts."""
    return Needs(encoder=True, decoder_start=self.start, rows=('parallel',))

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Both sides of the rows; nothing is random."""
    del keys
    return parallel_batch(rows, self.first_id)


def parallel_batch(rows: Rows, first_id: int) -> dict[str, np.ndarray]:
  """The batch of rows of pairs.

  Args:
    rows: with sources.
    first_id: the decoder's input before the first token of a text.
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
