# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A target text from a source text (the Transformer, 2017, section 5).

objective.name = 'seq2seq(label_smoothing=0.1)'
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
  Text,
)
from gpt_jax.objectives.cross_entropy import (
  num_right,
  penalised_cross_entropy,
)
from gpt_jax.ranges import Fraction
from gpt_jax.rows import sides
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.tokenizers.tokenizer import Tokenizer

# The loss of what a decoder writes after an encoder has read its source.
#
#   L = -sum_t log P(y_t | y_<t, x)        (Sutskever et al., 2014, equation 1)
#
# A batch has `sources`, `source_mask` [B, M], `inputs`, `targets`, `weights`
# [B, L], and where rows are packed `source_segments`, `source_positions` [B,
# M], `segments`, `positions` [B, L]: see `rows.sides`.


def objective(
  model: Transformer,
  make_batch: Callable[[Rows, Keys], dict[str, np.ndarray]],
  *,
  label_smoothing: float = 0.0,
) -> Objective:
  """The objective of an encoder-decoder whose batches `make_batch` makes.

  Args:
    model: with an encoder.
    label_smoothing: see `cross_entropy.penalised_cross_entropy`; in training
      alone, and neither reported nor evaluated.
  """
  forward.check_scores(model, 'seq2seq')

  def of_states(
    params: Params, hidden_BLD: jax.Array, batch: Batch, evaluating: bool
  ) -> Loss:
    chosen = forward.scores(model, params, hidden_BLD)
    targets = batch['targets'], batch['weights']
    smoothing = 0.0 if evaluating else label_smoothing
    return written_loss(chosen, *targets, smoothing, evaluating=evaluating)

  text = Text(
    of_states,
    chosen=lambda hidden_BLD, batch: hidden_BLD,
    counted=lambda batch: batch['weights'],
    real=lambda batch: batch['weights'],
  )
  return Objective(
    make_batch,
    partial(forward.init, model),
    forward.loss_of(model, of_states),
    text=text,
  )


def written_loss(
  chosen: forward.Scores,
  targets: jax.Array,
  weights: jax.Array,
  label_smoothing: float,
  *,
  evaluating: bool,
) -> Loss:
  """The loss of what is to be written; in evaluation, how much is right."""
  hidden, table_VD, softcap = chosen
  scored = hidden, table_VD, targets, weights
  sums: Any = penalised_cross_entropy(*scored, 0.0, softcap, label_smoothing)
  weight, metrics = jnp.sum(weights), None
  if evaluating:
    accuracy = Mean(num_right(*scored), weight)
    metrics = {'objective/token_accuracy': accuracy}
  return Loss(sums.total, weight, sums.penalty, metrics)


def seq2seq(
  label_smoothing: Fraction = 0.0, start: sides.Start = 'eos'
) -> Declared:
  """Prediction of the target texts of `data.rows='parallel'`.

  Args:
    label_smoothing: share of each label that all tokens have alike (section
      5.4: 0.1).
    start: the token that the decoder starts with, 'pad' (T5, Marian) or 'eos'
      (BART).
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    # Without a tokenizer batches are made for their shapes alone.
    first_id = sides.start_id(start, tokenizer.special) if tokenizer else 0

    def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
      del keys
      return parallel_batch(rows, first_id)

    return objective(model, make_batch, label_smoothing=label_smoothing)

  needs = Needs(
    attention='causal', encoder=True, starts=start, rows=('parallel',)
  )
  return Declared(needs, build)


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
