# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to do about a spike: a loss or gradient that is not finite, or a jump.

An update whose loss or gradient norm is not finite never happens, whatever the
policy: `step.train_step` keeps the old state. The policy decides how the run
goes on from there.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpt_jax.ranges import Count, NotNegative, Whole

# Logged losses of which the median is what a jump is measured from.
WINDOW = 100


class Policy(NamedTuple):
  """How a run goes on after a spike."""

  action: str  # stop, skip, rewind
  threshold: float  # nats above the median that make a spike; 0: never
  at_most: int  # so often; then the run stops. 0: any number of times
  before: int = 0  # steps to go back, at least
  batches: int = 0  # to leave out from there, at least


def stop(threshold: NotNegative = 0.0) -> Policy:
  """Stops the run."""
  return Policy('stop', threshold, 0)


def skip(at_most: Whole = 10) -> Policy:
  """Leaves out the update of a batch whose loss or gradient is not finite.

  Stops after `at_most` of them in 1,000 steps.
  """
  return Policy('skip', 0.0, at_most)


def rewind(
  threshold: NotNegative = 0.0,
  before: Whole = 100,
  batches: Count = 200,
  at_most: Whole = 10,
) -> Policy:
  """Goes back, and takes other batches (PaLM, section 5.1).

  PaLM restarted from a checkpoint about 100 steps before the spike and skipped
  200 to 500 batches, which cover those seen before and during it. Stops after
  `at_most` times in the run.
  """
  return Policy('rewind', threshold, at_most, before, batches)


def is_spike(
  policy: Policy, loss: float, grad_norm: float, logged: Sequence[float]
) -> bool:
  """Tells whether a step is a spike.

  Args:
    policy: its threshold is used.
    loss: of the step.
    grad_norm: of the step.
    logged: the losses logged before, oldest first. The threshold holds from
      the tenth on.
  """
  if not (math.isfinite(loss) and math.isfinite(grad_norm)):
    return True
  last = sorted(logged[-WINDOW:])
  if not policy.threshold or len(last) < 10:
    return False
  # The lower one of the two in the middle.
  return loss > last[(len(last) - 1) // 2] + policy.threshold


SPIKES = {'stop': stop, 'skip': skip, 'rewind': rewind}
