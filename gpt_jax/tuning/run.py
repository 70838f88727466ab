# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""One run of fine-tuning or post-training: from a lesson to result.json."""

import abc
import os
from collections.abc import Callable
from typing import Any

from gpt_jax.core.checkpoints.checkpointer import Checkpointer
from gpt_jax.core.config import Config
from gpt_jax.core.files.buckets import write_atomically
from gpt_jax.core.optim.train_state import TrainState
from gpt_jax.core.runtime import hosts, preemption, watchdog
from gpt_jax.core.runtime.log import log
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.training import fitting, loop, origins
from gpt_jax.core.training import parts as parts_lib
from gpt_jax.core.training import run as run_lib
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.metrics import to_json
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.run import Data, Evaluation, Run
from gpt_jax.opening.models import Pretrained
from gpt_jax.tuning import transfer
from gpt_jax.tuning.objectives import adapters

# The file with the metrics of all splits, written at the end of a run.
RESULT = 'result.json'


class Lesson(abc.ABC):
  """What a run learns from, and what judges it.

  Attributes:
    config: resolved.
    num_rows: rows of a pass over the data.
    criterion: the metric that selects the best step: see `training.run.Run`.
    shown: metrics for people, of log lines and of the evaluation.
    evaluates: whether there is a dev split.
  """

  config: Config
  tokenizer: Tokenizer
  num_rows: int
  criterion: str
  shown: tuple[str, ...] = ()
  evaluates: bool = True

  @abc.abstractmethod
  def data(self, parts: Parts, first: Callable[..., TrainState], workdir: str) -> Data:
    """The training data.

    `first` makes the state that a new run starts from; with `keep=True` the
    next call returns the same one.
    """

  @abc.abstractmethod
  def evaluation(self, parts: Parts) -> Evaluation:
    """The evaluation, compiled."""

  def params(self, source: Pretrained) -> Any:
    """The pre-trained parameters to start from."""
    assert source.params is not None
    return transfer.with_heads(source.params(), (), alone=True)

  @abc.abstractmethod
  def result(self, run: Run, state: TrainState) -> dict[str, Any]:
    """The contents of result.json, by the state that is selected."""


def trained(lesson: Lesson, source: Pretrained, workdir: str) -> dict[str, Any]:
  """Trains to the end, and judges; returns the contents of result.json."""
  stacks = os.path.join(workdir, f'stacks_{hosts.index()}.txt')
  with workdir_lib.locked(workdir), watchdog.watching(watchdog.deadlines(lesson.config), stacks):
    run, state = start(lesson, source, workdir)
    state = loop.fit(run, state)
    watchdog.enter('end')
    preemption.check()
    result = lesson.result(run, _selected(run, state))
    if run.active:
      path = os.path.join(workdir, RESULT)
      write_atomically(path, to_json(result, indent=2) + '\n')
    return result


def start(lesson: Lesson, source: Pretrained, workdir: str) -> tuple[Run, TrainState]:
  """Opens the run; returns its newest state, or the initial one."""
  config, tuned = lesson.config, lesson.config.finetune
  workdir_lib.check_same_run(config, workdir)
  origins.check(config, workdir)
  config, mesh = run_lib.check_before(config, workdir)
  with workdir_lib.untouched_if_refused(workdir):
    parts = parts_lib.build(config, mesh, tokenizer=lesson.tokenizer)
    fitting.check_state(parts)
    begun: list[TrainState] = []  # so that --init is read once
    compiled: list[Evaluation] = []

    def initial() -> TrainState:
      if source.params is None:
        return origins.first_state(parts, lesson.tokenizer)
      amount = transfer.amount_of(tuned)
      return transfer.init_state(parts, lesson.params(source), amount)

    def first(*, keep: bool = False) -> TrainState:
      state = begun.pop() if begun else initial()
      if keep:
        begun.append(state)
      return state

    def evaluation(parts: Parts) -> Evaluation:
      if not compiled:  # once, for the loop and for the result
        compiled.append(lesson.evaluation(parts))
      return compiled[0]

    data = lesson.data(parts, first, workdir)
    last = config.schedule.num_steps
    epochs = parts.ramp.offset(last) / data.rows_per_epoch
    opened = adapters.resume_or_start(
      parts,
      workdir,
      data,
      tokenizer=lesson.tokenizer,
      first=first,
      folder=source.folder,
      about=f'{tuned.task or tuned.tasks} of {tuned.init}: '
      f'{lesson.num_rows:,} rows of {tuned.length} tokens, '
      f'{round(epochs, 2):g} epochs, {last} steps',
      evaluation=evaluation if lesson.evaluates else None,
      criterion=lesson.criterion,
      patience=tuned.patience,
      shown=lesson.shown,
    )
    begun.clear()  # a run that resumes has not taken it
    return opened


def _selected(run: Run, state: TrainState) -> TrainState:
  """The state that is judged: the last, or the best saved one."""
  if run.parts.config.finetune.select == 'last':
    return state
  done = int(state.step)
  scores = dict(run.past(done).held_out)
  unsaved = run.parts.objective.unsaved
  checkpointer = Checkpointer(run.workdir, read_only=True, unsaved=unsaved)
  steps = [step for step in checkpointer.steps() if step in scores]
  best = min(steps, key=lambda step: (scores[step], step))
  if best != done:
    reader = run._replace(checkpointer=checkpointer)
    restored = reader.restored(at_most=best, start=state)
    if restored is not None and int(restored.step) == best:
      log.info('predicting with step %d, the best', best)
      state = restored
  checkpointer.close()
  return state
