# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: L1(U) = sum_i log P(u_i | u_<i) (GPT-1, eq. 1)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn.build import zigzag_places
from gpt_jax.nn.heads import OUTPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Needs,
  Objective,
  Params,
  Text,
)
from gpt_jax.objectives.cross_entropy import (
  Sums,
  chunked,
  penalised_cross_entropy,
)
from gpt_jax.ranges import Weight
from gpt_jax.rows.rows import Keys, Rows
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer


def make_batch(rows: Rows, keys: Keys | None = None) -> dict[str, np.ndarray]:
  """Each token predicts the next; nothing is random."""
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


def causal(z_loss: Weight = 0.0) -> Declared:
  """Next-token prediction with the mean taken over all tokens that count.

  Args:
    z_loss: factor of log(Z)^2, which is added in training (PaLM, section 5:
      1e-4). Neither the reported nor the evaluated loss has it.
  """

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    del tokenizer
    adaptive = spec.build('model.output', model.output, OUTPUTS).own is not None
    if adaptive and z_loss:
      raise UsageError(
        f'objective.name: z_loss={z_loss}: an adaptive softmax has several '
        'normalisers; leave it out, or change model.output'
      )

    def of_states(
      params: Params, hidden_BLD: jax.Array, batch: Batch, evaluating: bool
    ) -> Loss:
      if adaptive:
        total = _adaptive(model, params, hidden_BLD, batch)
        penalty = jnp.zeros(())
      else:
        factor = 0.0 if evaluating else z_loss
        total, penalty = _plain(model, params, hidden_BLD, batch, factor)
      return Loss(total, jnp.sum(batch['weights']), penalty)

    of_batch = forward.loss_of(model, of_states)

    def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
      return of_batch(params, _for_devices(model, batch), key)

    text = Text(
      of_states,
      chosen=lambda hidden_BLD, batch: hidden_BLD,
      counted=lambda batch: batch['weights'],
      real=lambda batch: batch['weights'],
    )
    return Objective(
      make_batch,
      partial(forward.init, model),
      loss,
      every_token=True,
      text=text,
    )

  return Declared(Needs(), build)


def _for_devices(model: Transformer, batch: Batch) -> Batch:
  """The batch with its tokens in the order that the devices have them in.

  Inputs and targets alike, so that the loss is the same sum.
  """
  places = zigzag_places(model, batch['inputs'].shape[1])
  if places is None:
    return batch
  batch = {name: x[:, places] for name, x in batch.items()}
  return {**batch, 'places': jnp.asarray(places)[None]}


def _plain(
  model: Transformer,
  params: Params,
  hidden_BLD: jax.Array,
  batch: Batch,
  z_loss: float,
) -> Sums:
  """The cross-entropy of a softmax over the whole vocabulary."""
  hidden, table_VD, softcap = forward.scores(model, params, hidden_BLD)
  sums: Any = penalised_cross_entropy(
    *(hidden, table_VD, batch['targets'], batch['weights'], z_loss, softcap)
  )
  return sums


def _adaptive(
  model: Transformer, params: Params, hidden_BLD: jax.Array, batch: Batch
) -> jax.Array:
  """The same of an adaptive softmax, which has no one table.

  A chunk of positions at a time, as `penalised_cross_entropy`; here the
  backward pass computes a chunk's scores once more.
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
