# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a batch: what every objective does with its model.

`init` gives first parameters, `states` the last hidden states of a batch,
`scores` what scores the vocabulary, and `add_routers` completes the loss.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn import layers, moe
from gpt_jax.nn.heads import OUTPUTS
from gpt_jax.nn.transformer import Output, Transformer
from gpt_jax.objectives.loss import Batch, Loss, Mean, Params
from gpt_jax.spec import UsageError

# Arrays of a batch, and which argument of `Transformer` each one is.
_READ = {
  'positions': 'positions_BL',
  'mask': 'mask_BL',
  'segments': 'segments_BL',
  'token_types': 'token_types_BL',
  'visible': 'visible_BLM',
  'prefix': 'prefix_B',
  'places': 'places_1L',
  'sources': 'encoder_tokens_BM',
  'source_mask': 'encoder_mask_BM',
  'source_segments': 'encoder_segments_BM',
  'source_positions': 'encoder_positions_BM',
}


class Scores(NamedTuple):
  """Their product are the logits: too many to hold at once.

  Attributes:
    hidden_BLD: the last states, as the output layer takes them.
    softcap: see `model.output`.
  """

  hidden_BLD: jax.Array
  table_VD: jax.Array
  softcap: float


def init(model: Transformer, key: jax.Array) -> Params:
  """Random parameters with logical axes; no shape depends on the row."""
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
  """What the model returns, and what it sows: 'router' and the rest of `sow`.

  Args:
    params: its parameters, maybe among others.
    tokens_BL: what it reads.
    key: of dropout; None: there is none.
    sow: further collections.
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
  """The last states [B, L, D] of a batch, and what routers say.

  Args:
    model: a decoder, an encoder or an encoder-decoder.
    params: its parameters, maybe among others.
    batch: `inputs` int32 [B, L], and of `_READ` what it has.
    key: of dropout; None: there is none.
  """
  arrays: dict[str, Any] = {
    _READ[name]: x for name, x in batch.items() if name in _READ
  }
  out, sown = apply(model, params, batch['inputs'], key, **arrays)
  return out.hidden_BLD, routers(sown)


def routers(sown: dict[str, Any]) -> dict[str, moe.Stats]:
  """What the routers of each stack say."""
  return moe.layer_stats(sown.get('router', {}))


def at_chosen(hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
  """The states of the chosen tokens, [B, P, D]."""
  positions = batch['masked_positions'][..., None]
  return jnp.take_along_axis(hidden_BLD, positions, axis=1)


def check_scores(
  model: Transformer, objective: str, *, field: str = 'model'
) -> None:
  """Refuses an adaptive softmax, which has no one table of scores."""
  output = f'{field}.output'
  if spec.build(output, model.output, OUTPUTS).own is not None:
    raise UsageError(
      f'{output}={model.output!r}: objective.name={objective} scores the whole '
      'vocabulary; take tied or untied'
    )


def scores(model: Transformer, params: Params, hidden_BLD: jax.Array) -> Scores:
  """What scores the vocabulary, of a model's last states [B, L, D]."""
  variables = {'params': params}
  table_VD: Any = model.apply(variables, method='output_table')
  hidden: Any = model.apply(variables, hidden_BLD, method='output_hidden')
  return Scores(hidden, table_VD, model.output_softcap)


def add_routers(
  loss: Loss, routers: dict[str, moe.Stats], *, training: bool
) -> Loss:
  """The loss with what the routers of experts say, and in training cost."""
  total, weight, penalty, metrics, added = loss
  # Replicas have as many rows each, but not as many tokens that count: what
  # was a mean over all of their rows has the mean weight in each.
  weight = layers.over_replicas(weight)
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
