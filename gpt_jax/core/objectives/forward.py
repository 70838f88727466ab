# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a batch: what every objective does with its model.

`read` makes the input of tokens, `init` random parameters, `states` runs the
model up to its last hidden states, and `scores` gives the inputs of the logits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn import activations
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.router_stats import router_stats
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import Caches
from gpt_jax.core.nn.transformer import Output, Transformer
from gpt_jax.core.objectives.cross_entropy import Scores
from gpt_jax.core.objectives.loss import Batch, LayerStats, Params
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer


def read(model: Transformer, tokenizer: Tokenizer | None, tokens: np.ndarray) -> np.ndarray:
  """What a model reads of tokens [...]: their ids, or as `input.reader` says.

  On the host. Without a tokenizer it has the right shape only.
  """
  reader = ModelChoices.of(model).input.reader
  return reader.read(tokenizer, tokens) if reader else tokens


def init(model: Transformer, key: jax.Array) -> Params:
  """Random parameters with logical axes.

  Initialised on one token: no shape depends on the row's length.
  """
  params: Any = model.init(key, jnp.zeros((1, 1), jnp.int32))['params']
  return params


def apply(
  model: Transformer,
  params: Params,
  row: Row,
  key: jax.Array | None,
  *,
  caches: Caches | None = None,
  sow: tuple[str, ...] = (),
) -> tuple[Output, dict[str, Any]]:
  """Runs the model; returns its output and the collections that it sows.

  Args:
    params: may contain other models' parameters.
    key: for dropout; None: no dropout.
    sow: collections besides those of `stats`.
  """
  result: Any = model.apply(
    {'params': params},
    row,
    caches,
    rngs={} if key is None else {'dropout': key},
    mutable=['router', *[activations.SOWN] * activations.is_asked(), *sow],
  )
  return result


def states(
  model: Transformer, params: Params, batch: Batch, key: jax.Array | None, **extra: jax.Array
) -> tuple[jax.Array, dict[str, LayerStats]]:
  """The last states [B, L, D] of a batch, and what its layers report.

  Args:
    model: a decoder, an encoder or an encoder-decoder.
    params: may contain other models' parameters.
    key: for dropout; None: no dropout.
    **extra: of `Row.extra`.
  """
  out, sown = apply(model, params, model.row(batch, **extra), key)
  return out.hidden_BLD, stats(sown)


def stats(sown: dict[str, Any]) -> dict[str, LayerStats]:
  """What the layers of each stack report, by `router/STACK`, `activations/STACK`."""
  found: dict[str, LayerStats] = {
    f'router/{stack}': x for stack, x in router_stats(sown.get('router', {})).items()
  }
  measured = activations.of_stacks(sown.get(activations.SOWN, {}))
  return found | {f'{activations.SOWN}/{stack}': x for stack, x in measured.items()}


def at_chosen(hidden_BLD: jax.Array, batch: Batch) -> jax.Array:
  """The states of the chosen tokens, [B, P, D]."""
  positions = batch['masked_positions'][..., None]
  return jnp.take_along_axis(hidden_BLD, positions, axis=1)


def check_scores(model: Transformer, objective: str, *, field: str = 'model') -> None:
  """Rejects an adaptive softmax, which has no single output table."""
  if ModelChoices.of(model).output.softmax:
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
