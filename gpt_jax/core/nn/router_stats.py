# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the routers of experts report: see `nn.moe`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.core.nn.stack import len_then_name


class RouterStats(NamedTuple):
  """Statistics of the router of one layer: means over its tokens.

  Attributes:
    load_E: the fraction of the assignments that chose each expert, before any
      is dropped.
    dropped: the fraction of the assignments past their expert's capacity.
    entropy: of the probabilities, in nats; log(E) when they are uniform.
    balance: the load-balancing loss without its factor; 1 when balanced.
    z_loss: the mean of log(Z)^2 of the router's softmax, without its factor.
    penalty: added to the loss: both losses, times their factors.
  """

  load_E: jax.Array
  dropped: jax.Array
  entropy: jax.Array
  balance: jax.Array
  z_loss: jax.Array
  penalty: jax.Array


def router_stats(sown: Any) -> dict[str, RouterStats]:
  """The `RouterStats` of all layers with experts: `{'decoder': RouterStats}`.

  Args:
    sown: the collection `router`, from `apply(..., mutable=['router'])`.

  Returns:
    For each stack, the statistics of its layers, stacked along a leading axis.
  """
  stats = {}
  for stack, blocks in sown.items():
    period = blocks['periods']
    names = sorted(period, key=len_then_name)
    layers = [period[name]['ffn']['stats'][0] for name in names]
    stats[stack] = jax.tree.map(
      lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *layers
    )
  return stats
