# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loss of a trained model on the text that its run held out."""

from gpt_jax.data import eval_sets
from gpt_jax.data.store import TokenStore
from gpt_jax.spec import UsageError
from gpt_jax.training import store_data
from gpt_jax.training.held_out import HeldOut
from gpt_jax.training.trained import Trained


def measure(trained: Trained, workdir: str) -> dict[str, float]:
  """Losses of the held-out split and of the sets of `eval.sets`.

  Raises:
    UsageError: the run held no text out.
  """
  config = trained.parts.config
  store = TokenStore.open(store_data.data_folder(config, workdir))
  sets = eval_sets.held_out(config, store.ordered('stdlib', config.data.rows))
  if not sets:
    raise UsageError(
      'data.holdout=none: this run held no text out; set data.holdout'
    )
  values = HeldOut(trained.parts, sets)(trained.state.eval_params)
  assert values is not None  # nothing stopped it
  return values
