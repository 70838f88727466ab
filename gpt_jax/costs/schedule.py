# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run's batches and learning rates are, stage by stage."""

from typing import NamedTuple

from gpt_jax import config as config_lib
from gpt_jax.config import Config


class ScheduleRow(NamedTuple):
  """A stage of the batch, where it begins."""

  step: int  # its first, as in metrics.jsonl: from 1 on
  rows: int
  row_tokens: int
  tokens_per_step: int
  tokens: int  # consumed before
  learning_rate: float


def stages(config: Config) -> list[ScheduleRow]:
  """The stages of a resolved config's run."""
  ramp, rate = config_lib.ramp(config), config_lib.schedule(config)
  return [
    ScheduleRow(
      stage.start + 1,
      *(stage.rows, stage.length),
      stage.shape.tokens,
      ramp.tokens(stage.start),
      float(rate(stage.start)),
    )
    for stage in ramp.between(0, config.schedule.num_steps)
  ]
