# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step would have done with another rate, another bound, or less text."""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt_jax.core import config as config_lib
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import watchdog
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.compiled import compile_train_step
from gpt_jax.looking.course import Batch, Course, Taken, called
from gpt_jax.looking.documents import Piece


class Outcome(NamedTuple):
  """What a step did.

  Attributes:
    loss: of its batch before it, nats a token.
    grad_norm: before clipping.
    update_norm: Euclidean norm of what it added to the parameters.
    next_loss: of the next batch after it; None: the run has no next step.
    next_grad_norm: of that batch.
  """

  loss: float
  grad_norm: float
  update_norm: float
  next_loss: float | None
  next_grad_norm: float | None


def as_it_was(course: Course, taken: Taken, following: Batch | None) -> Outcome:
  """What the step did, and the next one, whose batch is `following`."""
  return _outcome(course, taken.before, taken.after, taken.out, following)


def changed(
  course: Course,
  taken: Taken,
  following: Batch | None,
  *,
  lr: float | None = None,
  clip: float | None = None,
  batch: Sequence[Piece] = (),
  without: Collection[int] = (),
) -> Outcome:
  """What the step would have done; the next one is the run's own.

  Args:
    course: of the run.
    taken: the step.
    following: the batch of the next one.
    lr: learning rate; None: the run's.
    clip: bound of the gradient's norm, 0 for none; None: the run's.
    batch: the pieces of the step's batch.
    without: documents whose tokens do not count; they are read all the same.
  """
  parts, data = course.parts, taken.batch
  if clip is not None:
    config = config_lib.unlocked(parts.config)
    config.optim.clip_norm = clip
    parts = parts._replace(config=config.lock())
  if lr is not None:
    parts = parts._replace(schedule=lambda step: jnp.float32(lr))
  if without:
    arrays = _without(data, batch, without)
    data = data._replace(arrays=parts.put_whole(arrays, data.shape.rows))
  with watchdog.during('compile'):
    program = compile_train_step(parts, data.shape)
  after, out = called(parts, program, taken.before, data)
  return _outcome(course, taken.before, jax.device_get(after), out, following)


def _without(data: Batch, batch: Sequence[Piece], documents: Collection[int]) -> dict[str, Any]:
  """A batch in which the tokens of some documents have weight 0."""
  found = [piece for piece in batch if {*piece.documents} & {*documents}]
  if missing := {*documents} - {number for piece in found for number in piece.documents}:
    raise UsageError(
      f'--without={min(missing)}: no row of step {data.step} has that document; give a number of '
      f'the table, such as {batch[0].documents[0]}'
    )
  if 'weights' not in data.arrays:
    raise UsageError(
      '--without: the tokens of this objective have no weights that could be 0; leave it out'
    )
  whole = jax.device_get(data.arrays)
  weights = whole['weights'].copy()
  for piece in found:
    weights[piece.row, piece.targets or slice(None)] = 0
  return {**whole, 'weights': weights}


def _outcome(
  course: Course, before: TrainState, after: TrainState, out: Any, following: Batch | None
) -> Outcome:
  squares = jax.tree.leaves(jax.tree.map(_squares, after.params, before.params))
  added, later = math.sqrt(sum(squares)), None
  if following:
    _, later = called(course.parts, course.program(following.shape), after, following)
  return Outcome(
    float(out['loss']),
    float(out['grad_norm']),
    added,
    None if later is None else float(later['loss']),
    None if later is None else float(later['grad_norm']),
  )


def _squares(new: np.ndarray, old: np.ndarray) -> float:
  return float(np.sum(np.square(new.astype(np.float64) - old.astype(np.float64))))
