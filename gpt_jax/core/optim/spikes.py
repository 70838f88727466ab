# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Policies for spikes: a loss or gradient that is not finite, or a loss jump.

An update whose loss or gradient norm is not finite is never applied, whatever
the policy: `training.step.train_step` keeps the old state. The policy decides
how the run continues.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpt_jax.core.ranges import Count, NotNegative, Whole

# A jump is measured from the median of this many logged losses.
WINDOW = 100


class SpikePolicy(NamedTuple):
  """How a run continues after a spike."""

  action: str  # stop, skip, rewind
  threshold: float  # nats above the median that make a spike; 0: never
  at_most: int  # the run stops after this many times; 0: no limit
  before: int = 0  # steps to go back, at least
  batches: int = 0  # to leave out from there, at least


def stop(threshold: NotNegative = 0.0) -> SpikePolicy:
  """Stops the run."""
  return SpikePolicy('stop', threshold, 0)


def skip(at_most: Whole = 10) -> SpikePolicy:
  """Skips the update of a batch whose loss or gradient is not finite.

  The run stops after `at_most` of them in 1,000 steps.
  """
  return SpikePolicy('skip', 0.0, at_most)


def rewind(
  threshold: NotNegative = 0.0, before: Whole = 100, batches: Count = 200, at_most: Whole = 10
) -> SpikePolicy:
  """Goes back to a checkpoint, and skips batches (PaLM, section 5.1).

  PaLM restarted from a checkpoint about 100 steps before the spike and skipped
  200 to 500 batches, which cover those seen before and during it. The run stops
  after `at_most` rewinds.
  """
  return SpikePolicy('rewind', threshold, at_most, before, batches)


def is_spike(policy: SpikePolicy, loss: float, grad_norm: float, logged: Sequence[float]) -> bool:
  """Whether a step is a spike.

  Args:
    policy: only its threshold is used.
    logged: the losses logged before, oldest first. The threshold applies from
      the tenth on.
  """
  if not (math.isfinite(loss) and math.isfinite(grad_norm)):
    return True
  last = sorted(logged[-WINDOW:])
  if not policy.threshold or len(last) < 10:
    return False
  # The lower median.
  return loss > last[(len(last) - 1) // 2] + policy.threshold


SPIKES = {'stop': stop, 'skip': skip, 'rewind': rewind}
