# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens a run where it stopped, or at its start: of either kind of training."""

from collections.abc import Callable
from typing import Any

from gpt_jax.checkpoints.checkpointer import Checkpointer
from gpt_jax.optim.train_state import TrainState
from gpt_jax.runtime.log import log
from gpt_jax.tokenizers.tokenizer import Tokenizer
from gpt_jax.training import parts as parts_lib
from gpt_jax.training import spikes
from gpt_jax.training import workdir as workdir_lib
from gpt_jax.training.history import History
from gpt_jax.training.parts import Parts
from gpt_jax.training.training_run import Data, TrainingRun


def open_run(
  parts: Parts,
  workdir: str,
  data: Data,
  *,
  tokenizer: Tokenizer,
  first: Callable[[], TrainState],
  about: str,
  store: str = '',
  teacher: str = '',
  **measured: Any,
) -> tuple[TrainingRun, TrainState]:
  """Opens the checkpoints and the workdir; gives the newest state.

  Args:
    parts: what is trained.
    workdir: of the run.
    data: what it consumes.
    tokenizer: kept in the workdir.
    first: makes the state that a new run starts from.
    about: a line for people on what is trained.
    store: fingerprint of the token store; empty: the run has none.
    teacher: that of a teacher's outputs; empty: it reads none.
    **measured: by what, and for how long: see `TrainingRun`.
  """
  config = parts.config
  history = History(workdir, store=store, teacher=teacher)
  checkpointer = Checkpointer(
    workdir,
    keep=config.checkpoint.keep,
    every_steps=config.checkpoint.every_steps,
    keep_every_steps=config.checkpoint.keep_every_steps,
    keep_best=config.checkpoint.keep_best,
    record=history.record,
  )
  training = TrainingRun(
    parts, workdir, data, checkpointer, history, **measured
  )
  spikes.finish(training)
  found = checkpointer.restore(parts_lib.abstract_state(parts))
  history.restart(checkpointer.restored)
  state = first() if found is None else found
  log.info('%s', about)
  if training.active:
    workdir_lib.start(config, workdir, tokenizer)
  if found is None:
    return training, state
  if int(state.step) < config.schedule.num_steps:
    log.info('resuming after step %d', int(state.step))
  else:
    log.info('this run is complete: %d steps are done', int(state.step))
  return training, state
