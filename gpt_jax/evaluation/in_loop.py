# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluates held-out sets and tasks during training."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt_jax.config import Config
from gpt_jax.data.eval_sets import EvalSet
from gpt_jax.data.tokenizers.tokenizer import Tokenizer
from gpt_jax.evaluation import names, suite
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.tasks import TASKS
from gpt_jax.spec import UsageError
from gpt_jax.training.held_out import HeldOut
from gpt_jax.training.parts import Parts


def tasks(config: Config) -> list[suite.Named]:
  """Loads the tasks of `eval.tasks` and checks their files.

  Raises:
    UsageError: a call, a file or a name is wrong.
  """
  if not config.eval.tasks:
    return []
  if config.model.num_encoder_layers:
    raise UsageError(
      f'eval.tasks={config.eval.tasks!r}: are given to decoders, and '
      f'model.num_encoder_layers={config.model.num_encoder_layers}; leave it '
      'empty'
    )
  if config.data.holdout == 'none' and not config.eval.sets:
    raise UsageError(
      f'eval.tasks={config.eval.tasks!r}: needs a held-out set besides, by '
      'which checkpoints are judged; set data.holdout or eval.sets'
    )
  calls = names.read('eval.tasks', config.eval.tasks, TASKS)
  found = suite.build(calls, config.eval.tasks_dir)
  suite.check('eval.tasks', found, sets=config.eval.sets)
  return found


def evaluation(config: Config) -> Callable[..., 'HeldOutAndTasks'] | None:
  """Makes the evaluation of a run with `eval.tasks`; None if that is empty.

  Raises:
    UsageError: a call, a file or a name is wrong.
  """
  found = tasks(config)
  return functools.partial(HeldOutAndTasks, tasks=found) if found else None


class HeldOutAndTasks:
  """Evaluates both; see `training_run.Evaluation`."""

  def __init__(
    self,
    parts: Parts,
    *,
    sets: Mapping[str, EvalSet],
    tasks: Sequence[suite.Named],
    tokenizer: Tokenizer,
  ):
    """Takes the held-out sets, and the tasks, which are run zero-shot."""
    self._held_out = HeldOut(parts, sets)
    self._tasks = tasks
    self._scorer = Scorer(parts, None, tokenizer)

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """Returns the results of both; None if stopped between two batches."""
    values = self._held_out(params, stop)
    if values is None:
      return None
    self._scorer.params = params

    def report(stage: str, done: int, total: int | None):
      del stage, done, total
      if stop():
        raise _StoppedError

    try:
      found = suite.measure(self._tasks, self._scorer, report=report)
    except _StoppedError:
      return None
    # Results for parts of a task, such as BLiMP paradigms, are left to
    # `evaluate`.
    known = self._prefixes()
    whole = {k: v for k, v in found.items() if k.rpartition('/')[0] in known}
    return values | whole

  def summary(self, values: dict[str, float]) -> str:
    """Summarises the results in one line."""
    known = self._prefixes()
    of_tasks = {
      k: v for k, v in values.items() if k.rpartition('/')[0] in known
    }
    held_out = {k: v for k, v in values.items() if k not in of_tasks}
    lines = suite.lines(of_tasks, self._tasks)
    return '; '.join([self._held_out.summary(held_out), *lines])

  def _prefixes(self) -> set[str]:
    """Of the results of whole tasks."""
    return {f'eval/{named.name}' for named in self._tasks}


class _StoppedError(Exception):
  """The run was told to stop."""
