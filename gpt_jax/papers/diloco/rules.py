# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What replicas that train apart need of a config."""

from gpt_jax.core.config.fields import Config
from gpt_jax.core.config.lengths import ramp
from gpt_jax.core.config.validation import outer
from gpt_jax.core.entries import Option
from gpt_jax.core.spec import UsageError


def check_run(config: Config) -> None:
  """Rejects fine-tuning, and rows that do not divide over the replicas."""
  given = f'optim.outer={config.optim.outer!r}'
  if config.get('finetune'):
    raise UsageError(f"{given}: is for pre-training; give 'none' in fine-tuning and post-training")
  apart = outer(config)
  assert apart
  for stage in ramp(config).stages:
    if stage.rows % apart.replicas:
      raise UsageError(
        f'batch.size={config.batch.size!r}: {stage.rows} rows do not divide '
        f'over the {apart.replicas} replicas of {given}; give a multiple'
      )


# The moments of replicas stay on their devices; norms are of one model.
OPTION = Option(needs={'optim.state': 'device', 'log.norms_every_steps': 0}, check=check_run)
