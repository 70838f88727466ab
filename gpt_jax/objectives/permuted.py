# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prediction of tokens in a random order (XLNet, Yang et al. 2019).

  L = mean over the chosen tokens z_t, t > c, of -log p(x_{z_t} | x_{z_<t})
    p = softmax(e(x)^T g_theta(x_{z_<t}, z_t))            (equations 3, 4 and 5)

Only the last tokens of an order z are predicted (section 2.3), a fixed number a
row, and the second stream g has these alone. The order is a mask: tokens and
their positions stay as they are. Of a row of several segments each later one
has the first ones' content stream in its memory (section 2.4).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax import spec
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.nn import moe
from gpt_jax.nn.caches import init_memories
from gpt_jax.nn.embed import INPUTS
from gpt_jax.nn.positions import POSITIONS
from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives import scores
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Needs,
  Objective,
  Params,
  Scored,
)
from gpt_jax.objectives.causal import add_routers
from gpt_jax.objectives.masked import masked_loss
from gpt_jax.objectives.permutation import Permutation
from gpt_jax.ranges import Count
from gpt_jax.spec import UsageError


def permuted(
  context: Count = 6,
  longest: Count = 5,
  block: Count = 256,
  segments: Count = 1,
) -> Declared:
  """XLNet's pre-training.

  Args:
    context: K: one token of so many is predicted (the paper's base: 6 or 7).
    longest: choose up to so many words in a row, n with probability
      proportional to 1 / n (section 2.5: 5).
    block: so many tokens are ordered together, and blocks one after the other.
    segments: a row is read in so many parts of the same length, each with the
      memory of those before, which `model.position` has to have.
  """
  permutation = Permutation.of(context, longest, block)

  def places(length: int) -> int:
    return segments * permutation.places(length // segments)

  needs = Needs(
    attention='bidirectional',
    rows=('stream', 'halves') if segments == 1 else ('stream',),
    scored=Scored(places, lambda length: 0),
    asked=places,
  )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    _check(model, segments)
    return _objective(model, tokenizer, permutation, segments)

  return Declared(needs, build)


def _check(model: Transformer, segments: int) -> None:
  """Refuses a model without what is trained.

  Raises:
    UsageError: it has no second stream, or no memory where one is needed.
  """
  name = 'objective.name=permuted'
  if not spec.build('model.input', model.input, INPUTS).queries:
    raise UsageError(
      f'model.input={model.input!r}: {name} predicts by a second stream; set '
      "model.input='tokens(queries=True)'"
    )
  position = spec.build('model.position', model.position, POSITIONS)
  if not position.segments:
    raise UsageError(
      f'model.position={model.position!r}: {name} knows places by distances '
      "alone; set model.position='xlnet'"
    )
  if segments > 1 and not position.memory:
    raise UsageError(
      f'model.position={model.position!r}: {name} with segments={segments} '
      "keeps a memory; set model.position='xlnet(memory=384)'"
    )


def _objective(
  model: Transformer,
  tokenizer: Tokenizer | None,
  permutation: Permutation,
  segments: int,
) -> Objective:
  """See `permuted`; without a tokenizer it makes empty batches only."""

  def make_batch(rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    L = rows.tokens.shape[1]
    if L % segments:
      raise UsageError(
        f'objective.name: segments={segments} do not divide a row of {L} '
        'tokens; change model.context_length or batch.length'
      )
    starts = np.ones(rows.tokens.shape, bool)
    if tokenizer is not None:
      starts = tokenizer.word_starts(rows.tokens)
    found = permutation(rows, keys, starts, segments)
    batch = {'inputs': rows.tokens, 'mask': rows.real, **found}
    if rows.token_types is not None:
      batch['token_types'] = rows.token_types
    return batch

  def init(key: jax.Array) -> Params:
    params: Any = model.init(key, jnp.zeros((1, 1), jnp.int32))['params']
    return params

  def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    states_BPD, sown = predictions(model, params, batch, key, segments)
    chosen = scores.of_states(model, params, states_BPD)
    found = masked_loss(chosen, batch, evaluating=key is None)
    return add_routers(found, sown, training=key is not None)

  return Objective(make_batch, init, loss)


def visible(ranks_BL: jax.Array, of_targets_BP: jax.Array) -> jax.Array:
  """Which tokens each token, then each prediction, sees: [B, L + P, L].

  Args:
    ranks_BL: see `permutation`.
    of_targets_BP: those of the predicted tokens.
  """
  content_BLM = ranks_BL[:, None] <= ranks_BL[..., None]
  query_BPM = ranks_BL[:, None] < of_targets_BP[..., None]
  return jnp.concatenate([content_BLM, query_BPM], axis=1)


def predictions(
  model: Transformer,
  params: Params,
  batch: Batch,
  key: jax.Array | None,
  segments: int = 1,
) -> tuple[jax.Array, dict[str, moe.Stats]]:
  """The last states of the second stream [B, P, D], and what routers say.

  Args:
    model: with a second stream.
    params: its parameters.
    batch: of the objective.
    key: of dropout; None: there is none.
    segments: see `permuted`; the places of a batch are in their order.
  """
  B, L = batch['inputs'].shape
  caches = init_memories(model, B) if segments > 1 else None
  length, P = L // segments, batch['masked_positions'].shape[1] // segments
  states, stats = [], {}
  for nth in range(segments):
    part = slice(nth * length, (nth + 1) * length)
    asked_BP = batch['masked_positions'][:, nth * P : (nth + 1) * P]
    asked_BP = asked_BP - nth * length
    ranks_BL = batch['ranks'][:, part]
    of_targets_BP = jnp.take_along_axis(ranks_BL, asked_BP, axis=1)
    types_BL = batch.get('token_types')
    of_part = None if key is None else jax.random.fold_in(key, nth)
    result: Any = model.apply(
      {'params': params},
      batch['inputs'][:, part],
      caches=caches,
      mask_BL=batch['mask'][:, part],
      token_types_BL=None if types_BL is None else types_BL[:, part],
      visible_BLM=visible(ranks_BL, of_targets_BP),
      asked_BP=asked_BP,
      rngs={} if of_part is None else {'dropout': of_part},
      mutable=['router'],
    )
    out, sown = result
    states.append(out.hidden_BLD[:, length:])
    caches = out.caches if segments > 1 else None
    found = moe.layer_stats(sown.get('router', {}))
    stats = jax.tree.map(jnp.add, stats, found) if stats else found
  return jnp.concatenate(states, axis=1), stats
