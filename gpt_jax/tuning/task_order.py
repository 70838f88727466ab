# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of several tasks: each step's task and examples, in closed form.

MT-DNN (Liu et al., 2019), algorithm 1: each task's examples are packed into
batches; an epoch merges the batches of all tasks, shuffles them, and takes one
step on each. Here a shuffle gives the task of each step of an epoch. A task's
examples have the same order as without other tasks (see `mixture.Shuffle`), a
new one in each pass. The last batch of a pass is smaller: no batch has examples
of two passes.

With `mixing='alternating'` the tasks take turns instead, as the labelled and
the unlabelled batches of cross-view training (Clark et al., 2018, section 2).
"""

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gpt_jax.core.optim.schedules import Ramp, Stage
from gpt_jax.core.ranges import Count
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokens.mixture import Shuffle


class TaskStep(NamedTuple):
  """The batch of a step."""

  task: str  # its name
  batch: int  # its number among all batches of the task, over all epochs


@dataclass(frozen=True)
class Mixing(abc.ABC):
  """What an epoch holds: the choice `finetune.mixing`."""

  # Whether an epoch's batches are shuffled; else the tasks, of which each has
  # the same number of batches, take turns.
  shuffled: ClassVar[bool] = True

  @abc.abstractmethod
  def counts(self, batches: list[int], size: int) -> list[int]:
    """The batches of each task in an epoch.

    Args:
      batches: of each task in a pass over its examples.
      size: examples in a batch.
    """

  def order(self, config: Any, sizes: Mapping[str, int]) -> 'TaskOrder':
    """Each step's task and examples, for tasks of these sizes."""
    if type(config.batch.size) is not int:
      raise UsageError(
        f'batch.size={config.batch.size!r}: must be one number for a run on '
        'several tasks, without a ramp; give the examples per batch'
      )
    return TaskOrder(sizes, batch_size=config.batch.size, seed=config.seed, mixing=self)

  def ramp(self, config: Any) -> Ramp:
    """The rows of each step of a run, their length and their task.

    Each task has its own row length. `finetune.each` has a section for each
    task: the number of `examples`, and the `tokens` of one, summed over its
    sequences.
    """
    num_steps = config.schedule.num_steps
    if type(num_steps) is not int:
      raise UsageError(
        f'schedule.num_steps={num_steps!r}: must be a number of steps for a '
        'run on several tasks, whose rows differ in length; give one, or leave '
        'it empty to follow finetune.epochs'
      )
    sections = config.finetune.each.items()
    # Raises on errors before anything is cached.
    self.order(config, {name: section.examples for name, section in sections})
    sizes = tuple((n, s.examples, s.tokens) for n, s in sections)
    return _ramp(sizes, config.batch.size, config.seed, self, num_steps)


@functools.lru_cache(maxsize=4)
def _ramp(
  sizes: tuple[tuple[str, int, int], ...],
  batch_size: int,
  seed: int,
  mixing: Mixing,
  num_steps: int,
) -> Ramp:
  """The ramp of tasks (name, examples, tokens): a stage per run of steps."""
  order = TaskOrder(
    {name: examples for name, examples, _ in sizes}, batch_size=batch_size, seed=seed, mixing=mixing
  )
  lengths = {name: tokens for name, _, tokens in sizes}
  stages: list[Stage] = []
  consumed = 0
  for step in range(num_steps):
    task = order.step(step).task
    if not stages or stages[-1].task != task:
      rows = step * batch_size
      stages.append(Stage(step, batch_size, lengths[task], rows, consumed, task))
    consumed += batch_size * lengths[task]
  return Ramp(tuple(stages))


@dataclass(frozen=True)
class Proportional(Mixing):
  """Each epoch has each batch of each task once (algorithm 1)."""

  def counts(self, batches: list[int], size: int) -> list[int]:
    return batches


@dataclass(frozen=True)
class Capped(Mixing):
  """Each epoch has the batches of at most `examples` of each task.

  The next epoch continues where it stopped, so that all examples are used.
  """

  examples: Count

  def counts(self, batches: list[int], size: int) -> list[int]:
    return [min(n, -(-self.examples // size)) for n in batches]


@dataclass(frozen=True)
class Alternating(Mixing):
  """The tasks take turns; an epoch is a pass over the first one's examples."""

  shuffled = False

  def counts(self, batches: list[int], size: int) -> list[int]:
    return [batches[0]] * len(batches)


class TaskOrder:
  """Each step's batch, as a function of the sizes, the seed and the step."""

  def __init__(
    self, sizes: Mapping[str, int], *, batch_size: int, seed: int, mixing: Mixing = Proportional()
  ):
    """Makes the order.

    Args:
      sizes: examples of each task.
      batch_size: examples in a batch.
      mixing: what an epoch holds.
    """
    self._names, self._sizes = [*sizes], dict(sizes)
    self._batch_size = batch_size
    # Batches of each task in an epoch.
    passes = [-(-size // batch_size) for size in sizes.values()]
    self._counts = mixing.counts(passes, batch_size)
    self.steps_per_epoch = sum(self._counts)
    self._shuffle = None
    if mixing.shuffled:
      self._shuffle = Shuffle(self.steps_per_epoch, f'{seed}/tasks')
    self._orders = {name: Shuffle(size, seed) for name, size in sizes.items()}
    self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)

  def step(self, number: int) -> TaskStep:
    """The batch of step `number`, from 0."""
    epoch, place = divmod(number, self.steps_per_epoch)
    tasks, ranks = self._epoch(epoch)
    task = int(tasks[place])
    batch = epoch * self._counts[task] + int(ranks[place])
    return TaskStep(self._names[task], batch)

  def examples(self, step: TaskStep) -> list[int]:
    """The numbers of a step's examples: a batch, or fewer."""
    size = self._sizes[step.task]
    done, place = divmod(step.batch, -(-size // self._batch_size))
    first = place * self._batch_size
    last = min(first + self._batch_size, size)
    order = self._orders[step.task]
    return [order[done * size + i] for i in range(first, last)]

  def epochs(self, number: int) -> dict[str, float]:
    """Passes before step `number`: `epochs` over all, `epochs/TASK`."""
    epoch, place = divmod(number, self.steps_per_epoch)
    tasks, _ = self._epoch(epoch)
    counts = np.array(self._counts)
    taken = epoch * counts + np.bincount(tasks[:place], minlength=len(counts))
    passes = {
      f'epochs/{name}': float(batches / -(-size // self._batch_size))
      for (name, size), batches in zip(self._sizes.items(), taken, strict=True)
    }
    return {'epochs': number / self.steps_per_epoch, **passes}

  def _make_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """The task of each step of an epoch, and its rank among that task's."""
    count = self.steps_per_epoch
    if self._shuffle is None:
      ranks, tasks = np.divmod(np.arange(count), len(self._counts))
      return tasks, ranks
    places = np.array([self._shuffle[epoch * count + i] for i in range(count)])
    tasks = np.searchsorted(np.cumsum(self._counts), places, side='right')
    ranks = np.zeros(count, np.int64)
    for task, batches in enumerate(self._counts):
      ranks[tasks == task] = np.arange(batches)
    return tasks, ranks
