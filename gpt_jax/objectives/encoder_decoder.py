# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss of what a decoder writes after an encoder has read its source.

  L = -sum_t log P(y_t | y_<t, x)        (Sutskever et al., 2014, equation 1)

A batch has `sources`, `source_mask` [B, M], `inputs`, `targets`, `weights`
[B, L], and where rows are packed `source_segments`, `source_positions` [B, M],
`segments`, `positions` [B, L]: see `data.sides`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.nn import moe
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores
from gpt_jax.objectives.base import (
  Batch,
  Loss,
  Mean,
  Objective,
  Params,
  Text,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.cross_entropy import (
  num_right,
  penalised_cross_entropy,
)
from gpt_jax.spec import UsageError


def objective(
  model: Transformer,
  make_batch: Callable[[Rows, Keys], dict[str, np.ndarray]],
  *,
  label_smoothing: float = 0.0,
) -> Objective:
  """The objective of an encoder-decoder whose batches `make_batch` makes.

  Args:
    model: with an encoder.
    make_batch: see `Objective`.
    label_smoothing: see `cross_entropy.penalised_cross_entropy`; in training
      alone, and neither reported nor evaluated.

  Raises:
    UsageError: the output is adaptive.
  """
  if spec.build('model.output', model.output, OUTPUTS).own is not None:
    raise UsageError(
      f'model.output={model.output!r}: encoder-decoders are trained by scores '
      'of the whole vocabulary; take tied or untied'
    )

  def init(key: jax.Array) -> Params:
    return model.init(key, jnp.zeros((1, 1), jnp.int32))['params']

  def states(
    params: Params, batch: Batch, key: jax.Array | None
  ) -> tuple[jax.Array, dict[str, moe.Stats]]:
    return run(model, params, batch, key)

  def of_states(
    params: Params, hidden_BLD: jax.Array, batch: Batch, evaluating: bool
  ) -> Loss:
    chosen = scores.of_states(model, params, hidden_BLD)
    targets = batch['targets'], batch['weights']
    smoothing = 0.0 if evaluating else label_smoothing
    return written_loss(chosen, *targets, smoothing, evaluating=evaluating)

  def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    hidden_BLD, routers = states(params, batch, key)
    plain = of_states(params, hidden_BLD, batch, key is None)
    return add_routers(plain, routers, training=key is not None)

  text = Text(
    states,
    of_states,
    chosen=lambda hidden_BLD, batch: hidden_BLD,
    counted=lambda batch: batch['weights'],
    real=lambda batch: batch['weights'],
  )
  return Objective(make_batch, init, loss, text=text)


def run(
  model: Transformer, params: Params, batch: Batch, key: jax.Array | None
) -> tuple[jax.Array, dict[str, moe.Stats]]:
  """The decoder's last states [B, L, D], and what routers say.

  Args:
    model: an encoder-decoder.
    params: its parameters, maybe among others.
    batch: see above; `targets` and `weights` are not read.
    key: of dropout; None: there is none.
  """
  result: Any = model.apply(
    {'params': params},
    batch['inputs'],
    batch.get('positions'),
    segments_BL=batch.get('segments'),
    encoder_tokens_BM=batch['sources'],
    encoder_mask_BM=batch['source_mask'],
    encoder_segments_BM=batch.get('source_segments'),
    encoder_positions_BM=batch.get('source_positions'),
    rngs={} if key is None else {'dropout': key},
    mutable=['router'],
  )
  out, sown = result
  return out.hidden_BLD, moe.layer_stats(sown.get('router', {}))


def written_loss(
  chosen: scores.Scores,
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
