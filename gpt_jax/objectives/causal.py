# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: L1(U) = sum_i log P(u_i | u_<i) (GPT-1, eq. 1)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Batch, Loss, Objective, Params
from gpt_jax.objectives.cross_entropy import cross_entropy


def corrupt(rows: np.ndarray) -> dict[str, np.ndarray]:
  """Each token predicts the next: [B, L + 1] to inputs and targets [B, L]."""
  return {
    'inputs': rows[:, :-1],
    'targets': rows[:, 1:],
    'weights': np.ones(rows[:, 1:].shape, np.float32),
  }


def causal() -> Callable[[Transformer], Objective]:
  """Next-token prediction with the mean taken over all tokens that count."""

  def build(model: Transformer) -> Objective:
    def init(key: jax.Array) -> Params:
      tokens = jnp.zeros((1, 1), jnp.int32)
      return model.init(key, tokens)['params']

    def loss(params: Params, batch: Batch, key: jax.Array | None) -> Loss:
      variables = {'params': params}
      rngs = {} if key is None else {'dropout': key}
      out: Any = model.apply(variables, batch['inputs'], rngs=rngs)
      table_VD: Any = model.apply(variables, method='output_table')
      total = cross_entropy(
        out.hidden_BLD, table_VD, batch['targets'], batch['weights']
      )
      return Loss(total, jnp.sum(batch['weights']))

    return Objective(corrupt, init, loss)

  return build


OBJECTIVES = {'causal': causal}
