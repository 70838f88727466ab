# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""A token store as the data of a run: implements `run.Data`."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from gpt_jax.core import config as config_lib
from gpt_jax.core.checkpoints import restore
from gpt_jax.core.config import Config
from gpt_jax.core.files import buckets, files
from gpt_jax.core.rows import ledger, row_order
from gpt_jax.core.rows.batch_rows import BatchRows, RowsOfStep
from gpt_jax.core.rows.rows import Keys, Rows
from gpt_jax.core.spec import UsageError
from gpt_jax.core.tokenizers.tokenizer import load as load_tokenizer
from gpt_jax.core.tokens import document_names, manifest
from gpt_jax.core.tokens.store import TokenStore
from gpt_jax.core.training import workdir as workdir_lib
from gpt_jax.core.training.parts import Parts
from gpt_jax.core.training.past import FIGURES, RunInput, check_store, known_skips


class More(NamedTuple):
  """Arrays of a batch beside those that its rows are made into."""

  batch: Callable[[Keys], row_order.Batch]  # from the keys of its rows
  read: RunInput  # where they are from


class StoreData:
  """The rows of a token store in the order of a run."""

  def __init__(
    self, store: TokenStore, *, lengths: Sequence[int], seed: int, more: More | None = None
  ):
    """Rows in the order that the seed gives.

    Args:
      lengths: of rows, the length of the first batch first.
      seed: of the run; the order of each length follows from it.
      more: further arrays of a batch; None: there are none.
    """
    self.store, self._seed, self._more = store, seed, more
    self._sources = row_order.sources(store, seed=seed)
    counts = [self._sources(length).rows_per_epoch for length in lengths]
    self.rows_per_epoch = counts[0]

  def batches(
    self, parts: Parts, start: int, rows: RowsOfStep, state: Any = None
  ) -> Generator[row_order.Batch]:
    """See `run.Data`."""
    del state
    of_rows, more = parts.objective.make_batch, self._more

    def make_batch(rows: Rows, keys: Keys) -> row_order.Batch:
      return {**of_rows(rows, keys), **(more.batch(keys) if more else {})}

    return row_order.batches(
      self.store,
      seed=self._seed,
      start=start,
      stop=parts.config.schedule.num_steps,
      rows=rows,
      host_rows=parts.host_rows,
      make_batch=make_batch,
    )

  def epochs(self, rows: BatchRows) -> dict[str, float]:
    """Epochs before these rows: `epochs`, and `epochs/SOURCE` of a mixture."""
    return self._sources(rows.length).epochs(rows.index)

  def row_numbers(self, rows: BatchRows) -> list[int]:
    """The numbers, in the store, of rows of the run."""
    return self._sources(rows.length).row_numbers(rows.indices).tolist()


def data_folder(config: Config, workdir: str) -> str:
  """Where the run's token store is."""
  return config.data.store or os.path.join(buckets.home(workdir), 'data')


def open_store(config: Config, workdir: str) -> TokenStore:
  """Opens the token store of a run; an imported model has none."""
  folder = data_folder(config, workdir)
  if not manifest.exists(folder) and workdir_lib.is_import(workdir):
    raise UsageError(
      f'--workdir={workdir}: holds an imported model, which has no training '
      'data and no held-out text; evaluate it with --tasks, or train from it '
      f"with --config.optim.start='{workdir}' in a new workdir"
    )
  return TokenStore.open(folder)


# Which rows and documents the steps of a run consumed.

# Fields of a spike's file that make a `BatchRows`: see `Run.write_spike`.
_ROWS = ('first_row', 'num_rows', 'row_tokens', 'first_index')


def rows(workdir: str, steps: str, *, text: bool = False) -> tuple[str, Iterator[dict[str, Any]]]:
  """The folder of the token store, and the rows of some steps of a run.

  Args:
    steps: '100', or '100:110' for 100 to 109.
    text: whether to decode the rows too.
  """
  config = workdir_lib.read_config(workdir)
  start, stop = step_range(steps, config.schedule.num_steps)
  store = _trained_on(config, workdir)
  read = ledger.steps(
    store,
    seed=config.seed,
    start=start - 1,
    stop=stop - 1,
    rows=known_skips(workdir).shifted(config_lib.order(config_lib.ramp(config))),
  )
  tokenizer = store.tokenizer() if text else None
  name_of = document_names.of_store(store)

  def lines() -> Iterator[dict[str, Any]]:
    for step in read:
      for row in step.rows:
        line = {'step': step.step + 1, **row._asdict()}
        texts, pairs = line.pop('texts'), store.manifest.pairs
        for name in ('spans', 'second'):
          line[name] = [{**span._asdict(), 'name': name_of(span.document)} for span in line[name]]
        if len(texts) < 2:
          del line['second']
        if len(texts) < 2 or pairs:
          del line['pair']
        if not row.sentences:
          del line['sentences']
        if tokenizer:
          said = [store.text(tokenizer, text.start, text.stop) for text in texts]
          if pairs:
            line |= {'sources': said[::2], 'targets': said[1::2]}
          else:
            line |= zip(('text', 'second_text'), said, strict=False)
        yield line

  return store.folder, lines()


def _trained_on(config: Config, workdir: str) -> TokenStore:
  """The run's store, in the run's order; checks the fingerprint."""
  store = open_store(config, workdir)
  check_store(workdir, restore.newest(workdir), store.manifest.fingerprint)
  return store.ordered(config.data.source, config.data.rows)


def spike(file: str) -> dict[str, Any]:
  """Reads WORKDIR/spikes/STEP.json, and adds `texts`: each row, decoded."""
  workdir = os.path.dirname(os.path.dirname(os.path.abspath(file)))
  try:
    record = files.read_json(
      file,
      remedy='restore it from a copy; training does not need it',
      needs=('step', 'learning_rate', *_ROWS, *FIGURES),
    )
  except FileNotFoundError as e:
    raise UsageError(
      f'--spike={file}: {e.filename} is missing; give WORKDIR/spikes/STEP.json of a run'
    ) from e
  config = workdir_lib.read_config(workdir)
  store = _trained_on(config, workdir)
  tokenizer = load_tokenizer(os.path.join(workdir, 'tokenizer'))
  batch_rows = BatchRows(*(record[name] for name in _ROWS))
  source = row_order.RowSource(store, length=batch_rows.length, seed=config.seed)
  rows, _ = source.read(batch_rows)
  sides = [rows] if rows.source is None else [rows.source, rows]
  tokenizers = [tokenizer.sources, tokenizer]
  texts = [
    ' => '.join(
      tokenizer.decode(side.tokens[i][side.real[i]].tolist())
      for side, tokenizer in zip(sides, tokenizers[-len(sides) :], strict=True)
    )
    for i in range(len(rows.tokens))
  ]
  return {**record, 'texts': texts}


def step_range(text: str, num_steps: int) -> tuple[int, int]:
  """Reads `--steps`: the first step, and the one after the last."""
  first, colon, stop = text.partition(':')
  try:
    start = int(first)
    end = int(stop) if colon else start + 1
  except ValueError as e:
    raise UsageError(f'--steps={text}: give a step, or a range such as 100:110') from e
  if not 1 <= start < end <= num_steps + 1:
    raise UsageError(
      f'--steps={text}: the steps of this run are 1 to {num_steps}; give one or more of them'
    )
  return start, end
