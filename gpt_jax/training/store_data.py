# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A token store as what a run consumes; see `training_run.Data`."""

import os
from collections.abc import Generator

from gpt_jax.config import Config
from gpt_jax.data import pipeline, skips
from gpt_jax.data.store import TokenStore
from gpt_jax.training.parts import Parts


class StoreData:
  """The rows of a token store in the order of a run."""

  def __init__(self, store: TokenStore, *, length: int, seed: int):
    """Rows of `length` targets, in the order given by `seed`.

    Raises:
      UsageError: the store is shorter than one row.
    """
    self._store, self._length, self._seed = store, length, seed
    self._source = pipeline.RowSource(store, length=length, seed=seed)

  @property
  def rows_per_epoch(self) -> int:
    """Rows in one epoch."""
    return self._source.rows_per_epoch

  def batches(
    self, parts: Parts, start: int, rows: skips.Rows
  ) -> Generator[pipeline.Batch]:
    """See `training_run.Data`."""
    make_batch = parts.objective.make_batch
    assert make_batch is not None
    return pipeline.batches(
      self._store,
      length=self._length,
      seed=self._seed,
      start=start,
      stop=parts.config.schedule.num_steps,
      rows=rows,
      host_rows=parts.host_rows,
      make_batch=make_batch,
    )

  def epochs(self, index: int) -> dict[str, float]:
    """Passes before row `index`: `epochs`, of a mixture `epochs/SOURCE`."""
    return self._source.epochs(index)

  def row_numbers(self, first: int, count: int) -> list[int]:
    """Which rows of the store are rows `first` and on of the run."""
    return self._source.row_numbers(range(first, first + count)).tolist()


def data_folder(config: Config, workdir: str) -> str:
  """Where the run's token store is."""
  return config.data.store or os.path.join(workdir, 'data')
