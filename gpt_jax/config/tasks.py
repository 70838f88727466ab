# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of a run on several tasks: `finetune.tasks`.

Each has rows of its own length. `finetune.each` has a section for each task:
how many `examples` it has, and the `tokens` of one, all its sequences together.
"""

import functools

from gpt_jax.config.fields import Config
from gpt_jax.data.task_order import TaskOrder
from gpt_jax.optim.consumption import Ramp, Stage
from gpt_jax.spec import UsageError


def several(config: Config) -> bool:
  """Whether a resolved config, or one being resolved, is of several tasks."""
  tuned = config.get('finetune')
  return bool(tuned and tuned.get('each'))


def order(config: Config) -> TaskOrder:
  """Which examples of which task each step takes.

  Raises:
    UsageError: the batch grows, or there is no such mixing.
  """
  if type(config.batch.size) is not int:
    raise UsageError(
      f'batch.size={config.batch.size!r}: with several tasks all batches have '
      'the same number of examples; give one'
    )
  tuned = config.finetune
  return TaskOrder(
    {name: section.examples for name, section in tuned.each.items()},
    batch_size=config.batch.size,
    seed=config.seed,
    mixing=tuned.mixing,
  )


def ramp(config: Config) -> Ramp:
  """The rows of each step, their length and their task.

  Raises:
    UsageError: see `order`, or the number of steps is none.
  """
  num_steps = config.schedule.num_steps
  if type(num_steps) is not int:
    raise UsageError(
      f'schedule.num_steps={num_steps!r}: the rows of several tasks differ in '
      'length; give a number of steps, or leave it empty for finetune.epochs'
    )
  tuned = config.finetune
  order(config)  # what is amiss is told before anything is cached
  sizes = tuple((n, s.examples, s.tokens) for n, s in tuned.each.items())
  return _ramp(sizes, config.batch.size, config.seed, tuned.mixing, num_steps)


@functools.lru_cache(maxsize=4)
def _ramp(
  sizes: tuple[tuple[str, int, int], ...],
  batch_size: int,
  seed: int,
  mixing: str,
  num_steps: int,
) -> Ramp:
  """Of tasks by name, examples and tokens: a stage for each run of steps."""
  found = TaskOrder(
    {name: examples for name, examples, _ in sizes},
    batch_size=batch_size,
    seed=seed,
    mixing=mixing,
  )
  lengths = {name: tokens for name, _, tokens in sizes}
  stages: list[Stage] = []
  consumed = 0
  for step in range(num_steps):
    task = found.step(step).task
    if not stages or stages[-1].task != task:
      rows = step * batch_size
      stages.append(
        Stage(step, batch_size, lengths[task], rows, consumed, task)
      )
    consumed += batch_size * lengths[task]
  return Ramp(tuple(stages))
