# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: L1(U) = sum_i log P(u_i | u_<i) (GPT-1, eq. 1)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.build import ModelChoices, zigzag_places
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import Needs, TextObjective
from gpt_jax.objectives.cross_entropy import (
  Sums,
  chunked,
  penalised_cross_entropy,
)
from gpt_jax.objectives.loss import Batch, Loss, Params
from gpt_jax.ranges import Weight
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError


def make_batch(rows: Rows, keys: Keys | None = None) -> dict[str, np.ndarray]:
  """Inputs, targets and weights of next-token prediction; nothing is random."""
  del keys
  assert rows.before is not None, 'see Needs.rows'
  batch = {
    'inputs': np.column_stack([rows.before, rows.tokens[:, :-1]]),
    'targets': rows.tokens,
    'weights': rows.real.astype(np.float32),
  }
  if rows.segments is not None and rows.positions is not None:
    batch |= {'segments': rows.segments, 'positions': rows.positions}
  return batch


@dataclass(frozen=True)
class Causal(TextObjective):
  """Next-token prediction, averaged over all tokens that count.

  Attributes:
    z_loss: factor of log(Z)^2, which is added in training (PaLM, section 5:
      1e-4), but neither reported nor evaluated.
  """

  z_loss: Weight = 0.0
  every_token = True

  @property
  def needs(self) -> Needs:
    """A decoder."""
    return Needs()

  @property
  def _adaptive(self) -> bool:
    return ModelChoices.of(self.model).output.own is not None

  def check(self) -> None:
    """Rejects z-loss with an adaptive softmax, which has several Z."""
    if self._adaptive and self.z_loss:
      raise UsageError(
        f'objective.name: z_loss={self.z_loss}: an adaptive softmax has '
        'several normalisers; leave it out, or change model.output'
      )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    """Inputs, targets and weights of next-token prediction."""
    del keys
    return make_batch(rows)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss of a batch whose tokens are in the order of the device ring.

    Inputs and targets are permuted alike, so the loss is the same sum.
    """
    places = zigzag_places(self.model, batch['inputs'].shape[1])
    if places is not None:
      batch = {name: x[:, places] for name, x in batch.items()}
      batch['places'] = jnp.asarray(places)[None]
    return super().loss(params, batch, key)

  def loss_of_states(
    self,
    params: Params,
    hidden_BLD: jax.Array,
    batch: Batch,
    *,
    evaluating: bool,
  ) -> Loss:
    """Cross-entropy with each token's target."""
    weight = jnp.sum(batch['weights'])
    if self._adaptive:
      total = _adaptive_cross_entropy(self.model, params, hidden_BLD, batch)
      return Loss(total, weight, jnp.zeros(()))
    hidden, table_VD, softcap = forward.scores(self.model, params, hidden_BLD)
    scored = hidden, table_VD, batch['targets'], batch['weights']
    factor = 0.0 if evaluating else self.z_loss
    sums: Sums = penalised_cross_entropy(*scored, factor, softcap)
    return Loss(sums.total, weight, sums.penalty)


def _adaptive_cross_entropy(
  model: Transformer, params: Params, hidden_BLD: jax.Array, batch: Batch
) -> jax.Array:
  """The summed cross-entropy of an adaptive softmax, which has several tables.

  Computed a chunk of positions at a time, as in `penalised_cross_entropy`, but
  the backward pass recomputes each chunk's scores.
  """

  @jax.checkpoint
  def of_chunk(params, chunk):
    hidden_PND, targets_PN, weights_PN = chunk
    nll_PN: Any = model.apply(
      {'params': params}, hidden_PND, targets_PN, method='nll'
    )
    return jnp.sum(nll_PN * weights_PN)

  def add(total, chunk):
    return total + of_chunk(params, chunk), None

  arrays = hidden_BLD, batch['targets'], batch['weights']
  chunks = chunked(model.vocab_size, *arrays)
  return jax.lax.scan(add, jnp.float32(0), chunks)[0]
