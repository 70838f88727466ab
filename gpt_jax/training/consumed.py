# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which documents the steps of a run consumed."""

from collections.abc import Iterator
from typing import Any

from gpt_jax import config as config_lib
from gpt_jax.checkpoints import restore
from gpt_jax.data import ledger, row_makers
from gpt_jax.spec import UsageError
from gpt_jax.training import store_data
from gpt_jax.training import trained as trained_lib
from gpt_jax.training.history import check_store, known_skips


def rows(
  workdir: str, steps: str, *, text: bool = False
) -> tuple[str, Iterator[dict[str, Any]]]:
  """The folder of the token store, and the rows of some steps of a run.

  Args:
    workdir: of the run.
    steps: '100', or '100:110' for 100 to 109.
    text: also what the rows say.

  Raises:
    UsageError: there is no run, or no such step.
  """
  config = trained_lib.read_config(workdir)
  start, stop = step_range(steps, config.schedule.num_steps)
  store = store_data.open_store(config, workdir)
  check_store(workdir, restore.newest(workdir), store.manifest.fingerprint)
  store = store.ordered(config.data.source, config.data.rows)
  found = ledger.steps(
    store,
    seed=config.seed,
    start=start - 1,
    stop=stop - 1,
    rows=known_skips(workdir).shifted(
      config_lib.order(config_lib.ramp(config))
    ),
  )
  tokenizer = store.tokenizer() if text else None

  def lines() -> Iterator[dict[str, Any]]:
    for step in found:
      for row in step.rows:
        line = {'step': step.step + 1, **row._asdict()}
        texts, pairs = line.pop('texts'), row_makers.of_pairs(store.rows)
        for name in ('spans', 'second'):
          line[name] = [span._asdict() for span in line[name]]
        if len(texts) < 2:
          del line['second']
        if len(texts) < 2 or pairs:
          del line['pair']
        if not row.sentences:
          del line['sentences']
        if tokenizer:
          said = [
            store.text(tokenizer, text.start, text.stop) for text in texts
          ]
          if pairs:
            line |= {'sources': said[::2], 'targets': said[1::2]}
          else:
            line |= zip(('text', 'second_text'), said, strict=False)
        yield line

  return store.folder, lines()


def step_range(text: str, num_steps: int) -> tuple[int, int]:
  """Reads `--steps`: the first step, and the one after the last.

  Raises:
    UsageError: the text is no range of steps of the run.
  """
  first, colon, stop = text.partition(':')
  try:
    start = int(first)
    end = int(stop) if colon else start + 1
  except ValueError as e:
    raise UsageError(
      f'--steps={text}: give a step, or a range such as 100:110'
    ) from e
  if not 1 <= start < end <= num_steps + 1:
    raise UsageError(
      f'--steps={text}: the steps of this run are 1 to {num_steps}; give one '
      'or more of them'
    )
  return start, end
