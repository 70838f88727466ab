# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Next-token prediction with auxiliary losses (Al-Rfou et al. 2018, T64).

  L = sum over layers l of [ L_1(h_l) + weight sum_(k > 1) L_k(h_l) ]

L_k is the cross-entropy of the token k places on. All positions of a row are
predicted, not its last alone; layer l of n counts until l / (2n) of the run is
done, the last one always. Each layer has a classifier for each k, of which the
last layer's first is the model's output. What is reported and evaluated is that
one's loss.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from gpt_jax import spec
from gpt_jax.nn import moe
from gpt_jax.nn.heads import LayerClassifiers
from gpt_jax.nn.layers import INITS
from gpt_jax.nn.stack import layer_outputs
from gpt_jax.nn.transformer import DTYPES, Transformer
from gpt_jax.objectives import forward
from gpt_jax.objectives.base import (
  Batch,
  Declared,
  Loss,
  Mean,
  Needs,
  Objective,
  Params,
)
from gpt_jax.objectives.causal import causal
from gpt_jax.objectives.cross_entropy import penalised_cross_entropy
from gpt_jax.ranges import Count, Weight
from gpt_jax.spec import UsageError
from gpt_jax.tokenizers.tokenizer import Tokenizer


def auxiliary(
  positions: Literal['all', 'last'] = 'all',
  layers: Literal['all', 'last'] = 'all',
  targets: Count = 2,
  weight: Weight = 0.5,
) -> Declared:
  """Next-token prediction, with what helps a deep model of characters.

  Args:
    positions: of a row that are predicted in training: 'all', or the 'last'.
    layers: whose states predict in training: 'all' by the schedule, or the
      'last'.
    targets: how many of the following tokens each position predicts.
    weight: of those after the next.
  """
  if positions == 'last' and targets > 1:
    raise UsageError(
      f"objective.name: positions='last' with targets={targets}: what follows "
      "the last target of a row is not in it; set targets=1, or positions='all'"
    )

  def build(model: Transformer, tokenizer: Tokenizer | None) -> Objective:
    forward.check_scores(model, 'auxiliary')
    plain = causal()(model, tokenizer)
    assert plain.text is not None
    of_next, depth = plain.text.loss, model.num_layers
    inits = spec.build('model.init_weights', model.init_weights, INITS)(depth)
    sizes = model.vocab_size, model.d_model
    # How many classifiers there are for each k: the first is the last's.
    numbers = [depth if layers == 'all' else 1] * targets
    numbers[0] -= 1

    def init(key: jax.Array) -> Params:
      heads = {}
      for k, number in enumerate(numbers):
        if number:
          initializer = inits.output or inits.embedding
          made = LayerClassifiers((number, *sizes), initializer)
          drawn = made.init(jax.random.fold_in(key, k + 1))
          heads[f'target_{k + 1}'] = drawn['params']
      return {**plain.init(key), **({'heads': heads} if heads else {})}

    def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
      if key is None:
        return plain.loss(params, batch, None)
      states_NBLD, routers = states(model, params, batch, key)
      if positions == 'last':
        last_L = jnp.arange(batch['inputs'].shape[1])[::-1] == 0
        batch = {**batch, 'weights': batch['weights'] * last_L[None]}
      own = of_next(params, states_NBLD[-1], batch, False)
      added, metrics = jnp.float32(0), {}
      for k, number in enumerate(numbers):
        if not number:
          continue
        table_NVD = params['heads'][f'target_{k + 1}']['kernel']
        chosen = states_NBLD[:-1] if k == 0 else states_NBLD[-number:]
        active_N = is_active(jnp.max(batch['done']), depth)
        active_N = active_N[:-1] if k == 0 else active_N[-number:]
        losses_N, counted = further(
          chosen, table_NVD.astype(DTYPES[model.dtype]), active_N, batch, k
        )
        added += (weight if k else 1.0) * jnp.sum(losses_N)
        name, shown = f'objective/target_{k + 1}', losses_N[-1]
        metrics[f'{name}_loss'] = Mean(shown, counted * active_N[-1])
      found = Loss(own.sum + added, own.weight, added, metrics)
      return forward.add_routers(found, routers, training=True)

    return plain._replace(
      init=init, loss=loss, progress=with_progress, text=None
    )

  return Declared(Needs(rows=('stream',), progress=True), build)


def states(
  model: Transformer, params: Params, batch: Batch, key: jax.Array
) -> tuple[jax.Array, dict[str, moe.Stats]]:
  """The states of each layer [N, B, L, D], the last after the last norm."""
  out, sown = forward.apply(
    model, params, batch['inputs'], key, sow=('intermediates',)
  )
  below = layer_outputs(sown['intermediates'])[:-1]
  return jnp.stack([*below, out.hidden_BLD]), forward.routers(sown)


def is_active(done: jax.Array, num_layers: int) -> jax.Array:
  """Which layers still count, float32 [num_layers], 1 or 0.

  Args:
    done: share of the run that is done.
    num_layers: n; layer l, from 1 on, counts before l / (2n), the last always.
  """
  until_N = jnp.arange(1, num_layers + 1) / (2 * num_layers)
  until_N = until_N.at[-1].set(jnp.inf)
  return (done < until_N).astype(jnp.float32)


def further(
  states_NBLD: jax.Array,
  table_NVD: jax.Array,
  active_N: jax.Array,
  batch: Batch,
  k: int,
) -> tuple[jax.Array, jax.Array]:
  """Sums of the cross-entropy of layers, each with its classifier.

  Args:
    table_NVD: of their classifiers.
    active_N: 0 where a layer counts for nothing.
    batch: `targets` and `weights` [B, L].
    k: the targets are those so many places further on; what lies past the end
      of a row is left out.

  Returns:
    [N], and the sum of the weights.
  """
  L = batch['targets'].shape[1]
  moved = {
    name: jnp.pad(batch[name][:, k:], ((0, 0), (0, min(k, L))))
    for name in ('targets', 'weights')
  }
  weights_BL = moved['weights']
  if k:  # the position itself counts, too
    weights_BL *= batch['weights'] > 0

  def of_layer(_, layer):
    hidden_BLD, table_VD, active = layer
    sums: Any = penalised_cross_entropy(
      hidden_BLD, table_VD, moved['targets'], weights_BL * active, 0.0
    )
    return None, sums.total

  layers = states_NBLD, table_NVD, active_N
  return jax.lax.scan(of_layer, None, layers)[1], jnp.sum(weights_BL)


def with_progress(batch: Batch, done: jax.Array) -> Batch:
  """The batch with the share of the run that is done, in each row."""
  rows = jnp.ones(len(batch['inputs']), jnp.float32)
  return {**batch, 'done': rows * done}
