# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: L1(U) = sum_i log P(u_i | u_<i) (GPT-1, eq. 1)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.nn import dropout, moe, zigzag
from gpt_jax.nn.embed import OUTPUTS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores
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

    def init(key: jax.Array) -> Params:
      tokens = jnp.zeros((1, 1), jnp.int32)
      return model.init(key, tokens)['params']

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

    def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
      batch = _for_devices(model, batch)
      hidden_BLD, routers = states(model, params, batch, key)
      plain = of_states(params, hidden_BLD, batch, key is None)
      return add_routers(plain, routers, training=key is not None)

    text = Text(
      functools.partial(states, model),
      of_states,
      chosen=lambda hidden_BLD, batch: hidden_BLD,
      counted=lambda batch: batch['weights'],
      real=lambda batch: batch['weights'],
    )
    return Objective(make_batch, init, loss, every_token=True, text=text)

  return Declared(Needs(), build)


def states(
  model: Transformer, params: Params, batch: Batch, key: jax.Array | None
) -> tuple[jax.Array, dict[str, moe.Stats]]:
  """The last states [B, L, D] of a decoder, and what routers say.

  Args:
    model: the decoder.
    params: its parameters, maybe among others.
    batch: `inputs` int32 [B, L], and of some `positions`, `segments`, `mask`,
      `prefix` and `places` as `Transformer` takes them.
    key: of dropout; None: there is none.
  """
  result: Any = model.apply(
    {'params': params},
    batch['inputs'],
    batch.get('positions'),
    mask_BL=batch.get('mask'),
    segments_BL=batch.get('segments'),
    prefix_B=batch.get('prefix'),
    places_1L=batch.get('places'),
    rngs={} if key is None else {'dropout': key},
    mutable=['router'],
  )
  out, sown = result
  return out.hidden_BLD, moe.layer_stats(sown.get('router', {}))


def _for_devices(model: Transformer, batch: Batch) -> Batch:
  """The batch with its tokens in the order that the devices have them in.

  Inputs and targets alike, so that the loss is the same sum.
  """
  places = zigzag.places(model, batch['inputs'].shape[1])
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
  hidden, table_VD, softcap = scores.of_states(model, params, hidden_BLD)
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


def add_routers(
  loss: Loss, routers: dict[str, moe.Stats], *, training: bool
) -> Loss:
  """The loss with what the routers of experts say, and in training cost."""
  total, weight, penalty, metrics, added = loss
  # Replicas have as many rows each, but not as many tokens that count: what
  # was a mean over all of their rows has the mean weight in each.
  weight = dropout.over_replicas(weight)
  if training:
    for stats in routers.values():
      # Routers see tokens that do not count in the loss, too. By the weight
      # the micro-batches' means add up as their losses do.
      cost = weight * jnp.sum(stats.penalty)
      total, penalty = total + cost, penalty + cost
  more = {
    f'router/{stack}/{name}': Mean(weight * value, weight)
    for stack, stats in routers.items()
    for name, value in stats._asdict().items()
  }
  return Loss(total, loss.weight, penalty, {**(metrics or {}), **more}, added)
