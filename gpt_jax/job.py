# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a training run works with, besides its state."""

from collections.abc import Generator
from typing import Any, NamedTuple

import jax

from gpt_jax import distributed, metrics
from gpt_jax.checkpoint import Checkpointer
from gpt_jax.data import pipeline, skips
from gpt_jax.data.store import TokenStore
from gpt_jax.optim.spikes import WINDOW
from gpt_jax.run import Run


class Past(NamedTuple):
  """What the loop must know of the steps done."""

  losses: list[float]  # logged last, oldest first
  skipped: list[int]  # steps whose update was left out
  held_out: list[tuple[int, float]]  # steps, and their losses
  # What routers did in each step since the last log line: see `Meter`.
  unlogged: list[dict[str, Any]]

  def evaluated(self, step: int) -> bool:
    """Whether the step was evaluated."""
    return any(found == step for found, _ in self.held_out)


class Job(NamedTuple):
  """A run, its folder and its data."""

  run: Run
  workdir: str
  store: TokenStore
  checkpointer: Checkpointer

  @property
  def active(self) -> bool:
    """Whether this process is the one that logs and writes."""
    return jax.process_index() == 0

  def open_metrics(self, done: int, **start: float) -> metrics.Metrics:
    """Opens metrics.jsonl at step `done`; `start` goes into its event."""
    length = self.run.config.model.context_length
    return metrics.Metrics(
      self.workdir,
      step=done,
      active=self.active,
      context_length=length,
      rows_per_epoch=pipeline.rows_per_epoch(self.store, length),
      **start,
    )

  def unskipped_rows(self, step: int) -> tuple[int, int]:
    """Offset and count of the rows of a step, from 0, if none are left out."""
    return self.run.ramp.batch(step)

  def past(self, done: int) -> Past:
    """The past at step `done`; every process is to ask at the same time."""
    lines = [m for m in metrics.read(self.workdir) if m['step'] <= done]
    unlogged = [
      m['routers']
      for m in lines
      if m.get('event') == 'unlogged' and m['step'] == done
    ]
    past: dict[str, Any] = dict(
      losses=[m['loss'] for m in lines if 'loss' in m][-WINDOW:],
      skipped=[m['step'] for m in lines if m.get('event') == 'skipped'],
      held_out=[
        (m['step'], loss)
        for m in lines
        if (loss := metrics.held_out_loss(m)) is not None
      ],
      unlogged=unlogged[-1] if unlogged else [],
    )
    return Past(**distributed.first_says(past))

  def skips(self) -> skips.Skips:
    """The rows left out so far; every process is to ask at the same time."""
    text = skips.to_json(skips.read(self.workdir))
    return skips.from_json(distributed.first_says(text))

  def batches(self, start: int) -> Generator[pipeline.Batch]:
    """Yields this host's share of the batches of steps from `start`, from 0."""
    run, config = self.run, self.run.config
    yield from pipeline.batches(
      self.store,
      length=config.model.context_length,
      seed=config.seed,
      start=start,
      stop=config.schedule.num_steps,
      rows=self.skips().shifted(self.unskipped_rows),
      host_rows=run.host_rows,
      corrupt=run.objective.corrupt,
    )
