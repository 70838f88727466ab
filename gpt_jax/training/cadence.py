# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""After which steps the training loop logs, saves, evaluates and stops."""

from typing import NamedTuple

from gpt_jax.config import Config


class Due(NamedTuple):
  """What is to be done after a step."""

  log: bool
  save: bool
  evaluate: bool
  stop: bool  # the process was told to


class Cadence(NamedTuple):
  """How often, in steps; 0: after the last step alone."""

  last: int
  log_every: int
  save_every: int
  eval_every: int
  # An evaluation may be the last, and the last step is logged.
  log_evaluations: bool = False

  def due(self, step: int, *, stop: bool = False) -> Due:
    """What is due after `step`, counted from 1.

    Args:
      step: steps done.
      stop: whether the process was told to stop. That changes nothing else:
        whatever is due is done or, of the evaluation, left for the next start.
    """
    evaluate = should(step, self.eval_every, self.last)
    log = should(step, self.log_every, self.last)
    return Due(
      log=log or (evaluate and self.log_evaluations),
      save=should(step, self.save_every, self.last),
      evaluate=evaluate,
      stop=stop,
    )


def of(config: Config, *, patience: int) -> Cadence:
  """The cadence of a config; `patience` as of the training run."""
  return Cadence(
    last=config.schedule.num_steps,
    log_every=config.log.every_steps,
    save_every=config.checkpoint.every_steps,
    eval_every=config.eval.every_steps,
    log_evaluations=patience > 0,
  )


def should(step: int, every: int, last: int) -> bool:
  """True every `every` steps (0: never) and after the last."""
  return step == last or (every > 0 and step % every == 0)
