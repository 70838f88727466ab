# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluates held-out sets and `eval.tasks` during training."""

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from gpt_jax.core.config import Config
from gpt_jax.core.nn.build import ModelChoices
from gpt_jax.core.spec import FailedError, UsageError
from gpt_jax.core.tokenizers.tokenizer import Tokenizer
from gpt_jax.core.tokens.eval_sets import EvalSet
from gpt_jax.core.training.held_out import HeldOut
from gpt_jax.core.training.parts import Parts
from gpt_jax.evaluation import results, suite
from gpt_jax.evaluation.score import Scorer
from gpt_jax.evaluation.suite import TASKS
from gpt_jax.opening.models import answers_sources, check_reads

log = logging.getLogger('gpt_jax')


def tasks(config: Config) -> list[suite.NamedTask]:
  """Loads the tasks of `eval.tasks` and checks their files."""
  if config.data.holdout == 'none' and not config.eval.sets:
    raise UsageError(
      f'eval.tasks={config.eval.tasks!r}: also needs a held-out set, by which '
      'checkpoints are judged; set data.holdout or eval.sets'
    )
  calls = results.read_calls('eval.tasks', config.eval.tasks, TASKS)
  found = suite.build(calls, config.eval.tasks_dir)
  _check_model(config, found)
  suite.check('eval.tasks', found, sets=config.eval.sets)
  return found


def _check_model(config: Config, found: Sequence[suite.NamedTask]) -> None:
  model = config.model
  check_reads(f'eval.tasks={config.eval.tasks!r}', config)
  answers = answers_sources(config)
  if not (answers or ModelChoices.of(model).causal):
    raise UsageError(
      f'eval.tasks={config.eval.tasks!r}: measures what decoders write, and '
      f'with model.attention={model.attention!r} the model is an encoder; '
      'leave it empty'
    )
  for named in found:
    if answers and not named.task.takes_sources:
      raise UsageError(
        f'eval.tasks: {named.name} scores texts with a decoder, and the model '
        'of this run answers sources; leave it out'
      )
    if named.task.takes_sources and jax.process_count() > 1:
      raise UsageError(
        f'eval.tasks: {named.name}: texts are written on one host; leave it '
        'out, and measure it with evaluate'
      )


def evaluation(config: Config, workdir: str) -> Callable[..., 'HeldOutAndTasks']:
  """Makes the evaluation of a run with `eval.tasks`.

  Generated texts go to `workdir`/evaluations/training-NAME.jsonl.
  """
  outputs = os.path.join(workdir, 'evaluations', 'training-')
  return functools.partial(HeldOutAndTasks, tasks=tasks(config), outputs=outputs)


class HeldOutAndTasks:
  """Evaluates both: a `training.run.Evaluation`."""

  def __init__(
    self,
    parts: Parts,
    *,
    sets: Mapping[str, EvalSet],
    tasks: Sequence[suite.NamedTask],
    tokenizer: Tokenizer,
    outputs: str,
  ):
    """Takes the held-out sets and the tasks, which are run zero-shot.

    `outputs`: see `suite.measure`.
    """
    self._held_out = HeldOut(parts, sets)
    self._tasks, self._outputs = tasks, outputs
    self._scorer = Scorer(parts, None, tokenizer)

  def __call__(
    self, params: Any, stop: Callable[[], bool] = lambda: False
  ) -> dict[str, float] | None:
    """The results of both; None if stopped between two batches.

    A model without finite scores has no results of tasks; its run goes on.
    """
    values = self._held_out(params, stop)
    if values is None:
      return None
    self._scorer.params = params

    def report(stage: str, done: int, total: int | None):
      del stage, done, total
      if stop():
        raise _StoppedError

    try:
      found = suite.measure(self._tasks, self._scorer, outputs=self._outputs, report=report)
    except _StoppedError:
      return None
    except FailedError as e:
      log.warning('eval.tasks: %s', e)
      return values
    # Without results of parts of a task, such as BLiMP's paradigms, and without
    # signatures, which are no numbers.
    known = self._prefixes()
    whole = {
      k: v for k, v in found.items() if k.rpartition('/')[0] in known and not isinstance(v, str)
    }
    return values | whole

  def summary(self, values: dict[str, float]) -> str:
    """The results in one line."""
    known = self._prefixes()
    of_tasks = {k: v for k, v in values.items() if k.rpartition('/')[0] in known}
    held_out = {k: v for k, v in values.items() if k not in of_tasks}
    lines = suite.lines(of_tasks, self._tasks)
    return '; '.join([self._held_out.summary(held_out), *lines])

  def _prefixes(self) -> set[str]:
    """How keys of whole tasks begin."""
    return {f'eval/{named.name}' for named in self._tasks}


class _StoppedError(Exception):
  """The run was told to stop."""
