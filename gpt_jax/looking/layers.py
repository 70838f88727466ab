# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms by layer of a step of a run that did not measure them."""

from typing import NamedTuple

import jax

from gpt_jax.core import config as config_lib
from gpt_jax.core.optim.schedules import Shape
from gpt_jax.core.runtime import watchdog
from gpt_jax.core.training import norm_lines
from gpt_jax.core.training.compiled import Compiled, compile_train_step
from gpt_jax.core.training.parts import Parts
from gpt_jax.looking.course import Taken
from gpt_jax.resilience.replay import copied


class Layers(NamedTuple):
  """The norms of a step.

  Attributes:
    norms: by their names in metrics.jsonl: see `norm_lines`.
    loss: of the program that measured them. It is another program than the
      run's, so that its last digits may differ.
  """

  norms: dict[str, float]
  loss: float


class Measuring:
  """The programs of a run that measure norms in each step."""

  def __init__(self, parts: Parts):
    """Takes the parts of the run, whose programs need not measure."""
    config = config_lib.unlocked(parts.config)
    config.log.norms_every_steps = 1
    # Its tree has no sums over layers; their rounding is nothing to a norm.
    config.batch.exact_over = 0
    self._parts = parts._replace(config=config.lock())
    self._programs: dict[Shape, Compiled] = {}

  def of(self, taken: Taken) -> Layers:
    """The norms of a step that was taken."""
    batch = taken.batch
    if batch.shape not in self._programs:
      with watchdog.during('compile'):
        self._programs[batch.shape] = compile_train_step(self._parts, batch.shape)
    call = self._programs[batch.shape].call
    _, out = call(copied(taken.before), batch.arrays, *self._parts.average_start())
    out = jax.device_get(out)
    [(_, norms)] = norm_lines.lines(batch.step, [out], 1)
    return Layers(norms, float(out['loss']))
