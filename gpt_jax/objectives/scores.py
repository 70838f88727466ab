# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What scores the vocabulary, without the scores themselves."""

from typing import Any, NamedTuple

import jax

from gpt_jax.nn.transformer import Transformer
from gpt_jax.objectives.base import Params


class Scores(NamedTuple):
  """Their product are the logits: too many to hold at once.

  Attributes:
    hidden_BLD: the last states, as the output layer takes them.
    table_VD: of the output layer.
    softcap: see `model.output`.
  """

  hidden_BLD: jax.Array
  table_VD: jax.Array
  softcap: float


def of_states(
  model: Transformer, params: Params, hidden_BLD: jax.Array
) -> Scores:
  """Of a model's last states [B, L, D]."""
  variables = {'params': params}
  table_VD: Any = model.apply(variables, method='output_table')
  hidden: Any = model.apply(variables, hidden_BLD, method='output_hidden')
  return Scores(hidden, table_VD, model.output_softcap)
