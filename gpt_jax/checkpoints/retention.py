# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints stay: preservation policies of Orbax."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from orbax.checkpoint import checkpoint_managers


class Best(NamedTuple):
  """The `n` with the least loss stay."""

  n: int
  losses: dict[int, float]  # by step; one without is none of the best

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for those that stay; of equal ones the older."""
    del context
    found = [c.step for c in checkpoints if c.step in self.losses]
    steps = [step for step in found if math.isfinite(self.losses[step])]
    best = sorted(steps, key=lambda step: (self.losses[step], step))[: self.n]
    return [c.step in best for c in checkpoints]


class Regular(NamedTuple):
  """Checkpoints made in between stay only while they are the newest.

  A preemption makes one, and so does the retry of a save that failed. The
  others are those of a run that was left alone, so that what a rewind finds to
  go back to is the same too.
  """

  every: int  # the steps of the others are its multiples
  policy: Any  # says which of them stay

  def should_preserve(self, checkpoints, *, context) -> list[bool]:
    """True for those that stay."""
    regular = [c for c in checkpoints if c.step % self.every == 0]
    preserved = self.policy.should_preserve(regular, context=context)
    stay = {c.step for c, keep in zip(regular, preserved, strict=True) if keep}
    stay.update(sorted(c.step for c in checkpoints)[-1:])
    return [c.step in stay for c in checkpoints]


def policy(
  losses: dict[int, float],
  *,
  keep: int,
  every_steps: int,
  keep_every_steps: int,
  keep_best: int,
) -> Regular:
  """The policy of the section `checkpoint` of a config.

  Args:
    losses: held-out, by step; may grow.
    keep: how many of the newest stay.
    every_steps: steps between saves.
    keep_every_steps: those of its multiples stay for good; 0: none.
    keep_best: how many of the least loss stay.
  """
  policies: list[Any] = [checkpoint_managers.LatestN(keep)]
  if keep_every_steps:
    policies.append(checkpoint_managers.EveryNSteps(keep_every_steps))
  if keep_best:
    policies.append(Best(keep_best, losses))
  return Regular(
    every_steps, checkpoint_managers.AnyPreservationPolicy(policies)
  )


def rewind_target(
  steps: Sequence[int], *, spike: int, before: int, every: int
) -> int:
  """The checkpoint to go back to; 0 is the start of the run.

  The newest at least `before` steps before the spike; where retention left
  none so old, the oldest before the spike. Of the regular ones, so that it does
  not depend on preemptions.

  Args:
    steps: of the checkpoints.
    spike: its step, counted from 1.
    before: steps to go back, at least.
    every: the regular ones are its multiples.
  """
  sound = [step for step in steps if step < spike]
  regular = [step for step in sound if step % every == 0]
  if not regular and spike > every:
    regular = sound  # every_steps was another number before
  old = [step for step in regular if step <= spike - before]
  return max(old) if old else min(regular, default=0)
