# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Next-token prediction with auxiliary losses (Al-Rfou et al. 2018, T64).

  L = sum over layers l of [ L_1(h_l) + weight sum_(k > 1) L_k(h_l) ]

L_k is the cross-entropy of the token k positions ahead. All positions of a row
are predicted, not only the last; layer l of n counts until l / (2n) of the run
is done, the last layer always. Each layer has one classifier per k; the last
layer's first classifier is the model's output, and only its loss is reported
and evaluated.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.nn.row import Row
from gpt_jax.core.nn.stack import layer_outputs
from gpt_jax.core.nn.transformer import DTYPES, Transformer
from gpt_jax.core.objectives import forward
from gpt_jax.core.objectives.base import Needs, Objective
from gpt_jax.core.objectives.causal import Causal
from gpt_jax.core.objectives.cross_entropy import penalised_cross_entropy
from gpt_jax.core.objectives.loss import RUN, Batch, LayerStats, Loss, Mean, Params
from gpt_jax.core.ranges import Count, Weight
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.papers.bert.task_heads import LayerClassifiers


@dataclass(frozen=True)
class Auxiliary(Objective):
  """Next-token prediction with the auxiliary losses of a deep character model.

  Attributes:
    positions: positions of a row that predict in training: 'all', or only the
      'last'.
    layers: layers that predict in training: 'all' by the schedule, or only the
      'last'.
    targets: number of following tokens that each position predicts.
    weight: weight of the tokens after the next one.
  """

  positions: Literal['all', 'last'] = 'all'
  layers: Literal['all', 'last'] = 'all'
  targets: Count = 2
  weight: Weight = 0.5
  every_token = True

  def __post_init__(self):
    """Checks that auxiliary targets go with positions='all'."""
    if self.positions == 'last' and self.targets > 1:
      raise UsageError(
        f"objective.name: positions='last' with targets={self.targets}: what "
        'follows the last target of a row is not in it; set targets=1, or '
        "positions='all'"
      )

  @property
  def needs(self) -> Needs:
    """A stream, and the fraction of the run that is done."""
    return Needs(rows=('stream',), progress=True)

  def check(self) -> None:
    """Rejects an adaptive softmax."""
    forward.check_scores(self.model, 'auxiliary')

  @functools.cached_property
  def _plain(self) -> Causal:
    return Causal().bind(self.model, self.tokenizer)

  @property
  def _num_classifiers(self) -> list[int]:
    """Number of classifiers per target; the output serves as one."""
    depth = self.model.num_layers
    numbers = [depth if self.layers == 'all' else 1] * self.targets
    return [numbers[0] - 1, *numbers[1:]]

  def make_batch(self, rows: Rows, keys: Keys) -> dict[str, np.ndarray]:
    return self._plain.make_batch(rows, keys)

  def init(self, key: jax.Array) -> Params:
    """Parameters of the model and of the classifiers."""
    model, heads = self.model, {}
    inits = ModelChoices.of(model).init_weights
    for k, number in enumerate(self._num_classifiers):
      if number:
        sizes = number, model.vocab_size, model.d_model
        made = LayerClassifiers(sizes, inits.output or inits.embedding)
        drawn = made.init(jax.random.fold_in(key, k + 1))
        heads[f'target_{k + 1}'] = drawn['params']
    return {**super().init(key), **({'heads': heads} if heads else {})}

  def loss(self, params: Params, batch: Batch, key: jax.Array | None) -> Loss:
    """The loss at the top of this file; in evaluation the output's alone."""
    plain, depth = self._plain, self.model.num_layers
    if key is None:
      return plain.loss(params, batch, None)
    run: Any = batch[RUN]
    states_NBLD, stats = states(self.model, params, batch, key)
    if self.positions == 'last':
      last_L = jnp.arange(batch['inputs'].shape[1])[::-1] == 0
      batch = {**batch, 'weights': batch['weights'] * last_L[None]}
    own = plain.loss_of_states(params, states_NBLD[-1], batch, evaluating=False)
    added, metrics = jnp.float32(0), {}
    for k, number in enumerate(self._num_classifiers):
      if not number:
        continue
      table_NVD = params['heads'][f'target_{k + 1}']['kernel']
      chosen = states_NBLD[:-1] if k == 0 else states_NBLD[-number:]
      active_N = is_active(run['done'], depth)
      active_N = active_N[:-1] if k == 0 else active_N[-number:]
      table_NVD = table_NVD.astype(DTYPES[self.model.dtype])
      losses_N, counted = further(chosen, table_NVD, active_N, batch, k)
      added += (self.weight if k else 1.0) * jnp.sum(losses_N)
      metrics[f'objective/target_{k + 1}_loss'] = Mean(losses_N[-1], counted * active_N[-1])
    return Loss(own.sum + added, own.weight, added, metrics, stats=stats)


def states(
  model: Transformer, params: Params, batch: Batch, key: jax.Array
) -> tuple[jax.Array, dict[str, LayerStats]]:
  """Each layer's states [N, B, L, D], and what the layers report.

  The last layer's states are taken after the final norm.
  """
  out, sown = forward.apply(model, params, Row(batch['inputs']), key, sow=('intermediates',))
  below = layer_outputs(sown['intermediates'])[:-1]
  return jnp.stack([*below, out.hidden_BLD]), forward.stats(sown)


def is_active(done: jax.Array, num_layers: int) -> jax.Array:
  """Which layers still count, float32 [num_layers], 1 or 0.

  Args:
    done: fraction of the run that is done.
    num_layers: n; layer l >= 1 counts until l / (2n), the last always.
  """
  until_N = jnp.arange(1, num_layers + 1) / (2 * num_layers)
  until_N = until_N.at[-1].set(jnp.inf)
  return (done < until_N).astype(jnp.float32)


def further(
  states_NBLD: jax.Array, table_NVD: jax.Array, active_N: jax.Array, batch: Batch, k: int
) -> tuple[jax.Array, jax.Array]:
  """Sums of each layer's cross-entropy with its own classifier.

  Args:
    active_N: 0 for layers that do not count.
    batch: `targets` and `weights` [B, L].
    k: targets are shifted by k more positions; those past the end of a row are
      left out.

  Returns:
    The sums [N], and the sum of the weights.
  """
  L = batch['targets'].shape[1]
  moved = {
    name: jnp.pad(batch[name][:, k:], ((0, 0), (0, min(k, L)))) for name in ('targets', 'weights')
  }
  weights_BL = moved['weights']
  if k:  # only positions that count themselves predict
    weights_BL *= batch['weights'] > 0

  def of_layer(_, layer):
    hidden_BLD, table_VD, active = layer
    sums: Any = penalised_cross_entropy(
      hidden_BLD, table_VD, moved['targets'], weights_BL * active, 0.0
    )
    return None, sums.total

  layers = states_NBLD, table_NVD, active_N
  return jax.lax.scan(of_layer, None, layers)[1], jnp.sum(weights_BL)
