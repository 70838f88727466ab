# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step changes, and a checkpoint holds."""

from typing import Any, NamedTuple

from gpt_jax.optim import frozen_parts


class TrainState(NamedTuple):
  """All that a checkpoint holds. The data order follows from `step` alone."""

  step: Any  # int32 scalar: steps done
  params: Any
  opt_state: Any
  ema: Any = None  # average of what is trained, where one is kept

  @property
  def eval_params(self) -> Any:
    """What evaluates and generates: the average where one is kept."""
    if self.ema is None:
      return self.params
    frozen = {*self.params.get('parts', {})} - {*self.ema.get('parts', {})}
    return frozen_parts.with_frozen(self.ema, self.params, frozen)
