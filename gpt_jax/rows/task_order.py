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

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from gpt_jax import spec
from gpt_jax.ranges import Count
from gpt_jax.tokens.mixture import Shuffle


class Step(NamedTuple):
  """The batch of a step."""

  task: str  # its name
  batch: int  # its number among all batches of the task, over all epochs


class Mixing(NamedTuple):
  """What an epoch holds.

  Attributes:
    counts: from the number of batches of each task in a pass over its examples,
      and the examples in a batch, to the number of its batches in an epoch.
    shuffled: whether an epoch's batches are shuffled; else the tasks, of which
      each has the same number of batches, take turns.
  """

  counts: Callable[[list[int], int], list[int]]
  shuffled: bool = True


def proportional() -> Mixing:
  """Each epoch has each batch of each task once (algorithm 1)."""
  return Mixing(lambda batches, size: batches)


def capped(examples: Count) -> Mixing:
  """Each epoch has the batches of at most `examples` of each task.

  The next epoch continues where it stopped, so that all examples are used.
  """
  return Mixing(
    lambda batches, size: [min(n, -(-examples // size)) for n in batches]
  )


def alternating() -> Mixing:
  """The tasks take turns; an epoch is a pass over the first one's examples."""
  return Mixing(
    lambda batches, size: [batches[0]] * len(batches), shuffled=False
  )


class TaskOrder:
  """Each step's batch, as a function of the sizes, the seed and the step."""

  def __init__(
    self,
    sizes: Mapping[str, int],
    *,
    batch_size: int,
    seed: int,
    mixing: str = 'proportional',
  ):
    """Makes the order.

    Args:
      sizes: examples of each task.
      batch_size: examples in a batch.
      mixing: a call of `MIXINGS`.
    """
    made: Mixing = spec.build('finetune.mixing', mixing, MIXINGS)
    self._names, self._sizes = [*sizes], dict(sizes)
    self._batch_size = batch_size
    # Batches of each task in an epoch.
    passes = [-(-size // batch_size) for size in sizes.values()]
    self._counts = made.counts(passes, batch_size)
    self.steps_per_epoch = sum(self._counts)
    self._shuffle = None
    if made.shuffled:
      self._shuffle = Shuffle(self.steps_per_epoch, f'{seed}/tasks')
    self._orders = {name: Shuffle(size, seed) for name, size in sizes.items()}
    self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)

  def step(self, number: int) -> Step:
    """The batch of step `number`, from 0."""
    epoch, place = divmod(number, self.steps_per_epoch)
    tasks, ranks = self._epoch(epoch)
    task = int(tasks[place])
    batch = epoch * self._counts[task] + int(ranks[place])
    return Step(self._names[task], batch)

  def examples(self, step: Step) -> list[int]:
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


MIXINGS = {
  'alternating': alternating,
  'capped': capped,
  'proportional': proportional,
}
