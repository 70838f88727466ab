# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The mean of the last checkpoints (Vaswani et al., 2017, section 6.1).

It is made of what a run has kept, afterwards; `optim.ema` is another average,
of all steps, which the run itself keeps. That is not what is averaged here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gpt_jax.checkpoints import checkpointer as checkpoint
from gpt_jax.checkpoints import restore
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.spec import UsageError


class Averaged(NamedTuple):
  """A state to evaluate, never to train on from.

  Attributes:
    state: of the newest step, but for the parameters, which are the mean, and
      without `ema`.
    steps: of the checkpoints, oldest first.
  """

  state: TrainState
  steps: tuple[int, ...]


def last(workdir: str, number: int, abstract: TrainState) -> Averaged:
  """The mean of the parameters of the last checkpoints, summed in float32.

  Args:
    workdir: of the run.
    number: of checkpoints.
    abstract: see `Checkpointer.restore`.
  """
  checkpointer = checkpoint.Checkpointer(workdir, read_only=True)
  kept = checkpointer.steps()
  checkpointer.close()
  if len(kept) < number:
    raise UsageError(
      f'--average={number}: --workdir={workdir} keeps {len(kept)} checkpoints'
      + (f', of steps {", ".join(map(str, kept))}' if kept else '')
      + f'; train with checkpoint.keep={number} or more, or average fewer'
    )
  steps, total, state = tuple(kept[-number:]), None, None
  for step in steps:
    state = None  # its memory
    folder = restore.absolute(restore.folder_of(workdir)) / str(step)
    found = restore.read(folder, abstract)
    if found.state is None:
      raise UsageError(
        f'--average={number}: {folder} is damaged ({found.reason}); restore '
        'it from a copy, or average fewer'
      )
    state = found.state
    total = _sum(total, state.params)
  assert state is not None
  log.info(
    'the mean of the checkpoints of steps %s', ', '.join(map(str, steps))
  )
  params = _mean(total, state.params, number)
  return Averaged(state._replace(params=params, ema=None), steps)


@jax.jit
def _sum(total, params):
  params = jax.tree.map(lambda x: x.astype(jnp.float32), params)
  return params if total is None else jax.tree.map(jnp.add, total, params)


@jax.jit
def _mean(total, params, number):
  """In the dtype that parameters are stored in."""
  return jax.tree.map(lambda x, y: (x / number).astype(y.dtype), total, params)
