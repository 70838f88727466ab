# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A token store as what a run consumes; see `training_run.Data`."""

import os
from collections.abc import Callable, Generator, Sequence

from gpt_jax.config import Config
from gpt_jax.data import buckets, manifest, pipeline
from gpt_jax.data.rows import Keys, Rows
from gpt_jax.data.store import TokenStore
from gpt_jax.data.taken import Taken, TakenAt
from gpt_jax.spec import UsageError
from gpt_jax.training import imported
from gpt_jax.training.parts import Parts


class StoreData:
  """The rows of a token store in the order of a run."""

  def __init__(
    self,
    store: TokenStore,
    *,
    lengths: Sequence[int],
    seed: int,
    more: Callable[[Keys], pipeline.Batch] | None = None,
  ):
    """Rows of some lengths, the first row's first, in orders given by `seed`.

    Args:
      store: open.
      lengths: see above.
      seed: see above.
      more: arrays of a batch beside those that its rows make; None: none.

    Raises:
      UsageError: the store is shorter than one row.
    """
    self._store, self._seed, self._more = store, seed, more
    self._sources = pipeline.sources(store, seed=seed)
    counts = [self._sources(length).rows_per_epoch for length in lengths]
    self.rows_per_epoch = counts[0]

  def batches(
    self, parts: Parts, start: int, rows: TakenAt
  ) -> Generator[pipeline.Batch]:
    """See `training_run.Data`."""
    of_rows, more = parts.objective.make_batch, self._more
    assert of_rows is not None

    def make_batch(rows: Rows, keys: Keys) -> pipeline.Batch:
      return {**of_rows(rows, keys), **(more(keys) if more else {})}

    return pipeline.batches(
      self._store,
      seed=self._seed,
      start=start,
      stop=parts.config.schedule.num_steps,
      rows=rows,
      host_rows=parts.host_rows,
      make_batch=make_batch,
    )

  def epochs(self, taken: Taken) -> dict[str, float]:
    """Passes before some rows: `epochs`, of a mixture `epochs/SOURCE`."""
    return self._sources(taken.length).epochs(taken.index)

  def row_numbers(self, taken: Taken) -> list[int]:
    """Which rows of the store, of their length, are some rows of the run."""
    return self._sources(taken.length).row_numbers(taken.indices).tolist()


def data_folder(config: Config, workdir: str) -> str:
  """Where the run's token store is."""
  return config.data.store or os.path.join(buckets.home(workdir), 'data')


def open_store(config: Config, workdir: str) -> TokenStore:
  """Opens the token store of a run; an imported model has none."""
  folder = data_folder(config, workdir)
  if not manifest.exists(folder) and imported.is_import(workdir):
    raise UsageError(
      f'--workdir={workdir}: holds an imported model, which has no training '
      'data and no held-out text; evaluate it with --tasks, or train from it '
      f"with --config.optim.start='{workdir}' in a new workdir"
    )
  return TokenStore.open(folder)
