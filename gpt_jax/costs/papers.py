# Copyright 2026 The gpt_jax Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of all papers: their configs, differences and parameters."""

import importlib
import pathlib
import sys

from gpt_jax import config as config_lib
from gpt_jax.costs.totals import figures_of
from gpt_jax.spec import UsageError

_TABLE_HEAD = (
  '| paper | config | what differs from its ancestor | parameters | proof |',
  '|---|---|---|---|---|',
)


def table(root: pathlib.Path) -> str:
  """One Markdown row for each paper and size in `root`/configs.

  A config of a paper says in `DIFFERS` what it adds to its ancestor; its
  docstring begins with the paper's name, authors and year.

  Raises:
    UsageError: there are no configs.
  """
  files = sorted((root / 'configs').glob('*.py'))
  if not files:
    raise UsageError(
      f'--table: {root} has no configs/*.py; run it where configs/ is'
    )
  sys.path.insert(0, str(root))
  rows = []
  for file in files:
    module = importlib.import_module(f'configs.{file.stem}')
    if not hasattr(module, 'DIFFERS'):
      continue
    paper = str(module.__doc__).partition(':')[0] + ')'
    year = int(paper[-5:-1])
    differs = module.DIFFERS
    for size in getattr(module, 'SIZES', ['']):
      config = config_lib.resolve_model(module.get_config(size))
      figures = figures_of(config)[1]
      parameters, active = figures['parameters'], figures['parameters_active']
      count = f'{parameters:,}'
      if active != parameters:
        count += f', of which a token takes {active:,}'
      name = f'{file.stem}.py:{size}' if size else f'{file.stem}.py'
      test = f'test_decoder_row[{file.stem}-{size}]'
      row = f'| {paper} | `{name}` | {differs} | {count} | `{test}` |'
      rows.append((year, row))
      # Said once, for all sizes.
      paper = differs = ''
  # Oldest first; within a year and a paper as they come.
  rows.sort(key=lambda year_row: year_row[0])
  return '\n'.join([*_TABLE_HEAD, *(row for _, row in rows)])
