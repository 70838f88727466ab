# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a batch: what every objective does with its model.

`read` makes the input of tokens, `init` random parameters, `states` runs the
model up to its last hidden states, `scores` gives the inputs of the logits, and
`add_routers` completes the loss.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn import layers, moe
from gpt_jax.nn.build import ModelChoices
from gpt_jax.nn.transformer import Output, Transformer
from gpt_jax.objectives.cross_entropy import Scores
from gpt_jax.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers import characters
from gpt_jax.tokenizers.tokenizer import Tokenizer

# Arrays of a batch -> arguments of `Transformer`.
_READ = {
  'positions': 'positions_BL',
  'mask': 'mask_BL',
  'segments': 'segments_BL',
  'token_types': 'token_types_BL',
  'order': 'order',
  'prefix': 'prefix_B',
  'places': 'places_1L',
  'cuts': 'cuts_BL',
  'sources': 'encoder_tokens_BM',
  'source_mask': 'encoder_mask_BM',
  'source_segments': 'encoder_segments_BM',
  'source_positions': 'encoder_positions_BM',
}


def read(
  model: Transformer, tokenizer: Tokenizer | None, tokens: np.ndarray
) -> np.ndarray:
  """What a model reads of tokens [...]: ids, or characters [..., C].

  On the host. Without a tokenizer characters have their shape only.
  """
  own = ModelChoices.of(model).input.characters
  if own is None:
    return tokens
  if tokenizer is None:
    return np.zeros((*tokens.shape, own.length), np.int16)
  return characters.table(tokenizer, own.num_characters, own.length)[tokens]


def init(model: Transformer, key: jax.Array) -> Params:
  """Random parameters with logical axes.

  Initialised on one token: no shape depends on the row's length.
  """
  params: Any = model.init(key, jnp.zeros((1, 1), jnp.int32))['params']
  return params


def apply(
  model: Transformer,
  params: Params,
  tokens_BL: jax.Array,
  key: jax.Array | None,
  *,
  sow: tuple[str, ...] = (),
  **arrays: Any,
) -> tuple[Output, dict[str, Any]]:
  """Runs the model; returns its output and the collections that it sows.

  Args:
    params: may contain other models' parameters.
    tokens_BL: token ids.
    key: for dropout; None: no dropout.
    sow: collections besides 'router'.
    **arrays: arguments of `Transformer`.
  """
  result: Any = model.apply(
    {'params': params},
    tokens_BL,
    **arrays,
    rngs={} if key is None else {'dropout': key},
    mutable=['router', *sow],
  )
  return result


def states(
  model: Transformer, params: Params, batch: Batch, key: jax.Array | None
) -> tuple[jax.Array, dict[str, moe.Stats]]:
  """The last states [B, L, D] of a batch, and router statistics by stack.

  Args:
    model: a decoder, an encoder or an encoder-decoder.
    params: may contain other models' parameters.
    batch: `inputs` int32 [B, L], and optionally the arrays in `_READ`.
    key: for dropout; None: no dropout.
  """
  given = arguments(batch)
  out, sown = apply(model, params, batch['inputs'], key, **given)
  return out.hidden_BLD, routers(sown)


def arguments(batch: Batch) -> dict[str, Any]:
  """The arrays of a batch that `Transformer` reads, beside the tokens."""
  return {_READ[name]: x for name, x in batch.items() if name in _READ}


def routers(sown: dict[str, Any]) -> dict[str, moe.Stats]:
  """The router statistics of each stack."""
  return moe.layer_stats(sown.get('router', {}))


def at_chosen(hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
  """The states of the chosen tokens, [B, P, D]."""
  positions = batch['masked_positions'][..., None]
  return jnp.take_along_axis(hidden_BLD, positions, axis=1)


def check_scores(
  model: Transformer, objective: str, *, field: str = 'model'
) -> None:
  """Rejects an adaptive softmax, which has no single output table."""
  if ModelChoices.of(model).output.own is not None:
    raise UsageError(
      f'{field}.output={model.output!r}: objective.name={objective} scores '
      'the whole vocabulary; take tied or untied'
    )


def scores(model: Transformer, params: Params, hidden_BLD: jax.Array) -> Scores:
  """The inputs of the logits, from a model's last states [B, L, D]."""
  variables = {'params': params}
  table_VD: Any = model.apply(variables, method='output_table')
  hidden: Any = model.apply(variables, hidden_BLD, method='output_hidden')
  return Scores(hidden, table_VD, model.output_softcap)


def add_routers(
  loss: Loss, routers: dict[str, moe.Stats], *, training: bool
) -> Loss:
  """Adds the routers' metrics and, in training, their penalty to the loss."""
  total, weight, penalty, metrics, added = loss
  # Replicas have equally many rows, but not equally many tokens that count. A
  # mean over all their rows gets the mean weight in each replica.
  weight = layers.over_replicas(weight)
  if training:
    for stats in routers.values():
      # Routers also see tokens that do not count in the loss. The factor
      # `weight` makes the micro-batches' penalties add up like their losses.
      cost = weight * jnp.sum(stats.penalty)
      total, penalty = total + cost, penalty + cost
  more = {
    f'router/{stack}/{name}': Mean(weight * value, weight)
    for stack, stats in routers.items()
    for name, value in stats._asdict().items()
  }
  return Loss(total, loss.weight, penalty, {**(metrics or {}), **more}, added)
