# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step would have done with another rate, another bound, or less text."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt_jax.core import config as config_lib
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import watchdog
from gpt_jax.core.spec import UsageError
from gpt_jax.core.training.compiled import compile_train_step
from gpt_jax.looking.course import Batch, Course, Taken
from gpt_jax.looking.documents import Piece
from gpt_jax.resilience.replay import copied


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
  parts, (step, shape, arrays) = course.parts, taken.batch
  if clip is not None:
    config = config_lib.unlocked(parts.config)
    config.optim.clip_norm = clip
    parts = parts._replace(config=config.lock())
  if lr is not None:
    parts = parts._replace(schedule=lambda step: jnp.float32(lr))
  if without:
    arrays = parts.put_whole(_without(arrays, batch, without, step), shape.rows)
  with watchdog.during('compile'):
    program = compile_train_step(parts, shape)
  after, out = program.call(copied(taken.before), arrays, *parts.average_start())
  return _outcome(course, taken.before, after, jax.device_get(out), following)


def _without(
  arrays: dict[str, jax.Array], batch: Sequence[Piece], documents: Collection[int], step: int
) -> dict[str, Any]:
  """A batch in which the tokens of some documents have weight 0."""
  found = [piece for piece in batch if {*piece.documents} & {*documents}]
  if missing := {*documents} - {number for piece in found for number in piece.documents}:
    raise UsageError(
      f'--without={min(missing)}: no row of step {step} has that document; give a number of '
      f'the table, such as {batch[0].documents[0]}'
    )
  if 'weights' not in arrays:
    raise UsageError(
      '--without: the tokens of this objective have no weights that could be 0; leave it out'
    )
  whole = jax.device_get(arrays)
  weights = whole['weights'].copy()
  for piece in found:
    weights[piece.row, piece.targets or slice(None)] = 0
  return {**whole, 'weights': weights}


def _outcome(
  course: Course, before: TrainState, after: TrainState, out: Any, following: Batch | None
) -> Outcome:
  added = optax.tree.norm(jax.tree.map(_difference, after.params, before.params))
  later = None
  if following:
    call = course.program(following.shape).call
    _, later = call(copied(after), following.arrays, *course.parts.average_start())
  return Outcome(
    float(out['loss']),
    float(out['grad_norm']),
    float(added),
    None if later is None else float(later['loss']),
    None if later is None else float(later['grad_norm']),
  )


def _difference(new: jax.Array, old: jax.Array) -> jax.Array:
  return new.astype(jnp.float32) - old.astype(jnp.float32)
