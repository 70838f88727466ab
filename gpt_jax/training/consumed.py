# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints which documents the steps of a run consumed."""

import json
from typing import Any

from gpt_jax import config as config_lib
from gpt_jax.data import ledger, skips
from gpt_jax.data.store import TokenStore
from gpt_jax.spec import UsageError
from gpt_jax.training import store_data
from gpt_jax.training import trained as trained_lib


def show(workdir: str, steps: str, *, text: bool, as_json: bool) -> None:
  """Prints which documents the steps of a run consumed.

  Args:
    workdir: of the run.
    steps: '100', or '100:110' for 100 to 109.
    text: also prints what the rows say.
    as_json: prints one JSON object.

  Raises:
    UsageError: there is no run, or no such step.
  """
  config = trained_lib.read_config(workdir)
  start, stop = _steps(steps, config.schedule.num_steps)
  store = TokenStore.open(store_data.data_folder(config, workdir))
  store = store.ordered(config.data.source, config.data.rows)
  length = config.model.context_length
  tokenizer = store.tokenizer() if text else None
  found = []
  for step in ledger.steps(
    store,
    length=length,
    seed=config.seed,
    start=start - 1,
    stop=stop - 1,
    rows=skips.read(workdir).shifted(config_lib.ramp(config).batch),
  ):
    for row in step.rows:
      spans = [span._asdict() for span in row.spans]
      line = {'step': step.step + 1, **row._asdict(), 'spans': spans}
      if tokenizer:
        count = sum(span.stop - span.start for span in row.spans)
        tokens = store.tokens(row.begin, row.begin + count)
        line['text'] = tokenizer.decode(tokens)
      found.append(line)
      if not as_json:
        _print_row(line)
  if as_json:
    print(json.dumps({'store': store.folder, 'rows': found}))


def _print_row(line: dict[str, Any]) -> None:
  spans = ', '.join(
    f'{s["document"]} [{s["start"]}:{s["stop"]}]' for s in line['spans']
  )
  print(
    f'step {line["step"]} row {line["row"]} '
    + (f'source {line["source"]} ' if line['source'] else '')
    + f'epoch {line["epoch"]} position '
    f'{line["position"]}: documents {spans}'
  )
  if 'text' in line:
    print(line['text'])


def _steps(text: str, num_steps: int) -> tuple[int, int]:
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
