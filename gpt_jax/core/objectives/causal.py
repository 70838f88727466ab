# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: L1(U) = sum_i log P(u_i | u_<i) (GPT-1, eq. 1)."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.zigzag import zigzag_places
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, TextObjective
from gpt_jax.core.objectives.cross_entropy import CHUNK_LOGITS, chunked, token_loss
from gpt_jax.core.objectives.loss import Batch, Loss, Params
from gpt_jax.core.ranges import Weight
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError


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
    return ModelChoices.of(self.model).output.softmax is not None

  def check(self) -> None:
    """Rejects z-loss with an adaptive softmax, which has several Z."""
    if self._adaptive and self.z_loss:
      raise UsageError(
        f'objective.name: z_loss={self.z_loss}: an adaptive softmax has '
        'several normalisers; leave it out, or change model.output'
      )

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    del keys
    return make_batch(rows)

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """As of every objective on text; permutes the tokens of split rows.

    Where the mesh splits rows, tokens are in the order of the device ring.
    Inputs and targets are permuted alike, so the loss is the same sum.
    """
    places = zigzag_places(self.model, batch['inputs'].shape)
    if places is not None:
      batch = {name: x[:, places] for name, x in batch.items()}
      batch['places'] = jnp.asarray(places)[None]
    return super().loss(params, batch, key)

  def loss_of_states(
    self, params: Params, hidden_BLD: jax.Array, batch: Batch, *, evaluating: bool
  ) -> Loss:
    """Cross-entropy with each token's target."""
    targets = batch['targets'], batch['weights']
    if not self._adaptive:
      scores = forward.scores(self.model, params, hidden_BLD)
      return token_loss(scores, *targets, z_loss=0.0 if evaluating else self.z_loss)

    # An adaptive softmax has several tables. As `map_logits`, a chunk of
    # positions at a time.
    @jax.checkpoint
    def add(total, chunk):
      hidden_PND, targets_PN, weights_PN = chunk
      nll_PN: Any = self.model.apply({'params': params}, hidden_PND, targets_PN, method='nll')
      return total + jnp.sum(nll_PN * weights_PN), None

    chunks = chunked(self.model.vocab_size, hidden_BLD, *targets)
    total = jax.lax.scan(add, jnp.float32(0), chunks)[0]
    return Loss(total, jnp.sum(batch['weights']), jnp.zeros(()))


@dataclass(frozen=True)
class Target(Causal):
  """Next-token prediction of the targets whose weight is not 0.

  Attributes:
    length: targets in a row.
  """

  length: int = field(kw_only=True)

  @property
  def needs(self) -> Needs:
    """A decoder; batches come from the task."""
    return Needs(rows=())

  @property
  def example(self) -> dict[str, np.ndarray]:
    zeros = np.zeros((1, self.length), np.int32)
    weights = zeros.astype(np.float32)
    return {'inputs': zeros, 'targets': zeros, 'weights': weights}

  def outputs(self, params: Params, batch: Batch) -> jax.Array:
    """[B, 3]: -log P, number of tokens, and whether all are most likely."""
    model, variables = self.model, {'params': params}
    out: Any = model.apply(variables, batch['inputs'])

    def at(place):
      hidden_BD, targets_B = place
      logits: Any = model.apply(variables, hidden_BD, method='logits')
      log_probs = jax.nn.log_softmax(logits, axis=-1)
      nll = -jnp.take_along_axis(log_probs, targets_B[:, None], axis=-1)[:, 0]
      return nll, jnp.argmax(logits, axis=-1) == targets_B

    # A few positions at a time: all logits would not fit in memory.
    places = jnp.swapaxes(out.hidden_BLD, 0, 1), batch['targets'].T
    chunk = CHUNK_LOGITS // (len(batch['targets']) * model.vocab_size)
    nll, right = jax.lax.map(at, places, batch_size=max(chunk, 1))
    counts = batch['weights'].T > 0
    nll_B = jnp.sum(jnp.where(counts, nll, 0), axis=0)
    columns = nll_B, jnp.sum(counts, axis=0), jnp.all(right | ~counts, axis=0)
    return jnp.stack([x.astype(jnp.float32) for x in columns], axis=1)
